#include "core/handle.h"

#include <memory>

#include "core/cuda/cuda_state.h"

extern "C" prnnStatus_t prnnCreateCPU(prnnHandle_t* handle) {
  return prnn::guarded(nullptr, [&] {
    prnn::require_not_null(handle, "handle");
    *handle = new prnnContext;
  });
}

extern "C" prnnStatus_t prnnCreate(prnnHandle_t* handle) {
  return prnn::guarded(nullptr, [&] {
    prnn::require_not_null(handle, "handle");
    auto made = std::make_unique<prnnContext>();
    prnn::init_cuda_state(*made);
    *handle = made.release();
  });
}

extern "C" prnnStatus_t prnnDestroy(prnnHandle_t handle) {
  return prnn::guarded(nullptr, [&] {
    if (handle == nullptr) return;
    prnn::require_handle(handle);
    if (!handle->is_cpu()) prnn::destroy_cuda_state(*handle);
    handle->tag = 0;
    delete handle;
  });
}

extern "C" prnnStatus_t prnnSetStream(prnnHandle_t handle, prnnStream_t stream) {
  return prnn::guarded(handle, [&] {
    prnn::require_handle(handle);
    handle->stream = stream;
  });
}

extern "C" prnnStatus_t prnnGetStream(prnnHandle_t handle, prnnStream_t* stream) {
  return prnn::guarded(handle, [&] {
    prnn::require_handle(handle);
    prnn::require_not_null(stream, "stream");
    *stream = handle->stream;
  });
}
