#include "core/status.h"

#include <cstdarg>
#include <cstdint>
#include <cstdio>

#include "core/enums.h"

namespace prnn {

void fail(prnnStatus_t status, const char* format, ...) {
  char text[kMessageSize];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw Failure(status, text);
}

void require_not_null(const void* pointer, const char* name) {
  if (pointer == nullptr) fail(PRNN_STATUS_BAD_PARAM, "%s is NULL", name);
}

void require_aligned(size_t bytes, std::initializer_list<NamedArray> arrays) {
  for (const auto& [data, name] : arrays) {
    if (reinterpret_cast<uintptr_t>(data) % bytes == 0) continue;
    fail(PRNN_STATUS_BAD_PARAM, "%s is at address %p; it must be aligned to %zu bytes", name, data, bytes);
  }
}

}  // namespace prnn

extern "C" const char* prnnGetErrorString(prnnStatus_t status) {
  switch (prnn::integer_in(status)) {
    case PRNN_STATUS_SUCCESS: return "PRNN_STATUS_SUCCESS";
    case PRNN_STATUS_NOT_INITIALIZED: return "PRNN_STATUS_NOT_INITIALIZED";
    case PRNN_STATUS_ALLOC_FAILED: return "PRNN_STATUS_ALLOC_FAILED";
    case PRNN_STATUS_BAD_PARAM: return "PRNN_STATUS_BAD_PARAM";
    case PRNN_STATUS_INTERNAL_ERROR: return "PRNN_STATUS_INTERNAL_ERROR";
    case PRNN_STATUS_INVALID_VALUE: return "PRNN_STATUS_INVALID_VALUE";
    case PRNN_STATUS_ARCH_MISMATCH: return "PRNN_STATUS_ARCH_MISMATCH";
    case PRNN_STATUS_MAPPING_ERROR: return "PRNN_STATUS_MAPPING_ERROR";
    case PRNN_STATUS_EXECUTION_FAILED: return "PRNN_STATUS_EXECUTION_FAILED";
    case PRNN_STATUS_NOT_SUPPORTED: return "PRNN_STATUS_NOT_SUPPORTED";
    case PRNN_STATUS_LICENSE_ERROR: return "PRNN_STATUS_LICENSE_ERROR";
  }
  return "PRNN_STATUS_UNKNOWN";
}

extern "C" size_t prnnGetVersion(void) { return PRNN_VERSION; }
