// Large-layer mma kernels, LSTM, float.
#include "rnn/cuda/mma/large_backward.cuh"
#include "rnn/cuda/mma/large_forward.cuh"

namespace prnn {

template cudaError_t launch_mma_large_forward<float, PRNN_LSTM>(const ResidentShape&, const ForwardParams&,
                                                                cudaStream_t);
template cudaError_t launch_mma_large_backward<float, PRNN_LSTM>(const ResidentShape&, const BackwardParams&,
                                                                 cudaStream_t);

}  // namespace prnn
