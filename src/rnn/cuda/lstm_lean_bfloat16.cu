// Lean resident kernels, LSTM, bfloat16.
#include "rnn/cuda/resident_lean_backward.cuh"
#include "rnn/cuda/resident_lean_forward.cuh"

namespace prnn {

template cudaError_t launch_lean_forward<__nv_bfloat16, PRNN_LSTM>(const ResidentShape&, const ForwardParams&,
                                                                   cudaStream_t);
template cudaError_t launch_lean_backward<__nv_bfloat16, PRNN_LSTM>(const ResidentShape&, const BackwardParams&,
                                                                    cudaStream_t);

}  // namespace prnn
