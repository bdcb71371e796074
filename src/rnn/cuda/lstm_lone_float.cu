// Lone kernels, LSTM.
#include "rnn/cuda/resident_lone_backward.cuh"
#include "rnn/cuda/resident_lone_forward.cuh"

namespace prnn {

template cudaError_t launch_lone_forward<PRNN_LSTM, 1>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_lone_forward<PRNN_LSTM, 2>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_lone_forward<PRNN_LSTM, 3>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_lone_forward<PRNN_LSTM, 4>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_lone_backward<PRNN_LSTM, 1>(const ResidentShape&, const BackwardParams&, cudaStream_t);
template cudaError_t launch_lone_backward<PRNN_LSTM, 2>(const ResidentShape&, const BackwardParams&, cudaStream_t);
template cudaError_t launch_lone_backward<PRNN_LSTM, 3>(const ResidentShape&, const BackwardParams&, cudaStream_t);
template cudaError_t launch_lone_backward<PRNN_LSTM, 4>(const ResidentShape&, const BackwardParams&, cudaStream_t);

}  // namespace prnn
