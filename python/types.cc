// Binds prnn_types.h, the enumerators of persistent_rnn.h and the GPU table.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "errors.h"
#include "handle.h"
#include "persistent_rnn.h"

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

namespace {

std::vector<std::string> gpu_names() {
  std::vector<std::string> names;
  for (const char* name; (name = prnnGetGPUName(static_cast<int>(names.size()))) != nullptr;) names.emplace_back(name);
  return names;
}

std::string describe_gpu(const Handle& handle) {
  char text[256];
  check(prnnDescribeGPU(handle.get(), text, sizeof text), handle.get());
  return text;
}

}  // namespace

void bind_types(py::module_& module) {
  module.attr("FLOAT") = static_cast<int>(PRNN_DATA_FLOAT);
  module.attr("DOUBLE") = static_cast<int>(PRNN_DATA_DOUBLE);
  module.attr("HALF") = static_cast<int>(PRNN_DATA_HALF);
  module.attr("BFLOAT16") = static_cast<int>(PRNN_DATA_BFLOAT16);
  module.attr("RNN_RELU") = static_cast<int>(PRNN_RNN_RELU);
  module.attr("RNN_TANH") = static_cast<int>(PRNN_RNN_TANH);
  module.attr("LSTM") = static_cast<int>(PRNN_LSTM);
  module.attr("GRU") = static_cast<int>(PRNN_GRU);
  module.attr("SLSTM") = static_cast<int>(PRNN_SLSTM);
  module.attr("SLSTM_EXP") = static_cast<int>(PRNN_SLSTM_EXP);
  module.attr("PERSISTENT_BACKEND") = static_cast<int>(PRNN_PERSISTENT_BACKEND);
  module.attr("CUDNN_BACKEND") = static_cast<int>(PRNN_CUDNN_BACKEND);
  module.attr("ENGINE_MMA") = static_cast<int>(PRNN_ENGINE_MMA);
  module.attr("ENGINE_WGMMA") = static_cast<int>(PRNN_ENGINE_WGMMA);
  module.attr("ENGINE_WGMMA_MULTICAST") = static_cast<int>(PRNN_ENGINE_WGMMA_MULTICAST);
  module.attr("ENGINE_WGMMA_SPLIT_K") = static_cast<int>(PRNN_ENGINE_WGMMA_SPLIT_K);
  module.attr("BEST_BACKEND") = static_cast<int>(PRNN_BEST_BACKEND);
  module.attr("DEFAULT_MATH") = static_cast<int>(PRNN_DEFAULT_MATH);
  module.attr("WGRAD_MODE_SET") = static_cast<int>(PRNN_WGRAD_MODE_SET);
  module.attr("TF32_MATH") = static_cast<int>(PRNN_TENSOR_OP_MATH_ALLOW_CONVERSION);

  py::class_<Handle>(module, "Handle", "A library handle; used by one thread at a time.")
      .def_static("cpu", &Handle::cpu, "A handle whose pointers are host pointers.")
      .def_static("cuda", &Handle::cuda, "A handle on the current CUDA device.")
      .def("set_stream", &Handle::set_stream, py::arg("stream"), "The CUDA stream of all later calls, as an integer.")
      .def("dropout_states_size", &Handle::dropout_states_size, "Bytes that the states of dropout take.");

  module.def("gpu_names", &gpu_names, "The rows of the GPU table.");
  module.def("describe_gpu", &describe_gpu, "The GPU of a handle as a line of src/core/gpu_table.cc.");
}

}  // namespace prnn_python
