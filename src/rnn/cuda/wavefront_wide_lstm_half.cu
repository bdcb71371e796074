// Wide wavefront kernels, LSTM, half.
#include "rnn/cuda/wavefront_wide_backward.cuh"
#include "rnn/cuda/wavefront_wide_forward.cuh"

namespace prnn {

template cudaError_t launch_wavefront_wide_forward<__half>(const ResidentShape&, const WavefrontForwardParams&,
                                                           cudaStream_t);
template cudaError_t launch_wavefront_wide_backward<__half>(const ResidentShape&, const WavefrontBackwardParams&,
                                                            cudaStream_t);

}  // namespace prnn
