// Activations of the cells.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "persistent_rnn.h"

namespace prnn {

constexpr int gate_count(prnnRNNMode_t mode) {
  return mode == PRNN_LSTM || mode == PRNN_SLSTM ? 4 : mode == PRNN_GRU ? 3 : 1;
}

// 1 / (1 + 2^x). The hardware's exp2 and reciprocal are good to 2 units in the last place of float32; what they flush
// to zero vanishes in the sum.
__device__ __forceinline__ float reciprocal_of_one_plus_exp2(float x) {
  float power, reciprocal;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(power) : "f"(x));
  asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(reciprocal) : "f"(1.0f + power));
  return reciprocal;
}

constexpr float kLog2E = 1.44269504f;

__device__ __forceinline__ float sigmoid(float x) { return reciprocal_of_one_plus_exp2(-kLog2E * x); }

// The digits of the type in which results are kept. A tanh near zero wants all of them: 1 - 2 / (1 + e^2x) loses its
// own there. Float16 has few left below 6e-5, where that is still good for them; bfloat16 has as many as anywhere.
enum class Digits : int8_t { kHalf, kBfloat16, kFloat };

// TF32: of float32 results of tf32 products, which have 10.
template <class T, bool TF32 = false>
constexpr Digits digits_of() {
  if (sizeof(T) == 4) return TF32 ? Digits::kBfloat16 : Digits::kFloat;
  return std::is_same_v<T, __nv_bfloat16> ? Digits::kBfloat16 : Digits::kHalf;
}

constexpr float kLinear = 1.0f / 128;  // nearer to zero tanh(x) is x but for 2e-5 of it

// tanh(x) from reciprocal_of_one_plus_exp2(2 log2(e) x).
template <Digits DIGITS>
__device__ __forceinline__ float tangent_of_reciprocal(float x, float reciprocal) {
  const float far = 1.0f - 2.0f * reciprocal;
  if constexpr (DIGITS == Digits::kHalf) return far;
  if constexpr (DIGITS == Digits::kBfloat16) return fabsf(x) < kLinear ? x : far;
  const float square = x * x;  // below 0.3, the best polynomial of its degree: off by 1e-9 of the value at most
  const float series = 0.13332609f + square * (-0.053854868f + square * (0.021083021f - 0.0062913704f * square));
  const float near = x + x * square * (-0.33333318f + square * series);
  return square < 0.3f ? near : far;
}

template <Digits DIGITS>
__device__ __forceinline__ float hyperbolic_tangent(float x) {
  return tangent_of_reciprocal<DIGITS>(x, reciprocal_of_one_plus_exp2(2.0f * kLog2E * x));
}

// e^x, 0 where it is no normal number.
__device__ __forceinline__ float exponential(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(power) : "f"(kLog2E * x));
  return power;
}

// log(sigmoid(x)) = min(x, 0) - log(1 + e^-|x|).
template <Digits DIGITS>
__device__ __forceinline__ float log_sigmoid(float x) {
  const float power = exponential(-fabsf(x)), least = x > 0 ? 0 : x;  // NaN stays NaN
  if constexpr (DIGITS == Digits::kFloat) return least - log1pf(power);
  float logarithm;
  asm("lg2.approx.ftz.f32 %0,%1;" : "=f"(logarithm) : "f"(1.0f + power));
  return least - 0.693147181f * logarithm;
}

// 1 - e^x for x <= 0.
__device__ __forceinline__ float one_minus_exponential(float x) {
  const float near = -x * (1 + x * (1.0f / 2 + x * (1.0f / 6 + x * (1.0f / 24))));  // off by 1e-7 of it at most
  return x > -0.0625f ? near : 1 - exponential(x);
}

// The logistic function, or tanh where `is_tanh`, without diverging: sigma(x) = (1 + tanh(x / 2)) / 2.
template <Digits DIGITS>
__device__ __forceinline__ float squash(float x, bool is_tanh) {
  if constexpr (DIGITS == Digits::kFloat) {
    const float reciprocal = reciprocal_of_one_plus_exp2((is_tanh ? 2.0f * kLog2E : -kLog2E) * x);
    return is_tanh ? tangent_of_reciprocal<DIGITS>(x, reciprocal) : reciprocal;
  }
  const float reciprocal = reciprocal_of_one_plus_exp2((is_tanh ? -2.0f * kLog2E : -kLog2E) * x);  // sigma(2 x) or (x)
  const float far = 2.0f * reciprocal - 1.0f, tangent = DIGITS == Digits::kBfloat16 && fabsf(x) < kLinear ? x : far;
  return is_tanh ? tangent : reciprocal;
}

}  // namespace prnn
