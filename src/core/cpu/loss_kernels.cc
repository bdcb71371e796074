#include "core/cpu/loss_kernels.h"

#include "core/cpu/loss_kernels_impl.h"

namespace prnn {

const LossKernels loss_kernels_baseline = kLossKernels;

const LossKernels& loss_kernels() {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2) return loss_kernels_avx2;
#endif
  return loss_kernels_baseline;
}

}  // namespace prnn
