// The exchange between the blocks of a group in L2: words of states with the number of the round beside them,
// and parts of columns of logits. A reader polls until the number is that of the round.
#pragma once

#include "decode/cuda/params.h"
#include "rnn/cuda/common/exchange.cuh"

namespace prnn::decode_cuda {

struct TwoLongs {
  unsigned long long first, second;
};

__device__ __forceinline__ void publish_tagged(bool valid, TaggedWord* to, uint32_t word, uint32_t round) {
  if (valid) {
    const TaggedWord tagged = static_cast<TaggedWord>(round) << 32 | word;
    asm volatile("st.relaxed.gpu.global.u64 [%0],%1;" ::"l"(to), "l"(tagged) : "memory");
  }
}

// Two words, each of which arrives whole.
__device__ __forceinline__ TwoLongs load_tagged(const void* from) {
  TwoLongs v;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1},[%2];" : "=l"(v.first), "=l"(v.second) : "l"(from) : "memory");
  return v;
}

// 16 bytes that arrive whole.
__device__ __forceinline__ void publish_part(ColumnPart* to, const ColumnPart& part) {
  const unsigned long long low = static_cast<unsigned long long>(__float_as_uint(part.logit)) << 32 |
                                 __float_as_uint(part.best),
                           high = static_cast<unsigned long long>(part.place_and_round) << 32 |
                                  __float_as_uint(part.log_sum);
  asm volatile("{.reg .b128 q; mov.b128 q,{%1,%2}; st.relaxed.gpu.global.b128 [%0],q;}" ::"l"(to), "l"(low), "l"(high)
               : "memory");
}

__device__ __forceinline__ void publish_part(ListPart* to, const ListPart& part) {
  publish_part(reinterpret_cast<ColumnPart*>(to),
               ColumnPart{part.first, part.second, __uint_as_float(part.more), part.round});
}

__device__ __forceinline__ TwoLongs load_part(const void* from) {
  TwoLongs v;
  asm volatile("{.reg .b128 q; ld.relaxed.gpu.global.b128 q,[%2]; mov.b128 {%0,%1},q;}"
               : "=l"(v.first), "=l"(v.second)
               : "l"(from)
               : "memory");
  return v;
}

// Waits for `count` pieces of 16 bytes, shared out over the block's threads, several on their way at once.
// address(i): of piece i, or NULL if it is not wanted; load(address); has_arrived(piece); store(i, piece).
template <class Address, class Load, class HasArrived, class Store>
__device__ __forceinline__ void gather(int count, const Address& address, const Load& load,
                                       const HasArrived& has_arrived, const Store& store, int* fault, bool& timed_out) {
  constexpr int kBatch = 4;
  for (int first = threadIdx.x; first < count; first += kBatch * kThreads) {
    const void* from[kBatch];
    TwoLongs pieces[kBatch] = {};
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int i = first + k * kThreads;
      from[k] = i < count ? address(i) : nullptr;
      if (from[k] != nullptr) pieces[k] = load(from[k]);
    }
    SpinTimeout timeout;
    while (!timed_out) {
      bool is_missing = false;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (from[k] == nullptr || has_arrived(pieces[k])) continue;
        pieces[k] = load(from[k]);
        is_missing = true;
      }
      if (!is_missing) break;
      if (!timeout.keeps_spinning(fault)) timed_out = true;
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (from[k] != nullptr) store(first + k * kThreads, pieces[k]);
    }
  }
}

}  // namespace prnn::decode_cuda
