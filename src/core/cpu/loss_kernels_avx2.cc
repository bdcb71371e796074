#if defined(__x86_64__)
#include "core/cpu/loss_kernels_impl.h"

namespace prnn {

const LossKernels loss_kernels_avx2 = kLossKernels;

}  // namespace prnn
#endif
