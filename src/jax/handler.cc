#include "handler.h"

#include <climits>

namespace prnn_jax {
namespace {

// A thread's handle of the CPU.
class CpuHandle {
 public:
  CpuHandle() { check(prnnCreateCPU(&handle_)); }
  ~CpuHandle() { prnnDestroy(handle_); }
  prnnHandle_t get() const { return handle_; }

 private:
  prnnHandle_t handle_ = nullptr;
};

ffi::ErrorCode code_of(prnnStatus_t status) {
  switch (status) {
    case PRNN_STATUS_BAD_PARAM: return ffi::ErrorCode::kInvalidArgument;
    case PRNN_STATUS_NOT_SUPPORTED:
    case PRNN_STATUS_ARCH_MISMATCH: return ffi::ErrorCode::kUnimplemented;
    case PRNN_STATUS_ALLOC_FAILED: return ffi::ErrorCode::kResourceExhausted;
    default: return ffi::ErrorCode::kInternal;
  }
}

}  // namespace

ffi::Error Failure::error() const { return {code_of(status_), "prnn: " + message_}; }

void check(prnnStatus_t status, prnnHandle_t handle) {
  if (status != PRNN_STATUS_SUCCESS) throw Failure(status, prnnGetLastErrorMessage(handle));
}

prnnHandle_t cpu_handle() {
  static thread_local const CpuHandle handle;
  return handle.get();
}

prnnHandle_t cuda_handle(prnnStream_t stream) {
  prnnHandle_t handle = nullptr;
  check(prnnBorrowHandle(stream, &handle));
  return handle;
}

int dimension_from_end(const Array& array, int index) {
  const auto dimensions = array.dimensions();
  if (static_cast<size_t>(index) > dimensions.size()) throw Failure(PRNN_STATUS_BAD_PARAM, "an array has too few axes");
  const int64_t size = dimensions[dimensions.size() - static_cast<size_t>(index)];
  if (size > INT_MAX) throw Failure(PRNN_STATUS_NOT_SUPPORTED, "an axis is longer than 2^31 - 1");
  return static_cast<int>(size);
}

prnnDataType_t type_of(const Array& array) {
  switch (array.element_type()) {
    case ffi::DataType::F32: return PRNN_DATA_FLOAT;
    case ffi::DataType::F64: return PRNN_DATA_DOUBLE;
    case ffi::DataType::F16: return PRNN_DATA_HALF;
    case ffi::DataType::BF16: return PRNN_DATA_BFLOAT16;
    default: throw Failure(PRNN_STATUS_BAD_PARAM, "an array has a type that prnn does not have");
  }
}

}  // namespace prnn_jax

// The minor version of XLA's FFI whose headers the handlers were built with. A jaxlib with an older one refuses them,
// and with them its whole backend.
extern "C" PRNN_API int prnnJaxFfiMinor() { return XLA_FFI_API_MINOR; }
