// A CUDA handle's objects of cuDNN.
#pragma once

#include <memory>

#include "core/cuda/cudnn_library.h"
#include "core/handle.h"

namespace prnn {

// Objects that a caller of cuDNN keeps from call to call on a handle: see cudnn_cache().
struct CudnnCache {
  virtual ~CudnnCache() = default;
};

// cuDNN's handle, set to the stream of `context`. Made at the first request, which is one for the size of a workspace
// or reserve space, so that no call that computes allocates.
void* cudnn_handle(prnnContext& context);
void* cudnn_without_dropout(prnnContext& context);  // a dropout descriptor of probability 0, made with the handle

// Empty until a caller puts something there; destroyed before cuDNN's handle. One thread uses a handle at a time.
std::unique_ptr<CudnnCache>& cudnn_cache(prnnContext& context);

void destroy_cudnn(prnnContext& context);

// Throws EXECUTION_FAILED (NOT_SUPPORTED where cuDNN says that) unless the status is cuDNN's success.
void require_cudnn(int status, const char* call);

// A cuDNN object, destroyed with this one.
class CudnnObject {
 public:
  CudnnObject(int (*create)(void**), int (*destroy)(void*)) : destroy_(destroy) {
    require_cudnn(create(&object_), "a descriptor");
  }
  CudnnObject(CudnnObject&& other) noexcept : destroy_(other.destroy_), object_(other.object_) {
    other.object_ = nullptr;
  }
  CudnnObject& operator=(CudnnObject&&) = delete;
  ~CudnnObject() {
    if (object_ != nullptr) destroy_(object_);
  }
  void* get() const { return object_; }

 private:
  int (*destroy_)(void*);
  void* object_ = nullptr;
};

}  // namespace prnn
