// Forward wavefront kernels, RNN, bfloat16.
#include "rnn/cuda/wavefront/forward.cuh"

namespace prnn {

template cudaError_t launch_wavefront_forward<__nv_bfloat16, PRNN_RNN_TANH>(const ResidentShape&,
                                                                            const WavefrontForwardParams&,
                                                                            cudaStream_t);

}  // namespace prnn
