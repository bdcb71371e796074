// Backward cluster kernels, RNN, half.
#include "rnn/cuda/cluster/backward.cuh"

namespace prnn {

template cudaError_t launch_cluster_backward<__half, PRNN_RNN_TANH, 4, 8>(const BackwardParams&, cudaStream_t);
template cudaError_t launch_cluster_backward<__half, PRNN_RNN_TANH, 8, 8>(const BackwardParams&, cudaStream_t);
template cudaError_t launch_cluster_backward<__half, PRNN_RNN_TANH, 16, 8>(const BackwardParams&, cudaStream_t);
template cudaError_t launch_cluster_backward<__half, PRNN_RNN_TANH, 16, 16>(const BackwardParams&, cudaStream_t);

}  // namespace prnn
