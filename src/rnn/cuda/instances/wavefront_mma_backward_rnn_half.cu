// Backward wavefront kernels, RNN, half.
#include "rnn/cuda/wavefront/backward.cuh"

namespace prnn {

template cudaError_t launch_wavefront_backward<__half, PRNN_RNN_TANH>(const ResidentShape&,
                                                                      const WavefrontBackwardParams&, cudaStream_t);

}  // namespace prnn
