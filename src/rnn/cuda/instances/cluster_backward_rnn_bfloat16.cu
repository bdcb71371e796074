// Backward cluster kernels, RNN, bfloat16.
#include "rnn/cuda/cluster/backward.cuh"

namespace prnn {

template cudaError_t launch_cluster_backward<__nv_bfloat16, PRNN_RNN_TANH, 4, 8>(const BackwardParams&, cudaStream_t);
template cudaError_t launch_cluster_backward<__nv_bfloat16, PRNN_RNN_TANH, 8, 8>(const BackwardParams&, cudaStream_t);
template cudaError_t launch_cluster_backward<__nv_bfloat16, PRNN_RNN_TANH, 16, 8>(const BackwardParams&, cudaStream_t);
template cudaError_t launch_cluster_backward<__nv_bfloat16, PRNN_RNN_TANH, 16, 16>(const BackwardParams&, cudaStream_t);

}  // namespace prnn
