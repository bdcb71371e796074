#include "core/cuda/cuda_state.h"

#include <cuda_runtime_api.h>

#include <memory>

#include "core/cuda/cublas.h"
#include "core/cuda/cudnn.h"
#include "core/cuda/dropout_states.h"

namespace prnn {
namespace {

void require_success(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // not to be taken for a later call's
  fail(PRNN_STATUS_NOT_INITIALIZED, "%s: %s", what, cudaGetErrorString(error));
}

}  // namespace

void init_cuda_state(prnnContext& context) {
  int device = 0;
  cudaDeviceProp properties;
  require_success(cudaGetDevice(&device), "there is no usable CUDA device");
  require_success(cudaGetDeviceProperties(&properties, device), "the current CUDA device cannot be asked what it is");
  auto made = std::make_unique<CudaState>();
  if (const GpuRow* row = match_gpu_row(properties.name, 10 * properties.major + properties.minor)) made->row = *row;
  made->row.multiprocessors = properties.multiProcessorCount;
  context.cuda = made.release();
  context.device = device;
  try {
    CudaState& state = cuda_state(context);
    require_success(cudaHostAlloc(reinterpret_cast<void**>(&state.gave_up), sizeof(int),
                                  cudaHostAllocPortable | cudaHostAllocMapped),
                    "host memory that the GPU can write could not be had");
    *state.gave_up = 0;
    require_success(cudaHostGetDevicePointer(reinterpret_cast<void**>(&state.gave_up_on_device), state.gave_up, 0),
                    "host memory could not be mapped for the GPU");
    create_cublas(context);
  } catch (...) {
    destroy_cuda_state(context);
    throw;
  }
}

void destroy_cuda_state(prnnContext& context) {
  destroy_cudnn(context);
  destroy_cublas(context);
  cudaFreeHost(cuda_state(context).gave_up);
  delete &cuda_state(context);
  context.cuda = nullptr;
}

void write_dropout_states(prnnContext& context, void* states, const DropoutStates& initial) {
  run_write_dropout_states(static_cast<DropoutStates*>(states), initial, context.stream);
}

const GpuRow& cuda_gpu_row(const prnnContext& context) {
  const GpuRow& row = cuda_state(context).row;
  if (row.name == nullptr) fail(PRNN_STATUS_ARCH_MISMATCH, "the GPU table has no row for this GPU's architecture");
  return row;
}

void check_earlier_calls(prnnContext& context) {
  volatile int* gave_up = cuda_state(context).gave_up;
  if (*gave_up == 0) return;
  *gave_up = 0;
  fail(PRNN_STATUS_EXECUTION_FAILED,
       "a resident kernel of an earlier call waited in vain for its other blocks and gave up; that call's outputs are "
       "not valid");
}

}  // namespace prnn
