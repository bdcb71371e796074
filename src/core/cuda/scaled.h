#pragma once

namespace prnn {

// mantissa * 2^exponent, see scaled.cuh.
template <class Real>
struct alignas(2 * sizeof(Real)) Scaled {
  Real mantissa;
  int exponent;
};

}  // namespace prnn
