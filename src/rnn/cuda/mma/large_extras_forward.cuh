// The large-layer mma forward kernel with resets.
#pragma once

#include "rnn/cuda/mma/large_forward.cuh"

namespace prnn {

template <class T, prnnRNNMode_t MODE>
cudaError_t launch_mma_large_extras_forward(const ResidentShape& shape, const ForwardParams& params,
                                            cudaStream_t stream) {
  return launch_resident(mma_large_forward<T, MODE, true>, shape, params, stream);
}

}  // namespace prnn
