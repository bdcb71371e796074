// Forward resident kernels, LSTM, tf32.
#include "rnn/cuda/common/tf32.cuh"
#include "rnn/cuda/mma/forward.cuh"

namespace prnn {

template cudaError_t launch_mma_forward<Tf32, PRNN_LSTM, 1>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_mma_forward<Tf32, PRNN_LSTM, 2>(const ResidentShape&, const ForwardParams&, cudaStream_t);

}  // namespace prnn
