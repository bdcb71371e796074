// The extension module prnn._C: one binder per source file of this folder, called here.
#include <pybind11/pybind11.h>

#include <string>

#include "prnn_types.h"

namespace py = pybind11;

PYBIND11_MODULE(_C, m) {
  m.doc() = "Bindings of libprnn: raw pointers in, exceptions out. The public interface is the package prnn.";
  m.attr("__version__") =
      std::to_string(PRNN_MAJOR) + "." + std::to_string(PRNN_MINOR) + "." + std::to_string(PRNN_PATCHLEVEL);
}
