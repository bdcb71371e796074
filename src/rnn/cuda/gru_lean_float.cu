// Lean resident kernels, GRU, float.
#include "rnn/cuda/resident_lean_backward.cuh"
#include "rnn/cuda/resident_lean_forward.cuh"

namespace prnn {

template cudaError_t launch_lean_forward<float, PRNN_GRU>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_lean_backward<float, PRNN_GRU>(const ResidentShape&, const BackwardParams&, cudaStream_t);

}  // namespace prnn
