// This folder's functions for the API, in a build without CUDA. Not reached: nobody gets a CUDA handle.
#include "core/cuda/no_cuda.h"
#include "rnnt/duration.h"
#include "rnnt/joint.h"
#include "rnnt/rnnt.h"

namespace prnn {

const RnntBackend& cuda_rnnt_backend() { fail_without_cuda(); }

const DurationBackend& cuda_duration_backend() { fail_without_cuda(); }

const JointBackend& cuda_joint_backend() { fail_without_cuda(); }

}  // namespace prnn
