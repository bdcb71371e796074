// Launches of the beam search; beam_TYPE.cu have those of a type.
#pragma once

#include "decode/cuda/beam.cuh"
#include "rnn/cuda/common/launch.cuh"

namespace prnn::decode_cuda {
namespace {

template <class T, int COLUMN_TILES, int SLOT_TILES>
cudaError_t launch(const BeamParams& params, cudaStream_t stream) {
  ResidentShape shape;
  shape.blocks = params.blocks;
  shape.shared_bytes = params.shared.total;
  return launch_resident(beam_kernel<T, COLUMN_TILES, SLOT_TILES>, shape, params, stream, kThreads);
}

}  // namespace

// As many column tiles as slot tiles, or twice as many.
template <class T>
cudaError_t run_beam_search(const BeamParams& params, int column_tiles, int slot_tiles, cudaStream_t stream) {
  switch (slot_tiles) {
    case 1: return column_tiles == 1 ? launch<T, 1, 1>(params, stream) : launch<T, 2, 1>(params, stream);
    case 2: return column_tiles == 2 ? launch<T, 2, 2>(params, stream) : launch<T, 4, 2>(params, stream);
    default: return launch<T, 4, 4>(params, stream);
  }
}

}  // namespace prnn::decode_cuda
