// Forward resident kernels, RNN, half.
#include "rnn/cuda/mma/forward.cuh"

namespace prnn {

template cudaError_t launch_mma_forward<__half, PRNN_RNN_TANH, 2>(const ResidentShape&, const ForwardParams&,
                                                                  cudaStream_t);
template cudaError_t launch_mma_forward<__half, PRNN_RNN_TANH, 4>(const ResidentShape&, const ForwardParams&,
                                                                  cudaStream_t);

}  // namespace prnn
