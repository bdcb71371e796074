// Backward cluster kernels, LSTM, bfloat16.
#include "rnn/cuda/cluster/backward.cuh"

namespace prnn {

template cudaError_t launch_cluster_backward<__nv_bfloat16, PRNN_LSTM, 4, 8>(const BackwardParams&, cudaStream_t);
template cudaError_t launch_cluster_backward<__nv_bfloat16, PRNN_LSTM, 8, 8>(const BackwardParams&, cudaStream_t);
template cudaError_t launch_cluster_backward<__nv_bfloat16, PRNN_LSTM, 16, 16>(const BackwardParams&, cudaStream_t);

}  // namespace prnn
