// Team kernels, GRU, half.
#include "rnn/cuda/resident_team_backward.cuh"
#include "rnn/cuda/resident_team_forward.cuh"

namespace prnn {

template cudaError_t launch_team_forward<__half, PRNN_GRU>(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_team_backward<__half, PRNN_GRU>(const ResidentShape&, const BackwardParams&, cudaStream_t);

}  // namespace prnn
