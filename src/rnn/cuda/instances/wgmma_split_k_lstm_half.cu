// Split-K wgmma kernels, LSTM, half.
#include "rnn/cuda/wgmma/split_k_backward.cuh"
#include "rnn/cuda/wgmma/split_k_forward.cuh"

namespace prnn {

template cudaError_t launch_wgmma_split_k_forward<__half, PRNN_LSTM>(const ResidentShape&, const ForwardParams&,
                                                                     cudaStream_t);
template cudaError_t launch_wgmma_split_k_backward<__half, PRNN_LSTM>(const ResidentShape&, const BackwardParams&,
                                                                      cudaStream_t);

}  // namespace prnn
