// Large-layer mma kernels, RNN, bfloat16.
#include "rnn/cuda/mma/large_backward.cuh"
#include "rnn/cuda/mma/large_forward.cuh"

namespace prnn {

template cudaError_t launch_mma_large_forward<__nv_bfloat16, PRNN_RNN_TANH>(const ResidentShape&, const ForwardParams&,
                                                                            cudaStream_t);
template cudaError_t launch_mma_large_backward<__nv_bfloat16, PRNN_RNN_TANH>(const ResidentShape&,
                                                                             const BackwardParams&, cudaStream_t);

}  // namespace prnn
