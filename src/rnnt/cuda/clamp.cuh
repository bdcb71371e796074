// The limit that prnnRNNTLossOptions_t::clamp and its kin set to the elements of a gradient.
#pragma once

#include <limits>

namespace prnn {

// Infinite where there is none. Problem: of any transducer loss.
template <class Real, class Problem>
__device__ __forceinline__ Real clamp_limit(const Problem& p) {
  return p.clamp > 0 ? static_cast<Real>(p.clamp) : std::numeric_limits<Real>::infinity();
}

template <class Real>
__device__ __forceinline__ Real clamped(Real gradient, Real limit) {
  return gradient > limit ? limit : gradient < -limit ? -limit : gradient;  // NaN stays NaN
}

}  // namespace prnn
