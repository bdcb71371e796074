// Launches of the beam search by levels; beam_levels_TYPE.cu have those of a type.
#pragma once

#include "decode/cuda/beam_levels.cuh"
#include "rnn/cuda/common/launch.cuh"

namespace prnn::decode_cuda {
namespace {

template <class T, int TILES>
cudaError_t launch_levels(const BeamParams& params, cudaStream_t stream) {
  ResidentShape shape;
  shape.blocks = params.blocks;
  shape.shared_bytes = params.shared.total;
  return launch_resident(level_beam_kernel<T, TILES>, shape, params, stream, kThreads);
}

}  // namespace

// A search by levels has as many column tiles as slot tiles.
template <class T>
cudaError_t run_level_beam_search(const BeamParams& params, int slot_tiles, cudaStream_t stream) {
  switch (slot_tiles) {
    case 1: return launch_levels<T, 1>(params, stream);
    case 2: return launch_levels<T, 2>(params, stream);
    default: return launch_levels<T, 4>(params, stream);
  }
}

}  // namespace prnn::decode_cuda
