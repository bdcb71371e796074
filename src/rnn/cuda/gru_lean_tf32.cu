// Lean resident kernels, GRU, tf32.
#include "rnn/cuda/resident_lean_backward.cuh"
#include "rnn/cuda/resident_lean_forward.cuh"
#include "rnn/cuda/resident_tf32.cuh"

namespace prnn {

template cudaError_t launch_lean_forward<Tf32, PRNN_GRU>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_lean_backward<Tf32, PRNN_GRU>(const ResidentShape&, const BackwardParams&, cudaStream_t);

}  // namespace prnn
