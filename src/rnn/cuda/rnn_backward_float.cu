// Backward resident kernels, RNN, float.
#include "rnn/cuda/resident_backward.cuh"

namespace prnn {

template cudaError_t launch_backward<float, PRNN_RNN_TANH, 2, 1>(const ResidentShape&, const BackwardParams&,
                                                                 cudaStream_t);
template cudaError_t launch_backward<float, PRNN_RNN_TANH, 4, 1>(const ResidentShape&, const BackwardParams&,
                                                                 cudaStream_t);

}  // namespace prnn
