// Where the message of a failure stays until it is asked for: with the handle, or with the thread.
#include <cstdio>

#include "core/handle.h"
#include "core/status.h"

namespace prnn {
namespace {

thread_local char thread_message[kMessageSize] = "";

}  // namespace

prnnStatus_t record_failure(prnnHandle_t handle, prnnStatus_t status, const char* message) noexcept {
  std::snprintf(is_valid(handle) ? handle->message : thread_message, kMessageSize, "%s", message);
  return status;
}

}  // namespace prnn

extern "C" const char* prnnGetLastErrorMessage(prnnHandle_t handle) {
  return prnn::is_valid(handle) ? handle->message : prnn::thread_message;
}
