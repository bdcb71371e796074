#include "core/reduce_costs.h"

#include "core/cuda/launch.h"

namespace prnn {
namespace {

constexpr int kThreads = 256;

// One block, every sum in a fixed order.
template <class Real>
__global__ void __launch_bounds__(kThreads) reduce_kernel(Reduction reduction, const Real* costs, Real* loss) {
  __shared__ double sums[kThreads / 32];
  const int lane = threadIdx.x % 32;
  double sum = 0;
  for (int64_t n = threadIdx.x; n < reduction.batch; n += kThreads) sum += reduction.weight(n) * costs[n];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (lane == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
#pragma unroll
  for (int i = 1; i < kThreads / 32; ++i) sum += sums[i];
  *loss = static_cast<Real>(sum);
}

template <class Real>
__global__ void __launch_bounds__(kThreads)
    spread_kernel(Reduction reduction, const Real* loss_gradient, Real* cost_gradients) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (n < reduction.batch) cost_gradients[n] = static_cast<Real>(reduction.weight(n) * *loss_gradient);
}

}  // namespace

template <class Real>
void cuda_reduce_costs(prnnHandle_t handle, const Reduction& reduction, const Real* costs, Real* loss) {
  reduce_kernel<<<1, kThreads, 0, handle->stream>>>(reduction, costs, loss);
  check_launch("reduce_kernel");
}

template <class Real>
void cuda_reduce_costs_backward(prnnHandle_t handle, const Reduction& reduction, const Real* loss_gradient,
                                Real* cost_gradients) {
  const auto blocks = static_cast<unsigned>(ceil_div(reduction.batch, kThreads));
  spread_kernel<<<blocks, kThreads, 0, handle->stream>>>(reduction, loss_gradient, cost_gradients);
  check_launch("spread_kernel");
}

template void cuda_reduce_costs(prnnHandle_t, const Reduction&, const float*, float*);
template void cuda_reduce_costs(prnnHandle_t, const Reduction&, const double*, double*);
template void cuda_reduce_costs_backward(prnnHandle_t, const Reduction&, const float*, float*);
template void cuda_reduce_costs_backward(prnnHandle_t, const Reduction&, const double*, double*);

}  // namespace prnn
