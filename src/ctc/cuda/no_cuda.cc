// The functions of this folder in a build without CUDA. Not reached: nobody gets a CUDA handle.
#include "core/cuda/no_cuda.h"
#include "ctc/ctc.h"

namespace prnn {

const CtcBackend& cuda_ctc_backend() { fail_without_cuda(); }

}  // namespace prnn
