#include "core/cuda/cuda_state.h"

namespace prnn {

void init_cuda_state(prnnContext&) {
  fail(PRNN_STATUS_NOT_SUPPORTED,
       "this build of prnn has no CUDA; use prnnCreateCPU, or build it with nvcc and cuda=on");
}

void destroy_cuda_state(prnnContext&) {}

}  // namespace prnn
