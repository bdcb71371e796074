#include "core/cuda/cudnn.h"

#include <cuda_runtime_api.h>

#include "core/cuda/cuda_state.h"

namespace prnn {
namespace {

// Makes a device the current one for as long as it lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    cudaGetDevice(&before_);
    if (device != before_) cudaSetDevice(device);
    changed_ = device != before_;
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace

void require_cudnn(int status, const char* call) {
  if (status == 0) return;
  const bool not_supported = status == 9 || status / 1000 == 3;  // as version 8 says it, and version 9
  fail(not_supported ? PRNN_STATUS_NOT_SUPPORTED : PRNN_STATUS_EXECUTION_FAILED, "cuDNN refused %s with status %d",
       call, status);
}

void* cudnn_handle(prnnContext& context) {
  CudaState& state = cuda_state(context);
  const CudnnLibrary& cudnn = require_cudnn_library();
  if (state.cudnn == nullptr) {
    const DeviceGuard guard(context.device);
    require_cudnn(cudnn.create(&state.cudnn), "to make a handle");
    require_cudnn(cudnn.create_dropout(&state.cudnn_dropout), "a descriptor");
    require_cudnn(cudnn.set_dropout(state.cudnn_dropout, state.cudnn, 0, nullptr, 0, 0), "dropout of 0");
  }
  require_cudnn(cudnn.set_stream(state.cudnn, context.stream), "the stream");
  return state.cudnn;
}

void* cudnn_without_dropout(prnnContext& context) { return cuda_state(context).cudnn_dropout; }

void destroy_cudnn(prnnContext& context) {
  CudaState& state = cuda_state(context);
  if (state.cudnn == nullptr) return;
  const CudnnLibrary& cudnn = require_cudnn_library();
  if (state.cudnn_dropout != nullptr) cudnn.destroy_dropout(state.cudnn_dropout);
  cudnn.destroy(state.cudnn);
  state.cudnn = state.cudnn_dropout = nullptr;
}

}  // namespace prnn
