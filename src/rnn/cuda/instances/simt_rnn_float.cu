// Simt kernels, RNN.
#include "rnn/cuda/simt/backward.cuh"
#include "rnn/cuda/simt/forward.cuh"

namespace prnn {

template cudaError_t launch_simt_forward<PRNN_RNN_TANH, 1>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_simt_forward<PRNN_RNN_TANH, 2>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_simt_forward<PRNN_RNN_TANH, 3>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_simt_forward<PRNN_RNN_TANH, 4>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_simt_forward<PRNN_RNN_TANH, 5>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_simt_backward<PRNN_RNN_TANH, 1>(const ResidentShape&, const BackwardParams&, cudaStream_t);
template cudaError_t launch_simt_backward<PRNN_RNN_TANH, 2>(const ResidentShape&, const BackwardParams&, cudaStream_t);
template cudaError_t launch_simt_backward<PRNN_RNN_TANH, 3>(const ResidentShape&, const BackwardParams&, cudaStream_t);
template cudaError_t launch_simt_backward<PRNN_RNN_TANH, 4>(const ResidentShape&, const BackwardParams&, cudaStream_t);
template cudaError_t launch_simt_backward<PRNN_RNN_TANH, 5>(const ResidentShape&, const BackwardParams&, cudaStream_t);

}  // namespace prnn
