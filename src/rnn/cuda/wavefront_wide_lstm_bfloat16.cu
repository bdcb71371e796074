// Wide wavefront kernels, LSTM, bfloat16.
#include "rnn/cuda/wavefront_wide_backward.cuh"
#include "rnn/cuda/wavefront_wide_forward.cuh"

namespace prnn {

template cudaError_t launch_wavefront_wide_forward<__nv_bfloat16>(const ResidentShape&, const WavefrontForwardParams&,
                                                                  cudaStream_t);
template cudaError_t launch_wavefront_wide_backward<__nv_bfloat16>(const ResidentShape&, const WavefrontBackwardParams&,
                                                                   cudaStream_t);

}  // namespace prnn
