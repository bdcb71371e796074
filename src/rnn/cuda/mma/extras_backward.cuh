// The backward mma kernel with resets and the gradient of c.
#pragma once

#include "rnn/cuda/mma/backward.cuh"

namespace prnn {

template <class T, prnnRNNMode_t MODE, int UNIT_TILES, int CLUSTER>
cudaError_t launch_mma_extras_backward(const ResidentShape& shape, const BackwardParams& params, cudaStream_t stream) {
  return launch_mma_backward_with<T, MODE, UNIT_TILES, CLUSTER, true>(shape, params, stream);
}

}  // namespace prnn
