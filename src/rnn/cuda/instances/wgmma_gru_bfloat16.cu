// Wgmma resident kernels, GRU, bfloat16.
#include "rnn/cuda/wgmma/backward.cuh"
#include "rnn/cuda/wgmma/forward.cuh"

namespace prnn {

template cudaError_t launch_wgmma_forward<__nv_bfloat16, PRNN_GRU>(const ResidentShape&, const ForwardParams&,
                                                                   cudaStream_t);
template cudaError_t launch_wgmma_backward<__nv_bfloat16, PRNN_GRU>(const ResidentShape&, const BackwardParams&,
                                                                    cudaStream_t);

}  // namespace prnn
