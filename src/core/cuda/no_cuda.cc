// The functions of this folder in a build without CUDA. Only init_cuda_state() can be reached: nobody gets a CUDA
// handle.
#include "core/cuda/no_cuda.h"

#include "core/cuda/cuda_state.h"
#include "core/cuda/transfer.h"

namespace prnn {

void fail_without_cuda() {
  fail(PRNN_STATUS_NOT_SUPPORTED,
       "this build of prnn has no CUDA; use prnnCreateCPU, or build it with nvcc and cuda=on");
}

void init_cuda_state(prnnContext&) { fail_without_cuda(); }

void destroy_cuda_state(prnnContext&) {}

int current_cuda_device() { fail_without_cuda(); }

void copy_and_wait(const prnnContext&, void*, const void*, size_t) { fail_without_cuda(); }

void write_dropout_states(prnnContext&, void*, const DropoutStates&) { fail_without_cuda(); }

const GpuRow& cuda_gpu_row(const prnnContext&) { fail_without_cuda(); }

std::string describe_gpu(const prnnContext&) { fail_without_cuda(); }

void check_earlier_calls(prnnContext&) { fail_without_cuda(); }

}  // namespace prnn
