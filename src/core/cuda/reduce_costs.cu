#include "core/cuda/reduce_costs.cuh"

#include "core/cuda/launch.h"

namespace prnn {
namespace {

template <class Real>
__global__ void __launch_bounds__(kReduceThreads) reduce_kernel(ReducedCosts<Real> reduced) {
  reduce_by_block(reduced);
}

}  // namespace

template <class Real>
void run_reduction(const ReducedCosts<Real>& reduced, cudaStream_t stream) {
  if (!reduced.loss) return;
  reduce_kernel<<<1, kReduceThreads, 0, stream>>>(reduced);
  check_launch("reduce_kernel");
}

template void run_reduction(const ReducedCosts<float>&, cudaStream_t);
template void run_reduction(const ReducedCosts<double>&, cudaStream_t);

}  // namespace prnn
