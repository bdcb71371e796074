// How errors travel inside the library: a Failure is thrown by whatever finds the fault and is turned into a status and
// a message at the C boundary by guarded(). Nothing else catches.
#pragma once

#include <cstddef>
#include <exception>
#include <initializer_list>
#include <new>
#include <string>

#include "prnn_types.h"

namespace prnn {

constexpr int kMessageSize = 1024;  // of a message with its NUL; what is longer is cut off

class Failure : public std::exception {
 public:
  Failure(prnnStatus_t status, std::string message) : status_(status), message_(std::move(message)) {}
  prnnStatus_t status() const { return status_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  prnnStatus_t status_;
  std::string message_;
};

// Throws a Failure. The message is one sentence without a full stop that names the argument, its value and what would
// be accepted: fail(PRNN_STATUS_BAD_PARAM, "numLayers is %d; it must be at least 1", numLayers).
[[noreturn]] void fail(prnnStatus_t status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Throws BAD_PARAM with "<name> is NULL".
void require_not_null(const void* pointer, const char* name);

// An array that the caller gave, with its name for messages.
struct NamedArray {
  const void* data;
  const char* name;
};

// Throws BAD_PARAM unless each array is aligned to so many bytes; NULL is.
void require_aligned(size_t bytes, std::initializer_list<NamedArray> arrays);

// Stores the message on the handle, or for the thread when there is no handle; returns the status. Allocates nothing.
prnnStatus_t record_failure(prnnHandle_t handle, prnnStatus_t status, const char* message) noexcept;

// Runs the body of a C function. No exception leaves it.
template <class Body>
prnnStatus_t guarded(prnnHandle_t handle, Body&& body) noexcept {
  try {
    body();
    return PRNN_STATUS_SUCCESS;
  } catch (const Failure& failure) {
    return record_failure(handle, failure.status(), failure.what());
  } catch (const std::bad_alloc&) {
    return record_failure(handle, PRNN_STATUS_ALLOC_FAILED, "host memory could not be allocated");
  } catch (const std::exception& error) {
    return record_failure(handle, PRNN_STATUS_INTERNAL_ERROR, error.what());
  } catch (...) {
    return record_failure(handle, PRNN_STATUS_INTERNAL_ERROR, "an unknown exception was thrown");
  }
}

}  // namespace prnn
