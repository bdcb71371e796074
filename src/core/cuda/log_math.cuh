// Sums of probabilities that are held as logarithms. The logarithm itself is kept in double for both precisions: over
// thousands of steps it grows to thousands, and what float would lose there is the gradient's whole accuracy. Only the
// correction log(1 + exp(-difference)), between 0 and log 2, is computed in Real.
#pragma once

#include <cuda_runtime.h>
#include <math_constants.h>

#include "core/cuda/log_zero.h"

namespace prnn {

template <class Real>
__device__ __forceinline__ double log1p_exp(double difference);

template <>
__device__ __forceinline__ double log1p_exp<float>(double difference) {
  return __logf(1.0f + __expf(static_cast<float>(difference)));
}

template <>
__device__ __forceinline__ double log1p_exp<double>(double difference) {
  return log1p(exp(difference));
}

// log(exp(a) + exp(b)); minus infinity is a probability of zero, NaN in either gives NaN.
template <class Real>
__device__ __forceinline__ double log_add(double a, double b) {
  const bool first = a > b;
  const double high = first ? a : b, low = first ? b : a;
  const double sum = high + log1p_exp<Real>(low - high);
  return high == kNever && !isnan(low) ? high : sum;
}

}  // namespace prnn
