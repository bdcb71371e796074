// Forward resident kernels, RNN, float.
#include "rnn/cuda/mma/forward.cuh"

namespace prnn {

template cudaError_t launch_mma_forward<float, PRNN_RNN_TANH, 2>(const ResidentShape&, const ForwardParams&,
                                                                 cudaStream_t);
template cudaError_t launch_mma_forward<float, PRNN_RNN_TANH, 4>(const ResidentShape&, const ForwardParams&,
                                                                 cudaStream_t);

}  // namespace prnn
