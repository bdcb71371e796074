// Simt kernels, LSTM.
#include "rnn/cuda/simt/backward.cuh"
#include "rnn/cuda/simt/forward.cuh"

namespace prnn {

template cudaError_t launch_simt_forward<PRNN_LSTM, 1>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_simt_forward<PRNN_LSTM, 2>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_simt_forward<PRNN_LSTM, 3>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_simt_forward<PRNN_LSTM, 4>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_simt_backward<PRNN_LSTM, 1>(const ResidentShape&, const BackwardParams&, cudaStream_t);
template cudaError_t launch_simt_backward<PRNN_LSTM, 2>(const ResidentShape&, const BackwardParams&, cudaStream_t);
template cudaError_t launch_simt_backward<PRNN_LSTM, 3>(const ResidentShape&, const BackwardParams&, cudaStream_t);
template cudaError_t launch_simt_backward<PRNN_LSTM, 4>(const ResidentShape&, const BackwardParams&, cudaStream_t);

}  // namespace prnn
