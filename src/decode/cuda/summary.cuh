// Columns of logits that are put together: the best candidate and the logarithm of a sum of exponentials.
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

// What rows or blocks say of a column, put together: the candidate with the highest value, of equal ones the lowest
// class, and the logarithm of a sum of exponentials, which is NaN once a value is NaN or +infinity.
struct Summary {
  float value = kNever, logit = kNever;
  int place = 0x7FFFFFFF;
  float largest = kNever, sum = 0;

  __device__ __forceinline__ void take(float other, float other_logit, int other_place) {
    if (other > value || (other == value && other_place < place)) {
      value = other, logit = other_logit, place = other_place;
    }
  }
  __device__ __forceinline__ void add(float log_value) {
    if (log_value == kNever) return;
    const float before = largest;
    largest = fmaxf(largest, log_value);
    sum = (before == kNever ? sum : sum * expf(before - largest)) + expf(log_value - largest);
  }
  __device__ __forceinline__ float log_sum() const { return largest + logf(sum); }
};

// The summaries of groups of LANES lanes, in each of these lanes. Those of several columns, so that one's shuffles fill
// the other's latencies.
template <int LANES, int COUNT>
__device__ __forceinline__ void summarise_over_lanes(Summary (&summaries)[COUNT]) {
  float own[COUNT];
#pragma unroll
  for (int c = 0; c < COUNT; ++c) own[c] = summaries[c].largest;
#pragma unroll
  for (int bits = LANES / 2; bits > 0; bits /= 2) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) {
      Summary& s = summaries[c];
      s.largest = fmaxf(s.largest, __shfl_xor_sync(kWholeWarp, s.largest, bits));
      const float value = __shfl_xor_sync(kWholeWarp, s.value, bits);
      const float logit = __shfl_xor_sync(kWholeWarp, s.logit, bits);
      s.take(value, logit, __shfl_xor_sync(kWholeWarp, s.place, bits));
    }
  }
#pragma unroll
  for (int c = 0; c < COUNT; ++c) {
    if (own[c] != kNever) summaries[c].sum *= expf(own[c] - summaries[c].largest);
  }
#pragma unroll
  for (int bits = LANES / 2; bits > 0; bits /= 2) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) summaries[c].sum += __shfl_xor_sync(kWholeWarp, summaries[c].sum, bits);
  }
}

}  // namespace prnn::decode_cuda
