// The extension module prnn._C: one binder per source file of this folder, called here.
#include <pybind11/pybind11.h>

#include <string>

#include "prnn_types.h"

namespace py = pybind11;

namespace prnn_python {
void bind_errors(py::module_& module);
void bind_types(py::module_& module);
void bind_sequences(py::module_& module);
void bind_persistent_rnn(py::module_& module);
void bind_losses(py::module_& module);
void bind_call(py::module_& module);
void bind_decode(py::module_& module);
}  // namespace prnn_python

PYBIND11_MODULE(_C, m) {
  m.doc() = "Bindings of libprnn: raw pointers in, exceptions out. The public interface is the package prnn.";
  m.attr("__version__") =
      std::to_string(PRNN_MAJOR) + "." + std::to_string(PRNN_MINOR) + "." + std::to_string(PRNN_PATCHLEVEL);
  m.attr("BUILT_FOR") = PRNN_BUILT_FOR;  // which the build defines
  prnn_python::bind_errors(m);
  prnn_python::bind_types(m);
  prnn_python::bind_sequences(m);
  prnn_python::bind_persistent_rnn(m);
  prnn_python::bind_losses(m);
  prnn_python::bind_call(m);
  prnn_python::bind_decode(m);
}
