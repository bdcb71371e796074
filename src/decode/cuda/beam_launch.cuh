// Launches of the beam search; beam_TYPE.cu have those of a type.
#pragma once

#include "decode/cuda/beam.cuh"
#include "rnn/cuda/common/launch.cuh"

namespace prnn::decode_cuda {
namespace {

template <class T, int COLUMN_TILES>
cudaError_t launch(const BeamParams& params, cudaStream_t stream) {
  ResidentShape shape;
  shape.blocks = params.blocks;
  shape.shared_bytes = params.shared.total;
  return launch_resident(beam_kernel<T, COLUMN_TILES>, shape, params, stream, kThreads);
}

}  // namespace

template <class T>
cudaError_t run_beam_search(const BeamParams& params, int column_tiles, cudaStream_t stream) {
  switch (column_tiles) {
    case 1: return launch<T, 1>(params, stream);
    case 2: return launch<T, 2>(params, stream);
    default: return launch<T, 4>(params, stream);
  }
}

}  // namespace prnn::decode_cuda
