// Forward wavefront kernels, LSTM, half.
#include "rnn/cuda/wavefront/forward.cuh"

namespace prnn {

template cudaError_t launch_wavefront_forward<__half, PRNN_LSTM>(const ResidentShape&, const WavefrontForwardParams&,
                                                                 cudaStream_t);

}  // namespace prnn
