// Forward resident kernels, LSTM, float.
#include "rnn/cuda/mma/forward.cuh"

namespace prnn {

template cudaError_t launch_mma_forward<float, PRNN_LSTM, 1>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_mma_forward<float, PRNN_LSTM, 2>(const ResidentShape&, const ForwardParams&, cudaStream_t);

}  // namespace prnn
