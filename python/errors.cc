#include "errors.h"

#include <stdexcept>
#include <string>

namespace py = pybind11;

namespace prnn_python {
namespace {

class NotSupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace

void check(prnnStatus_t status, prnnHandle_t handle) {
  if (status == PRNN_STATUS_SUCCESS) return;
  const std::string message = prnnGetLastErrorMessage(handle);
  switch (status) {
    case PRNN_STATUS_BAD_PARAM: throw py::value_error(message);
    case PRNN_STATUS_NOT_SUPPORTED:
    case PRNN_STATUS_ARCH_MISMATCH: throw NotSupported(message);
    case PRNN_STATUS_ALLOC_FAILED: PyErr_SetString(PyExc_MemoryError, message.c_str()); throw py::error_already_set();
    default: throw std::runtime_error(std::string(prnnGetErrorString(status)) + ": " + message);
  }
}

void bind_errors(py::module_& module) {
  py::register_exception<NotSupported>(module, "NotSupportedError", PyExc_NotImplementedError);
}

}  // namespace prnn_python
