// The Python object around a prnnHandle_t, for the binders that take one.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "errors.h"
#include "prnn_types.h"

namespace prnn_python {

// Owns a library handle.
class Handle {
 public:
  static Handle cpu();
  static Handle cuda();
  Handle(Handle&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  Handle& operator=(Handle&&) = delete;
  ~Handle() { prnnDestroy(handle_); }

  prnnHandle_t get() const { return handle_; }
  void set_stream(uintptr_t stream);
  size_t dropout_states_size() const;

 private:
  explicit Handle(prnnHandle_t handle) : handle_(handle) {}

  prnnHandle_t handle_;
};

// A pointer that came from Python as an integer; 0 is NULL.
template <class T = void>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// Runs a function of the library, function(prnnHandle_t), without Python's lock.
template <class Function>
void run(const Handle& handle, const Function& function) {
  prnnStatus_t status;
  {
    pybind11::gil_scoped_release release;
    status = function(handle.get());
  }
  check(status, handle.get());
}

}  // namespace prnn_python
