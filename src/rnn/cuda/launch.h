// Launches the kernel that a plan names. Plain C++: the kernels are known from the table in rnn/plan/kernels.h.
#pragma once

#include "rnn/cuda/common/params.h"
#include "rnn/cuda/layer_norm/params.h"
#include "rnn/cuda/wavefront/params.h"
#include "rnn/plan/plan.h"

namespace prnn {

// Enqueues shape.kernel on the current device. The status is cudaErrorInvalidDeviceFunction where the binary has no
// code for the device, cudaErrorCooperativeLaunchTooLarge where not every block has a place, and cudaErrorInvalidValue
// where the kernel takes other parameters.
template <class Params>
cudaError_t launch_kernel(const ResidentShape& shape, const Params& params, cudaStream_t stream);

}  // namespace prnn
