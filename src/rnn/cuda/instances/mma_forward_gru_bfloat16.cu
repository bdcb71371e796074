// Forward resident kernels, GRU, bfloat16.
#include "rnn/cuda/mma/forward.cuh"

namespace prnn {

template cudaError_t launch_mma_forward<__nv_bfloat16, PRNN_GRU, 1>(const ResidentShape&, const ForwardParams&,
                                                                    cudaStream_t);
template cudaError_t launch_mma_forward<__nv_bfloat16, PRNN_GRU, 2>(const ResidentShape&, const ForwardParams&,
                                                                    cudaStream_t);
template cudaError_t launch_mma_forward<__nv_bfloat16, PRNN_GRU, 3>(const ResidentShape&, const ForwardParams&,
                                                                    cudaStream_t);

}  // namespace prnn
