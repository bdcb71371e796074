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

// The logarithm of a sum of exponentials, which is not finite once a value is NaN or +infinity.
struct LogSum {
  float largest = kNever, sum = 0;

  __device__ __forceinline__ void add(float log_value) {
    if (log_value == kNever) return;
    const float before = largest;
    largest = fmaxf(largest, log_value);
    if (before != kNever) sum *= expf(before - largest);
    sum += log_value == largest && before == kNever ? 1.0f : expf(log_value - largest);
  }
  __device__ __forceinline__ float log_sum() const { return largest + logf(sum); }
};

// The summary of a column over rows or blocks: the candidate with the highest value, of equal ones the lowest
// class, and the logarithm of the sum.
struct Summary : LogSum {
  float value = kNever, logit = kNever;
  int place = 0x7FFFFFFF;

  __device__ __forceinline__ void take(float other, float other_logit, int other_place) {
    if (other > value || (other == value && other_place < place)) {
      value = other, logit = other_logit, place = other_place;
    }
  }
};

// An integer with the order of the float, which is no NaN; both zeros are equal.
__device__ __forceinline__ int ordered(float x) {
  const int bits = __float_as_int(x + 0.0f);
  return bits ^ (bits >> 31 & 0x7FFFFFFF);
}
__device__ __forceinline__ float from_ordered(int key) { return __int_as_float(key ^ (key >> 31 & 0x7FFFFFFF)); }

// The best candidate of all lanes and their largest logarithm. A warp's reduction of integers is one instruction, where
// shuffles would be five for each number.
__device__ __forceinline__ void take_over_warp(Summary& s) {
  const int best = __reduce_max_sync(kWholeWarp, ordered(s.value));
  const int own_place = ordered(s.value) == best ? s.place : 0x7FFFFFFF;
  s.place = __reduce_min_sync(kWholeWarp, own_place);
  const unsigned lanes = __ballot_sync(kWholeWarp, own_place == s.place && ordered(s.value) == best);
  s.logit = __shfl_sync(kWholeWarp, s.logit, __ffs(static_cast<int>(lanes)) - 1);
  s.value = from_ordered(best);
  s.largest = from_ordered(__reduce_max_sync(kWholeWarp, ordered(s.largest)));
}

// Adds up the sums of groups of LANES lanes, whose `largest` are one already. own: those before.
template <int LANES, class SUMMARY, int COUNT>
__device__ __forceinline__ void add_up_over_lanes(const float (&own)[COUNT], SUMMARY (&summaries)[COUNT]) {
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

// The sums of all lanes, in each of them.
template <int COUNT>
__device__ __forceinline__ void add_up_over_warp(LogSum (&sums)[COUNT]) {
  float own[COUNT];
#pragma unroll
  for (int c = 0; c < COUNT; ++c) {
    own[c] = sums[c].largest;
    sums[c].largest = from_ordered(__reduce_max_sync(kWholeWarp, ordered(own[c])));
  }
  add_up_over_lanes<32>(own, sums);
}

// The summaries of groups of LANES lanes, in each of these lanes. Those of several columns, so that one's shuffles fill
// the other's latencies.
template <int LANES, int COUNT>
__device__ __forceinline__ void summarise_over_lanes(Summary (&summaries)[COUNT]) {
  float own[COUNT];
#pragma unroll
  for (int c = 0; c < COUNT; ++c) own[c] = summaries[c].largest;
  if constexpr (LANES == 32) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) take_over_warp(summaries[c]);
  } else {
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
  }
  add_up_over_lanes<LANES>(own, summaries);
}

}  // namespace prnn::decode_cuda
