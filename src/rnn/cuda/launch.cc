#include "rnn/cuda/launch.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <iterator>

namespace prnn {

struct Tf32;  // common/tf32.cuh

namespace {

template <class Params>
struct Launcher {
  KernelId kernel;
  cudaError_t (*function)(const ResidentShape&, const Params&, cudaStream_t);
};

}  // namespace

#include "rnn/cuda/launchers.inc"

namespace {

// The functions of one kind of parameters, by row, cell and type; NULL where there is no such kernel.
template <class Params>
struct LauncherTable {
  decltype(Launcher<Params>::function) function[kKernelCount][kCellCount][kTypeCount] = {};
  int count = 0;

  template <int COUNT>
  constexpr explicit LauncherTable(const Launcher<Params> (&launchers)[COUNT]) : count(COUNT) {
    for (const Launcher<Params>& l : launchers) function[l.kernel.row][l.kernel.cell][l.kernel.type] = l.function;
  }

  cudaError_t launch(const ResidentShape& shape, const Params& params, cudaStream_t stream) const {
    const KernelId kernel = shape.kernel;
    const auto found = kernel.exists() ? function[kernel.row][kernel.cell][kernel.type] : nullptr;
    return found == nullptr ? cudaErrorInvalidValue : found(shape, params, stream);
  }
};

constexpr LauncherTable<ForwardParams> kForward(kForwardLaunchers);
constexpr LauncherTable<BackwardParams> kBackward(kBackwardLaunchers);
constexpr LauncherTable<WavefrontForwardParams> kWavefrontForward(kWavefrontForwardLaunchers);
constexpr LauncherTable<WavefrontBackwardParams> kWavefrontBackward(kWavefrontBackwardLaunchers);

// Whether the generated files have the kernels of kKernels, all of them and no others.
constexpr bool has_all_kernels() {
  int count = 0;
  for (int row = 0; row < kKernelCount; ++row) {
    const Kernel& kernel = kKernels[row];
    const bool is_stack = is_wavefront(kernel.engine), is_forward = kernel.pass == Pass::kForward;
    for (int cell = 0; cell < kCellCount; ++cell) {
      for (int type = 0; type < kTypeCount; ++type) {
        const bool wanted = (kernel.cells >> cell & 1) != 0 && (kernel.types >> type & 1) != 0;
        count += wanted;
        const bool is_there = is_stack ? (is_forward ? kWavefrontForward.function[row][cell][type] != nullptr
                                                     : kWavefrontBackward.function[row][cell][type] != nullptr)
                                       : (is_forward ? kForward.function[row][cell][type] != nullptr
                                                     : kBackward.function[row][cell][type] != nullptr);
        if (wanted != is_there) return false;
      }
    }
  }
  return count == kForward.count + kBackward.count + kWavefrontForward.count + kWavefrontBackward.count;
}
static_assert(has_all_kernels(), "site_scons/kernel_instances.py has not read every row of rnn/plan/kernels.h");

}  // namespace

cudaError_t launch_kernel(const ResidentShape& shape, const ForwardParams& params, cudaStream_t stream) {
  return kForward.launch(shape, params, stream);
}

cudaError_t launch_kernel(const ResidentShape& shape, const BackwardParams& params, cudaStream_t stream) {
  return kBackward.launch(shape, params, stream);
}

cudaError_t launch_kernel(const ResidentShape& shape, const WavefrontForwardParams& params, cudaStream_t stream) {
  return kWavefrontForward.launch(shape, params, stream);
}

cudaError_t launch_kernel(const ResidentShape& shape, const WavefrontBackwardParams& params, cudaStream_t stream) {
  return kWavefrontBackward.launch(shape, params, stream);
}

}  // namespace prnn
