// Backward resident kernels, LSTM, tf32.
#include "rnn/cuda/common/tf32.cuh"
#include "rnn/cuda/mma/backward.cuh"

namespace prnn {

template cudaError_t launch_mma_backward<Tf32, PRNN_LSTM, 1, 1>(const ResidentShape&, const BackwardParams&,
                                                                cudaStream_t);
template cudaError_t launch_mma_backward<Tf32, PRNN_LSTM, 2, 1>(const ResidentShape&, const BackwardParams&,
                                                                cudaStream_t);
template cudaError_t launch_mma_backward<Tf32, PRNN_LSTM, 2, 2>(const ResidentShape&, const BackwardParams&,
                                                                cudaStream_t);
template cudaError_t launch_mma_backward<Tf32, PRNN_LSTM, 1, 4>(const ResidentShape&, const BackwardParams&,
                                                                cudaStream_t);
template cudaError_t launch_mma_backward<Tf32, PRNN_LSTM, 2, 4>(const ResidentShape&, const BackwardParams&,
                                                                cudaStream_t);

}  // namespace prnn
