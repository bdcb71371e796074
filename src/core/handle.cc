#include "core/handle.h"

#include "core/cuda/cuda_state.h"

extern "C" prnnStatus_t prnnCreateCPU(prnnHandle_t* handle) {
  return prnn::guarded(nullptr, [&] {
    prnn::require_not_null(handle, "handle");
    *handle = prnn::ObjectPool<prnnContext>::instance().create();
  });
}

extern "C" prnnStatus_t prnnCreate(prnnHandle_t* handle) {
  return prnn::guarded(nullptr, [&] {
    prnn::require_not_null(handle, "handle");
    auto& pool = prnn::ObjectPool<prnnContext>::instance();
    prnnContext* made = pool.create();
    try {
      prnn::init_cuda_state(*made);
    } catch (...) {
      pool.destroy(made);
      throw;
    }
    *handle = made;
  });
}

extern "C" prnnStatus_t prnnDestroy(prnnHandle_t handle) {
  return prnn::guarded(nullptr, [&] {
    if (handle == nullptr) return;
    prnn::require_handle(handle);
    if (!handle->is_cpu()) prnn::destroy_cuda_state(*handle);
    prnn::ObjectPool<prnnContext>::instance().destroy(handle);
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
