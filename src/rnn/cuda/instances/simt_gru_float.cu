// Simt kernels, GRU.
#include "rnn/cuda/simt/backward.cuh"
#include "rnn/cuda/simt/forward.cuh"

namespace prnn {

template cudaError_t launch_simt_forward<PRNN_GRU, 1>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_simt_forward<PRNN_GRU, 2>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_simt_forward<PRNN_GRU, 3>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_simt_forward<PRNN_GRU, 4>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_simt_backward<PRNN_GRU, 1>(const ResidentShape&, const BackwardParams&, cudaStream_t);
template cudaError_t launch_simt_backward<PRNN_GRU, 2>(const ResidentShape&, const BackwardParams&, cudaStream_t);
template cudaError_t launch_simt_backward<PRNN_GRU, 3>(const ResidentShape&, const BackwardParams&, cudaStream_t);
template cudaError_t launch_simt_backward<PRNN_GRU, 4>(const ResidentShape&, const BackwardParams&, cudaStream_t);

}  // namespace prnn
