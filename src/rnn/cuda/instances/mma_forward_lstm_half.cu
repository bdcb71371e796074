// Forward resident kernels, LSTM, half.
#include "rnn/cuda/mma/forward.cuh"

namespace prnn {

template cudaError_t launch_mma_forward<__half, PRNN_LSTM, 1>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_mma_forward<__half, PRNN_LSTM, 2>(const ResidentShape&, const ForwardParams&, cudaStream_t);

}  // namespace prnn
