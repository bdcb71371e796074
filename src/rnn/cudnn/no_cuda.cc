// The functions of this folder in a build without CUDA. Not reached: nobody gets a CUDA handle.
#include "core/cuda/no_cuda.h"
#include "rnn/backend.h"

namespace prnn {

SharedRnnBackend select_cuda_backend(prnnContext&, prnnRNNBackend_t, const RnnProblem&) { fail_without_cuda(); }

}  // namespace prnn
