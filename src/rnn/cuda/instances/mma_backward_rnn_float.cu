// Backward resident kernels, RNN, float.
#include "rnn/cuda/mma/backward.cuh"

namespace prnn {

template cudaError_t launch_mma_backward<float, PRNN_RNN_TANH, 2, 1>(const ResidentShape&, const BackwardParams&,
                                                                     cudaStream_t);
template cudaError_t launch_mma_backward<float, PRNN_RNN_TANH, 4, 1>(const ResidentShape&, const BackwardParams&,
                                                                     cudaStream_t);

}  // namespace prnn
