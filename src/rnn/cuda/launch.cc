#include "rnn/cuda/launch.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <iterator>
#include <tuple>

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

constexpr std::tuple<LauncherTable<ForwardParams>, LauncherTable<BackwardParams>, LauncherTable<WavefrontForwardParams>,
                     LauncherTable<WavefrontBackwardParams>, LauncherTable<LayerNormLstmGridParams>>
    kTables(kForwardLaunchers, kBackwardLaunchers, kWavefrontForwardLaunchers, kWavefrontBackwardLaunchers,
            kLayerNormLstmGridLaunchers);

// Whether the generated files have the kernels of kKernels, all of them and no others.
constexpr bool has_all_kernels() {
  int count = 0;
  for (int row = 0; row < kKernelCount; ++row) {
    const Kernel& kernel = kKernels[row];
    for (int cell = 0; cell < kCellCount; ++cell) {
      for (int type = 0; type < kTypeCount; ++type) {
        const bool wanted = (kernel.cells >> cell & 1) != 0 && (kernel.types >> type & 1) != 0;
        count += wanted;
        const int there = std::apply(
            [&](const auto&... table) { return ((table.function[row][cell][type] != nullptr) + ...); }, kTables);
        if (there != wanted) return false;
      }
    }
  }
  return count == std::apply([](const auto&... table) { return (table.count + ...); }, kTables);
}
static_assert(has_all_kernels(), "site_scons/kernel_instances.py has not read every row of rnn/plan/kernels.h");

}  // namespace

template <class Params>
cudaError_t launch_kernel(const ResidentShape& shape, const Params& params, cudaStream_t stream) {
  return std::get<LauncherTable<Params>>(kTables).launch(shape, params, stream);
}

template cudaError_t launch_kernel(const ResidentShape&, const ForwardParams&, cudaStream_t);
template cudaError_t launch_kernel(const ResidentShape&, const BackwardParams&, cudaStream_t);
template cudaError_t launch_kernel(const ResidentShape&, const WavefrontForwardParams&, cudaStream_t);
template cudaError_t launch_kernel(const ResidentShape&, const WavefrontBackwardParams&, cudaStream_t);
template cudaError_t launch_kernel(const ResidentShape&, const LayerNormLstmGridParams&, cudaStream_t);

}  // namespace prnn
