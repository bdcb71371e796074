// Backward wavefront kernels, LSTM, bfloat16.
#include "rnn/cuda/wavefront/backward.cuh"

namespace prnn {

template cudaError_t launch_wavefront_backward<__nv_bfloat16, PRNN_LSTM>(const ResidentShape&,
                                                                         const WavefrontBackwardParams&, cudaStream_t);

}  // namespace prnn
