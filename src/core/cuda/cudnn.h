// What a CUDA handle holds of cuDNN.
#pragma once

#include "core/cuda/cudnn_library.h"
#include "core/handle.h"

namespace prnn {

// cuDNN's handle, set to the stream of `context`. Made at the first request, which is one for the size of a workspace
// or reserve space, so that no call that computes allocates.
void* cudnn_handle(prnnContext& context);
void* cudnn_without_dropout(prnnContext& context);  // a dropout descriptor of probability 0, made with the handle

void destroy_cudnn(prnnContext& context);

// Throws EXECUTION_FAILED (NOT_SUPPORTED where cuDNN says that) unless the status is cuDNN's success.
void require_cudnn(int status, const char* call);

// A cuDNN object, destroyed with this one.
class CudnnObject {
 public:
  CudnnObject(int (*create)(void**), int (*destroy)(void*)) : destroy_(destroy) {
    require_cudnn(create(&object_), "a descriptor");
  }
  CudnnObject(const CudnnObject&) = delete;
  CudnnObject& operator=(const CudnnObject&) = delete;
  ~CudnnObject() { destroy_(object_); }
  void* get() const { return object_; }

 private:
  int (*destroy_)(void*);
  void* object_ = nullptr;
};

}  // namespace prnn
