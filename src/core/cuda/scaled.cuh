// Probabilities of whole paths as mantissa times a power of two. Their products and sums take a few instructions and no
// logarithm, lose half a unit in the last place of the mantissa each, and do not underflow: a path counts as impossible
// only below 2^-(2^29). A mantissa is not kept between 1 and 2, but normalised() now and then.
#pragma once

#include <cuda_runtime.h>
#include <math_constants.h>

#include <cstdint>

#include "core/cuda/log_zero.h"
#include "core/cuda/scaled.h"

namespace prnn {

constexpr int kZeroExponent = -(1 << 29);    // of an impossible arc
constexpr int kLowestExponent = -(1 << 30);  // sums of exponents stop here
constexpr float kLargestArc = 2.9e6f;        // |logarithm| of an arc that can be represented: 2^22 binary digits

template <class Real>
__device__ __forceinline__ Scaled<Real> scaled_zero() {
  return {0, kZeroExponent};
}

// 2^exponent for exponents up to 0; 0 far below.
template <class Real>
__device__ __forceinline__ Real power_of_two(int exponent);
template <>
__device__ __forceinline__ float power_of_two<float>(int exponent) {
  return __int_as_float(__viaddmax_s32(exponent, 127, 0) << 23);
}
template <>
__device__ __forceinline__ double power_of_two<double>(int exponent) {
  return __hiloint2double(__viaddmax_s32(exponent, 1023, 0) << 20, 0);
}

// exp(logarithm): zero below -kLargestArc, NaN above kLargestArc and for NaN.
__device__ __forceinline__ Scaled<float> scaled_exp(float logarithm) {
  constexpr float kLog2E = 1.44269504f,
                  kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves an integer in the low bits
  const float rounded = fmaf(logarithm, kLog2E, kRound);
  const float fraction = fmaf(logarithm, kLog2E, kRound - rounded);
  float mantissa;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(mantissa) : "f"(fraction));
  const bool never = logarithm < -kLargestArc;
  mantissa = never ? 0.0f : mantissa;
  return {logarithm > kLargestArc ? CUDART_NAN_F : mantissa,
          never ? kZeroExponent : __float_as_int(rounded) - __float_as_int(kRound)};
}
__device__ __forceinline__ Scaled<double> scaled_exp(double logarithm) {
  constexpr double kLog2E = 1.4426950408889634074, kLn2High = 6.93147180369123816490e-01,
                   kLn2Low = 1.90821492927058770002e-10;
  const bool never = logarithm < -kLargestArc, usual = logarithm <= kLargestArc && !never;
  const double exponent = rint(usual ? logarithm * kLog2E : 0.0);
  const double mantissa = exp(fma(-exponent, kLn2Low, fma(-exponent, kLn2High, usual ? logarithm : 0.0)));
  return {never ? 0.0 : usual ? mantissa : CUDART_NAN, never ? kZeroExponent : static_cast<int>(exponent)};
}

template <class Real>
__device__ __forceinline__ Scaled<Real> operator*(const Scaled<Real>& a, const Scaled<Real>& b) {
  return {a.mantissa * b.mantissa, __viaddmax_s32(a.exponent, b.exponent, kLowestExponent)};
}

template <class Real>
__device__ __forceinline__ Scaled<Real> operator+(const Scaled<Real>& a, const Scaled<Real>& b) {
  const int exponent = max(a.exponent, b.exponent);
  const Real scaled = a.mantissa * power_of_two<Real>(a.exponent - exponent);
  return {fma(b.mantissa, power_of_two<Real>(b.exponent - exponent), scaled), exponent};
}

// Returns the number with a mantissa from 1 to 2, unless that is 0, infinite or NaN.
__device__ __forceinline__ Scaled<float> normalised(const Scaled<float>& a) {
  const int bits = __float_as_int(a.mantissa), biased = bits >> 23;
  const int shift = biased == 0 || biased == 255 ? 0 : biased - 127;
  return {__int_as_float(bits - shift * (1 << 23)), a.exponent + shift};
}
__device__ __forceinline__ Scaled<double> normalised(const Scaled<double>& a) {
  const int bits = __double2hiint(a.mantissa), biased = bits >> 20;
  const int shift = biased == 0 || biased == 2047 ? 0 : biased - 1023;
  return {__hiloint2double(bits - shift * (1 << 20), __double2loint(a.mantissa)), a.exponent + shift};
}

template <class Real>
__device__ __forceinline__ bool is_zero(const Scaled<Real>& a) {
  return a.mantissa == 0 || (a.exponent <= kZeroExponent && !isnan(a.mantissa));
}

// The natural logarithm, in double: it may be in the thousands, where float has steps of 1e-4.
template <class Real>
__device__ __forceinline__ double scaled_log(const Scaled<Real>& a) {
  if (is_zero(a)) return kNever;
  return fma(static_cast<double>(a.exponent), 0.69314718055994530942, log(static_cast<double>(a.mantissa)));
}

template <class Real>
__device__ __forceinline__ Scaled<Real> shuffle_up(const Scaled<Real>& a) {
  return {__shfl_up_sync(~0u, a.mantissa, 1), __shfl_up_sync(~0u, a.exponent, 1)};
}
template <class Real>
__device__ __forceinline__ Scaled<Real> shuffle_down(const Scaled<Real>& a) {
  return {__shfl_down_sync(~0u, a.mantissa, 1), __shfl_down_sync(~0u, a.exponent, 1)};
}

// *at = value if `wanted`, for types of 8 bytes or some times 16, as predicated instructions: the compiler may make a
// branch of an `if`, which costs a recursion more than the store itself.
template <class T>
__device__ __forceinline__ void store_if(bool wanted, T* at, const T& value) {
  if constexpr (sizeof(T) == 8) {
    const uint2 words = reinterpret_cast<const uint2&>(value);
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %3, 0; @p st.global.v2.b32 [%0], {%1, %2}; }" ::"l"(at), "r"(words.x),
                 "r"(words.y), "r"(static_cast<int>(wanted))
                 : "memory");
  } else {
#pragma unroll
    for (size_t i = 0; i < sizeof(T) / 16; ++i) {
      const uint4 words = reinterpret_cast<const uint4*>(&value)[i];
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; @p st.global.v4.b32 [%0], {%1, %2, %3, %4}; }" ::"l"(
                       reinterpret_cast<uint4*>(at) + i),
                   "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w), "r"(static_cast<int>(wanted))
                   : "memory");
    }
  }
}

template <class Real>
__device__ __forceinline__ Scaled<Real> select(bool first, const Scaled<Real>& a, const Scaled<Real>& b) {
  return {first ? a.mantissa : b.mantissa, first ? a.exponent : b.exponent};
}

// part / whole as a plain number, for a part of the whole: at most about 1.
__device__ __forceinline__ float share_of(const Scaled<float>& part, const Scaled<float>& whole) {
  const int exponent = min(max(part.exponent - whole.exponent, -126), 127);
  return part.mantissa / whole.mantissa * __int_as_float((exponent + 127) << 23);
}
__device__ __forceinline__ double share_of(const Scaled<double>& part, const Scaled<double>& whole) {
  const int exponent = min(max(part.exponent - whole.exponent, -1022), 1023);
  return part.mantissa / whole.mantissa * __hiloint2double((exponent + 1023) << 20, 0);
}

}  // namespace prnn
