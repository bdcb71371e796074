// The forward mma kernel with resets.
#pragma once

#include "rnn/cuda/mma/forward.cuh"

namespace prnn {

template <class T, prnnRNNMode_t MODE, int UNIT_TILES>
cudaError_t launch_mma_extras_forward(const ResidentShape& shape, const ForwardParams& params, cudaStream_t stream) {
  return launch_mma_forward_with<T, MODE, UNIT_TILES, true>(shape, params, stream);
}

}  // namespace prnn
