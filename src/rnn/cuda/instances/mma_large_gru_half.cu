// Large-layer mma kernels, GRU, half.
#include "rnn/cuda/mma/large_backward.cuh"
#include "rnn/cuda/mma/large_forward.cuh"

namespace prnn {

template cudaError_t launch_mma_large_forward<__half, PRNN_GRU>(const ResidentShape&, const ForwardParams&,
                                                                cudaStream_t);
template cudaError_t launch_mma_large_backward<__half, PRNN_GRU>(const ResidentShape&, const BackwardParams&,
                                                                 cudaStream_t);

}  // namespace prnn
