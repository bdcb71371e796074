// Small things that every launcher needs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/status.h"

namespace prnn {

// Throws `status` with what could not be done, and CUDA's reason, unless the call succeeded.
inline void require_success(cudaError_t error, prnnStatus_t status, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // not to be taken for a later call's
  fail(status, "%s: %s", what, cudaGetErrorString(error));
}

// Throws EXECUTION_FAILED if the launch just made was refused. It does not wait for the kernel.
inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess)
    fail(PRNN_STATUS_EXECUTION_FAILED, "%s could not be launched: %s", kernel, cudaGetErrorString(error));
}

// SMs, an H200's, for grids and splits of sums of a fixed size. Not the device's own number, so that sums are rounded
// alike on all GPUs; on any of them blocks take what is left in turns.
constexpr int kGridMultiprocessors = 132;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace prnn
