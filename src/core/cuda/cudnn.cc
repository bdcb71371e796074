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

struct CudnnState {
  void* handle = nullptr;
  void* without_dropout = nullptr;
  prnnStream_t stream = nullptr;  // that the handle is set to
  std::unique_ptr<CudnnCache> cache;

  CudnnState() {
    const CudnnLibrary& cudnn = require_cudnn_library();
    require_cudnn(cudnn.create(&handle), "to make a handle");
    try {
      require_cudnn(cudnn.create_dropout(&without_dropout), "a descriptor");
      require_cudnn(cudnn.set_dropout(without_dropout, handle, 0, nullptr, 0, 0), "dropout of 0");
    } catch (...) {
      release();
      throw;
    }
  }
  ~CudnnState() {
    cache.reset();
    release();
  }

 private:
  void release() {
    const CudnnLibrary& cudnn = require_cudnn_library();
    if (without_dropout != nullptr) cudnn.destroy_dropout(without_dropout);
    cudnn.destroy(handle);
  }
};

void require_cudnn(int status, const char* call) {
  if (status == 0) return;
  const bool not_supported = status == 9 || status / 1000 == 3;  // as version 8 says it, and version 9
  fail(not_supported ? PRNN_STATUS_NOT_SUPPORTED : PRNN_STATUS_EXECUTION_FAILED, "cuDNN refused %s with status %d",
       call, status);
}

void* cudnn_handle(prnnContext& context) {
  CudnnState*& state = cuda_state(context).cudnn;
  if (state == nullptr) {
    const DeviceGuard guard(context.device);
    state = new CudnnState;
  }
  if (state->stream != context.stream) {
    require_cudnn(require_cudnn_library().set_stream(state->handle, context.stream), "the stream");
    state->stream = context.stream;
  }
  return state->handle;
}

void* cudnn_without_dropout(prnnContext& context) { return cuda_state(context).cudnn->without_dropout; }

std::unique_ptr<CudnnCache>& cudnn_cache(prnnContext& context) {
  cudnn_handle(context);
  return cuda_state(context).cudnn->cache;
}

void destroy_cudnn(prnnContext& context) {
  CudnnState*& state = cuda_state(context).cudnn;
  delete state;
  state = nullptr;
}

}  // namespace prnn
