// Binds prnn_types.h.
#include <pybind11/pybind11.h>

#include "errors.h"
#include "handle.h"

namespace py = pybind11;

namespace prnn_python {

Handle Handle::cpu() {
  prnnHandle_t handle = nullptr;
  check(prnnCreateCPU(&handle));
  return Handle(handle);
}

Handle Handle::cuda() {
  prnnHandle_t handle = nullptr;
  check(prnnCreate(&handle));
  return Handle(handle);
}

void Handle::set_stream(uintptr_t stream) {
  check(prnnSetStream(handle_, reinterpret_cast<prnnStream_t>(stream)), handle_);
}

size_t Handle::dropout_states_size() const {
  size_t size = 0;
  check(prnnDropoutGetStatesSize(handle_, &size), handle_);
  return size;
}

void bind_types(py::module_& module) {
  module.attr("FLOAT") = static_cast<int>(PRNN_DATA_FLOAT);
  module.attr("DOUBLE") = static_cast<int>(PRNN_DATA_DOUBLE);
  module.attr("HALF") = static_cast<int>(PRNN_DATA_HALF);
  module.attr("BFLOAT16") = static_cast<int>(PRNN_DATA_BFLOAT16);

  py::class_<Handle>(module, "Handle", "A library handle; used by one thread at a time.")
      .def_static("cpu", &Handle::cpu, "A handle whose pointers are host pointers.")
      .def_static("cuda", &Handle::cuda, "A handle on the current CUDA device.")
      .def("set_stream", &Handle::set_stream, py::arg("stream"), "The CUDA stream of all later calls, as an integer.")
      .def("dropout_states_size", &Handle::dropout_states_size, "Bytes that the states of dropout take.");
}

}  // namespace prnn_python
