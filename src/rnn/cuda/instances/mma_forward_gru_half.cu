// Forward resident kernels, GRU, half.
#include "rnn/cuda/mma/forward.cuh"

namespace prnn {

template cudaError_t launch_mma_forward<__half, PRNN_GRU, 1>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_mma_forward<__half, PRNN_GRU, 2>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_mma_forward<__half, PRNN_GRU, 3>(const ResidentShape&, const ForwardParams&, cudaStream_t);

}  // namespace prnn
