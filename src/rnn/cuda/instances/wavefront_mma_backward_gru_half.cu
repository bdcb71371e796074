// Backward wavefront kernels, GRU, half.
#include "rnn/cuda/wavefront/backward.cuh"

namespace prnn {

template cudaError_t launch_wavefront_backward<__half, PRNN_GRU>(const ResidentShape&, const WavefrontBackwardParams&,
                                                                 cudaStream_t);

}  // namespace prnn
