// The large-layer mma backward kernel with prnnRNNExtras_t.
#pragma once

#include "rnn/cuda/mma/large_backward.cuh"

namespace prnn {

template <class T, prnnRNNMode_t MODE>
cudaError_t launch_mma_large_extras_backward(const ResidentShape& shape, const BackwardParams& params,
                                             cudaStream_t stream) {
  return launch_resident(mma_large_backward<T, MODE, true>, shape, params, stream);
}

}  // namespace prnn
