// Backward resident kernels, GRU, tf32.
#include "rnn/cuda/common/tf32.cuh"
#include "rnn/cuda/mma/backward.cuh"

namespace prnn {

template cudaError_t launch_mma_backward<Tf32, PRNN_GRU, 1, 1>(const ResidentShape&, const BackwardParams&,
                                                               cudaStream_t);
template cudaError_t launch_mma_backward<Tf32, PRNN_GRU, 2, 1>(const ResidentShape&, const BackwardParams&,
                                                               cudaStream_t);
template cudaError_t launch_mma_backward<Tf32, PRNN_GRU, 3, 1>(const ResidentShape&, const BackwardParams&,
                                                               cudaStream_t);
template cudaError_t launch_mma_backward<Tf32, PRNN_GRU, 1, 3>(const ResidentShape&, const BackwardParams&,
                                                               cudaStream_t);
template cudaError_t launch_mma_backward<Tf32, PRNN_GRU, 2, 3>(const ResidentShape&, const BackwardParams&,
                                                               cudaStream_t);
template cudaError_t launch_mma_backward<Tf32, PRNN_GRU, 3, 3>(const ResidentShape&, const BackwardParams&,
                                                               cudaStream_t);

}  // namespace prnn
