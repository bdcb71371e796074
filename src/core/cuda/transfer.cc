#include "core/cuda/transfer.h"

#include <cuda_runtime_api.h>

#include "core/cuda/launch.h"

namespace prnn {

int current_cuda_device() {
  int device = 0;
  require_success(cudaGetDevice(&device), PRNN_STATUS_NOT_INITIALIZED, "there is no usable CUDA device");
  return device;
}

void copy_and_wait(const prnnContext& context, void* to, const void* from, size_t bytes) {
  require_success(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, context.stream), PRNN_STATUS_EXECUTION_FAILED,
                  "memory could not be copied");
  require_success(cudaStreamSynchronize(context.stream), PRNN_STATUS_EXECUTION_FAILED,
                  "the handle's stream could not be waited for");
}

}  // namespace prnn
