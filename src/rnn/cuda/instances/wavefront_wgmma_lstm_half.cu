// Wgmma wavefront kernels, LSTM, half.
#include "rnn/cuda/wavefront/wgmma_backward.cuh"
#include "rnn/cuda/wavefront/wgmma_forward.cuh"

namespace prnn {

template cudaError_t launch_wavefront_wgmma_forward<__half>(const ResidentShape&, const WavefrontForwardParams&,
                                                            cudaStream_t);
template cudaError_t launch_wavefront_wgmma_backward<__half>(const ResidentShape&, const WavefrontBackwardParams&,
                                                             cudaStream_t);

}  // namespace prnn
