// Launches what the program has of the kernels: launchers.inc, which site_scons/kernel_instances.py writes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu.h"
#include "rnn/cuda/launch.h"

namespace prnn {

struct Tf32;  // rnn/cuda/common/tf32.cuh

namespace {

template <class Params>
struct Launcher {
  KernelId kernel;
  cudaError_t (*function)(const ResidentShape&, const Params&, cudaStream_t);
};

}  // namespace

#include "launchers.inc"

namespace {

template <class Params, size_t COUNT>
bool launch(const Launcher<Params> (&launchers)[COUNT], const ResidentShape& shape, const Params& params) {
  for (const Launcher<Params>& l : launchers) {
    const KernelId &own = l.kernel, &wanted = shape.kernel;
    if (own.row != wanted.row || own.cell != wanted.cell || own.type != wanted.type) continue;
    if (l.function(shape, params, nullptr) == cudaSuccess && *params.sizes.timed_out == 0) return true;
    std::printf("the kernel does not end\n");
    std::exit(2);
  }
  return false;
}

}  // namespace
}  // namespace prnn
