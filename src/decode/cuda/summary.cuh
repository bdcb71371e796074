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

  // Adds a number, or none: kNever. Without branches, so that those of several columns are added side by side.
  __device__ __forceinline__ void add(float log_value) {
    const float before = largest;
    largest = fmaxf(largest, log_value);
    const float shift = subtrahend();
    sum = sum * expf(before - shift) + expf(log_value - shift);
  }
  // The largest logarithm, which is taken from all; 0 if there is none.
  __device__ __forceinline__ float subtrahend() const { return largest == kNever ? 0 : largest; }
  __device__ __forceinline__ float log_sum() const { return largest + logf(sum); }
};

// An integer with the order of the float, which is no NaN; both zeros are equal.
__device__ __forceinline__ int ordered(float x) {
  const int bits = __float_as_int(x + 0.0f);
  return bits ^ (bits >> 31 & 0x7FFFFFFF);
}
__device__ __forceinline__ float from_ordered(int key) { return __int_as_float(key ^ (key >> 31 & 0x7FFFFFFF)); }

// Adds to each column's sum the numbers, or none, that the lanes have of it; all lanes have the same largest. `begins`:
// there are none yet. Those of several columns side by side, so that one's latencies fill the other's.
template <int COUNT>
__device__ __forceinline__ void add_of_lanes(LogSum (&sums)[COUNT], const float (&values)[COUNT], bool begins) {
  float before[COUNT], own[COUNT];
#pragma unroll
  for (int c = 0; c < COUNT; ++c) {
    before[c] = sums[c].largest;
    sums[c].largest = fmaxf(before[c], from_ordered(__reduce_max_sync(kWholeWarp, ordered(values[c]))));
  }
#pragma unroll
  for (int c = 0; c < COUNT; ++c) own[c] = expf(values[c] - sums[c].subtrahend());
  if (!begins) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) own[c] += sums[c].sum * expf(before[c] - sums[c].subtrahend());
  }
#pragma unroll
  for (int c = 0; c < COUNT; ++c) sums[c].sum = own[c];
}

// Adds up what the lanes have of sums with the same largest.
template <int COUNT>
__device__ __forceinline__ void add_up_lanes(LogSum (&sums)[COUNT]) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) sums[c].sum += __shfl_xor_sync(kWholeWarp, sums[c].sum, bits);
  }
}

// Adds up sums of all lanes, whose largest differ.
__device__ __forceinline__ void add_up_lanes(LogSum& sum) {
  const float own = sum.largest;
  sum.largest = from_ordered(__reduce_max_sync(kWholeWarp, ordered(own)));
  LogSum all[1] = {{sum.largest, sum.sum * expf(own - sum.subtrahend())}};
  add_up_lanes(all);
  sum = all[0];
}

}  // namespace prnn::decode_cuda
