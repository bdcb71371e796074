// Handles that the library keeps for a thread, and copies: all of CUDA that the headers in include/compat/ need.
#include <cstring>
#include <map>

#include "core/cuda/transfer.h"
#include "core/handle.h"
#include "prnn_transfer.h"

namespace prnn {
namespace {

// The calling thread's handles by their device.
class BorrowedHandles {
 public:
  ~BorrowedHandles() {
    for (const auto& [device, handle] : of_) prnnDestroy(handle);
  }
  prnnHandle_t& of(int device) { return of_[device]; }

 private:
  std::map<int, prnnHandle_t> of_;
};

}  // namespace
}  // namespace prnn

using namespace prnn;

extern "C" prnnStatus_t prnnBorrowHandle(prnnStream_t stream, prnnHandle_t* handle) {
  static thread_local BorrowedHandles handles;
  prnnStatus_t made = PRNN_STATUS_SUCCESS;
  const prnnStatus_t status = guarded(nullptr, [&] {
    require_not_null(handle, "handle");
    prnnHandle_t& kept = handles.of(current_cuda_device());
    if (kept == nullptr) made = prnnCreate(&kept);
    if (made != PRNN_STATUS_SUCCESS) return;  // prnnCreate has left its message
    kept->stream = stream;
    *handle = kept;
  });
  return status == PRNN_STATUS_SUCCESS ? made : status;
}

extern "C" prnnStatus_t prnnCopy(prnnHandle_t handle, void* to, const void* from, size_t sizeInBytes) {
  return guarded(handle, [&] {
    require_handle(handle);
    if (sizeInBytes == 0) return;
    require_not_null(to, "to");
    require_not_null(from, "from");
    if (handle->is_cpu())
      std::memcpy(to, from, sizeInBytes);
    else
      copy_and_wait(*handle, to, from, sizeInBytes);
  });
}
