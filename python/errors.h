// Statuses of libprnn as Python exceptions.
#pragma once

#include <pybind11/pybind11.h>

#include "prnn_types.h"

namespace prnn_python {

// Raises unless the status is SUCCESS: BAD_PARAM as ValueError, NOT_SUPPORTED and ARCH_MISMATCH as
// prnn._C.NotSupportedError (a NotImplementedError), ALLOC_FAILED as MemoryError, the others as RuntimeError. The text
// is that of prnnGetLastErrorMessage: the handle's, or the thread's for a call without one.
void check(prnnStatus_t status, prnnHandle_t handle = nullptr);

// Makes prnn._C.NotSupportedError and has `check` raise it.
void bind_errors(pybind11::module_& module);

}  // namespace prnn_python
