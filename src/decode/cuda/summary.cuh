// Logarithms of sums of exponentials of columns of logits, and floats as integers of the same order.
#pragma once

#include <cmath>

#include "rnn/cuda/common/exchange.cuh"

namespace prnn::decode_cuda {

constexpr float kNever = -INFINITY;

__device__ __forceinline__ float add_logs(float a, float b) {
  const float larger = fmaxf(a, b);
  if (larger == kNever) return a + b;  // NaN stays NaN
  return larger + logf(expf(a - larger) + expf(b - larger));
}

// The logarithm of a sum of exponentials, which is not finite once a value is NaN or +infinity.
struct LogSum {
  float largest = kNever, sum = 0;

  // Of a number or of none, kNever. Without branches, so that those of several columns are added side by side.
  __device__ __forceinline__ void add(float log_value) {
    const float before = largest;
    largest = fmaxf(largest, log_value);
    const float shift = subtrahend();
    sum = sum * expf(before - shift) + expf(log_value - shift);
  }
  // What is taken from logarithms: the largest, if there is one.
  __device__ __forceinline__ float subtrahend() const { return largest == kNever ? 0 : largest; }
  __device__ __forceinline__ float log_sum() const { return largest + logf(sum); }
};

// An integer with the order of the float, which is no NaN; both zeros are equal.
__device__ __forceinline__ int ordered(float x) {
  const int bits = __float_as_int(x + 0.0f);
  return bits ^ (bits >> 31 & 0x7FFFFFFF);
}
__device__ __forceinline__ float from_ordered(int key) { return __int_as_float(key ^ (key >> 31 & 0x7FFFFFFF)); }

// The sums of groups of LANES lanes, in each of them. Those of several columns, so that one's shuffles fill the other's
// latencies.
template <int LANES, int COUNT>
__device__ __forceinline__ void add_up_over_lanes(LogSum (&sums)[COUNT]) {
#pragma unroll
  for (int c = 0; c < COUNT; ++c) {
    const float own = sums[c].largest;
    if constexpr (LANES == 32) {  // one instruction
      sums[c].largest = from_ordered(__reduce_max_sync(kWholeWarp, ordered(own)));
    } else {
#pragma unroll
      for (int bits = LANES / 2; bits > 0; bits /= 2)
        sums[c].largest = fmaxf(sums[c].largest, __shfl_xor_sync(kWholeWarp, sums[c].largest, bits));
    }
    sums[c].sum *= expf(own - sums[c].subtrahend());
  }
#pragma unroll
  for (int bits = LANES / 2; bits > 0; bits /= 2) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) sums[c].sum += __shfl_xor_sync(kWholeWarp, sums[c].sum, bits);
  }
}

}  // namespace prnn::decode_cuda
