// Forward cluster kernels, RNN, half.
#include "rnn/cuda/cluster/forward.cuh"

namespace prnn {

template cudaError_t launch_cluster_forward<__half, PRNN_RNN_TANH, 4, 8>(const ForwardParams&, cudaStream_t);
template cudaError_t launch_cluster_forward<__half, PRNN_RNN_TANH, 8, 8>(const ForwardParams&, cudaStream_t);
template cudaError_t launch_cluster_forward<__half, PRNN_RNN_TANH, 16, 8>(const ForwardParams&, cudaStream_t);
template cudaError_t launch_cluster_forward<__half, PRNN_RNN_TANH, 16, 16>(const ForwardParams&, cudaStream_t);
template cudaError_t launch_cluster_forward<__half, PRNN_RNN_TANH, 32, 16>(const ForwardParams&, cudaStream_t);

}  // namespace prnn
