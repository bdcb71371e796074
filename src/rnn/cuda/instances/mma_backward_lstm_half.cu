// Backward resident kernels, LSTM, half.
#include "rnn/cuda/mma/backward.cuh"

namespace prnn {

template cudaError_t launch_mma_backward<__half, PRNN_LSTM, 1, 1>(const ResidentShape&, const BackwardParams&,
                                                                  cudaStream_t);
template cudaError_t launch_mma_backward<__half, PRNN_LSTM, 2, 1>(const ResidentShape&, const BackwardParams&,
                                                                  cudaStream_t);
template cudaError_t launch_mma_backward<__half, PRNN_LSTM, 2, 2>(const ResidentShape&, const BackwardParams&,
                                                                  cudaStream_t);

}  // namespace prnn
