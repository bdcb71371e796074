// Wgmma wavefront kernels, LSTM, bfloat16.
#include "rnn/cuda/wavefront/wgmma_backward.cuh"
#include "rnn/cuda/wavefront/wgmma_forward.cuh"

namespace prnn {

template cudaError_t launch_wavefront_wgmma_forward<__nv_bfloat16>(const ResidentShape&, const WavefrontForwardParams&,
                                                                   cudaStream_t);
template cudaError_t launch_wavefront_wgmma_backward<__nv_bfloat16>(const ResidentShape&,
                                                                    const WavefrontBackwardParams&, cudaStream_t);

}  // namespace prnn
