// Backward resident kernels, RNN, tf32.
#include "rnn/cuda/common/tf32.cuh"
#include "rnn/cuda/mma/backward.cuh"

namespace prnn {

template cudaError_t launch_mma_backward<Tf32, PRNN_RNN_TANH, 2, 1>(const ResidentShape&, const BackwardParams&,
                                                                    cudaStream_t);
template cudaError_t launch_mma_backward<Tf32, PRNN_RNN_TANH, 4, 1>(const ResidentShape&, const BackwardParams&,
                                                                    cudaStream_t);

}  // namespace prnn
