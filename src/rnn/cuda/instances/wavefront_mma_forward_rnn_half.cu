// Forward wavefront kernels, RNN, half.
#include "rnn/cuda/wavefront/forward.cuh"

namespace prnn {

template cudaError_t launch_wavefront_forward<__half, PRNN_RNN_TANH>(const ResidentShape&,
                                                                     const WavefrontForwardParams&, cudaStream_t);

}  // namespace prnn
