// Backward cluster kernels, LSTM, half.
#include "rnn/cuda/cluster/backward.cuh"

namespace prnn {

template cudaError_t launch_cluster_backward<__half, PRNN_LSTM, 4, 8>(const BackwardParams&, cudaStream_t);
template cudaError_t launch_cluster_backward<__half, PRNN_LSTM, 8, 8>(const BackwardParams&, cudaStream_t);
template cudaError_t launch_cluster_backward<__half, PRNN_LSTM, 16, 16>(const BackwardParams&, cudaStream_t);

}  // namespace prnn
