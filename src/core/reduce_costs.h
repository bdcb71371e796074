// The seam between prnnReduceCosts and what computes it: reduce_costs_api.cc on the CPU, cuda/reduce_costs.cu on a GPU.
#pragma once

#include <cstdint>

#include "core/handle.h"

namespace prnn {

// weight(n) is what the loss has of cost[n].
struct Reduction {
  int64_t batch;
  double scale;
  const int* lengths;  // may be NULL

  constexpr double weight(int64_t n) const { return lengths && lengths[n] > 1 ? scale / lengths[n] : scale; }
};

// In core/cuda/reduce_costs.cu, or core/cuda/no_cuda.cc. Real is float or double.
template <class Real>
void cuda_reduce_costs(prnnHandle_t handle, const Reduction& reduction, const Real* costs, Real* loss);
template <class Real>
void cuda_reduce_costs_backward(prnnHandle_t handle, const Reduction& reduction, const Real* loss_gradient,
                                Real* cost_gradients);

}  // namespace prnn
