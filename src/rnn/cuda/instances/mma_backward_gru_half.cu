// Backward resident kernels, GRU, half.
#include "rnn/cuda/mma/backward.cuh"

namespace prnn {

template cudaError_t launch_mma_backward<__half, PRNN_GRU, 1, 1>(const ResidentShape&, const BackwardParams&,
                                                                 cudaStream_t);
template cudaError_t launch_mma_backward<__half, PRNN_GRU, 2, 1>(const ResidentShape&, const BackwardParams&,
                                                                 cudaStream_t);
template cudaError_t launch_mma_backward<__half, PRNN_GRU, 3, 1>(const ResidentShape&, const BackwardParams&,
                                                                 cudaStream_t);
template cudaError_t launch_mma_backward<__half, PRNN_GRU, 3, 3>(const ResidentShape&, const BackwardParams&,
                                                                 cudaStream_t);

}  // namespace prnn
