// Forward cluster kernels, GRU, half.
#include "rnn/cuda/cluster/forward.cuh"

namespace prnn {

template cudaError_t launch_cluster_forward<__half, PRNN_GRU, 4, 8>(const ForwardParams&, cudaStream_t);
template cudaError_t launch_cluster_forward<__half, PRNN_GRU, 8, 8>(const ForwardParams&, cudaStream_t);
template cudaError_t launch_cluster_forward<__half, PRNN_GRU, 16, 16>(const ForwardParams&, cudaStream_t);

}  // namespace prnn
