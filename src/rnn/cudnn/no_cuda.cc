// The functions of this folder in a build without CUDA. Not reached: nobody gets a CUDA handle.
#include "core/cuda/no_cuda.h"
#include "rnn/problem.h"

namespace prnn {

SharedRnnBackend cuda_rnn_backend(prnnHandle_t, prnnRNNBackend_t, const RnnProblem&) { fail_without_cuda(); }

}  // namespace prnn
