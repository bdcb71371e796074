// The reduction of costs by a block of a kernel that runs after them and does something else.
#pragma once

#include "core/cuda/reduce_costs.h"

namespace prnn {

constexpr int kReduceThreads = 256;  // of the block

// Every sum in a fixed order.
template <class Real>
__device__ void reduce_by_block(const ReducedCosts<Real>& reduced) {
  __shared__ double sums[kReduceThreads / 32];
  double sum = 0;
  for (int64_t n = threadIdx.x; n < reduced.batch; n += kReduceThreads) sum += reduced.term(n);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
#pragma unroll
  for (int i = 1; i < kReduceThreads / 32; ++i) sum += sums[i];
  *reduced.loss = static_cast<Real>(sum);
}

// A grid whose x has blocks_for_reduction() more blocks than the kernel needs: whether this is the last one, which
// reduces and is done then.
template <class Real>
__device__ bool is_for_reduction(const ReducedCosts<Real>& reduced) {
  if (!reduced.loss || blockIdx.x + 1 < gridDim.x) return false;
  if (blockIdx.y == 0) reduce_by_block(reduced);
  return true;
}
template <class Real>
unsigned blocks_for_reduction(const ReducedCosts<Real>& reduced) {
  return reduced.loss ? 1 : 0;
}

}  // namespace prnn
