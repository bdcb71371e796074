// Logistic function, hyperbolic tangent, exponentials and logarithms on the vectors of simd.h. Errors below 3 units in
// the last place for float and 4 for double; NaN stays NaN, infinities give the limits.
#pragma once

#include <limits>

#include "core/cpu/simd.h"

namespace prnn {
namespace PRNN_ISA_NAMESPACE {

// Constants of exp(y) = 2^n exp(r), |r| <= ln(2) / 2. Adding kMagic rounds to an integer and leaves it in the low bits.
// kLn2High has few enough bits for n * kLn2High to be exact. kTerms: Taylor terms of (exp(r) - 1 - r) / r^2. kLogTerms:
// of artanh(s), |s| <= 1/3.
template <class T>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  static constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
  static constexpr float kLn2High = 0.693145751953125f;
  static constexpr float kLn2Low = 1.428606820309417e-6f;
  static constexpr int kMantissaBits = 23;
  static constexpr uint32_t kBias = 127;
  static constexpr int kTerms = 6;
  static constexpr int kLogTerms = 7;
  static constexpr float kExpLimit = 87.0f;   // exp(+-kExpLimit) is a normal number
  static constexpr float kTanhLimit = 10.0f;  // tanh of it rounds to 1
};
template <>
struct ExpConstants<double> {
  static constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kLn2High = 0.69314718036912381649017333984375;
  static constexpr double kLn2Low = 1.9082149292705877e-10;
  static constexpr int kMantissaBits = 52;
  static constexpr uint64_t kBias = 1023;
  static constexpr int kTerms = 12;
  static constexpr int kLogTerms = 16;
  static constexpr double kExpLimit = 708.0;
  static constexpr double kTanhLimit = 20.0;
};

constexpr double inverse_factorial(int n) {
  double factorial = 1;
  for (int i = 2; i <= n; ++i) factorial *= i;
  return 1 / factorial;
}

// x bounded to [-limit, limit]; NaN passes.
template <class T>
PRNN_INLINE Vector<T> clamp(Vector<T> x, T limit) {
  const Vector<T> high = broadcast(limit), low = broadcast(-limit);
  return maximum(low, minimum(high, x));
}

// exp(y) = scale * (1 + value), value = exp(r) - 1 to full relative accuracy.
template <class T>
struct ExpParts {
  Vector<T> scale, value;
};

template <class T>
PRNN_INLINE ExpParts<T> exp_parts(Vector<T> y) {
  using C = ExpConstants<T>;
  using Bits = typename Simd<T>::Bits;
  const Vector<T> shifted = fma(y, broadcast(T(1.4426950408889634)), broadcast(C::kMagic));
  const Vector<T> n = shifted - broadcast(C::kMagic);
  Vector<T> r = fma(n, broadcast(-C::kLn2High), y);
  r = fma(n, broadcast(-C::kLn2Low), r);
  Vector<T> sum = broadcast(T(inverse_factorial(C::kTerms + 1)));
#pragma GCC unroll 16
  for (int i = C::kTerms; i >= 2; --i) sum = fma(sum, r, broadcast(T(inverse_factorial(i))));
  ExpParts<T> parts;
  parts.value = fma(r * r, sum, r);
  Bits bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + C::kBias) << C::kMantissaBits;
  std::memcpy(&parts.scale, &bits, sizeof bits);
  return parts;
}

// 1 / (1 + exp(-x)); 0 at -infinity, so that a gate times an infinite state is NaN there, as it is in torch.nn.
template <class T>
PRNN_INLINE Vector<T> sigmoid(Vector<T> x) {
  const ExpParts<T> e = exp_parts<T>(clamp<T>(-x, ExpConstants<T>::kExpLimit));
  const Vector<T> one = broadcast(T(1)), zero = {}, lowest = broadcast(std::numeric_limits<T>::lowest());
  const Vector<T> value = one / (one + fma(e.scale, e.value, e.scale));
  return x < lowest ? zero : value;
}

// tanh(x) = m / (m + 2) with m = exp(2 x) - 1, which keeps the relative accuracy near zero.
template <class T>
PRNN_INLINE Vector<T> tanh(Vector<T> x) {
  const ExpParts<T> e = exp_parts<T>(clamp<T>(x + x, 2 * ExpConstants<T>::kTanhLimit));
  const Vector<T> m = fma(e.scale, e.value, e.scale - broadcast(T(1)));
  return m / (m + broadcast(T(2)));
}

// exp(x) for x <= 0; 0 below the smallest normal number, NaN stays NaN.
template <class T>
PRNN_INLINE Vector<T> exp_of_negative(Vector<T> x) {
  const ExpParts<T> e = exp_parts<T>(clamp<T>(x, ExpConstants<T>::kExpLimit));
  const Vector<T> zero = {};
  return x < broadcast(-ExpConstants<T>::kExpLimit) ? zero : fma(e.scale, e.value, e.scale);
}

// log(1 + x) for 0 <= x <= 1: 2 artanh(s) with s = x / (2 + x), which keeps the relative accuracy near zero.
template <class T>
PRNN_INLINE Vector<T> log_of_one_plus(Vector<T> x) {
  const Vector<T> s = x / (x + broadcast(T(2))), square = s * s;
  Vector<T> sum = broadcast(T(1) / (2 * ExpConstants<T>::kLogTerms + 1));
#pragma GCC unroll 32
  for (int i = ExpConstants<T>::kLogTerms - 1; i >= 1; --i) sum = fma(sum, square, broadcast(T(1) / (2 * i + 1)));
  const Vector<T> twice = s + s;
  return fma(twice * square, sum, twice);
}

}  // namespace PRNN_ISA_NAMESPACE
}  // namespace prnn
