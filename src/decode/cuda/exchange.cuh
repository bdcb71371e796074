// The exchange between the blocks of a group in L2: words of states with the number of the round beside them,
// and parts of columns of logits. A reader polls until the number is that of the round.
#pragma once

#include "decode/cuda/params.h"
#include "rnn/cuda/common/exchange.cuh"
#include "rnn/cuda/common/shared_memory.cuh"

namespace prnn::decode_cuda {

struct TwoLongs {
  unsigned long long first, second;
};

__device__ __forceinline__ void publish_word(bool valid, TaggedWord* to, TaggedWord word) {
  if (valid) asm volatile("st.relaxed.gpu.global.u64 [%0],%1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ void publish_tagged(bool valid, TaggedWord* to, uint32_t word, uint32_t round) {
  publish_word(valid, to, static_cast<TaggedWord>(round) << 32 | word);
}

// Two words, each of which arrives whole.
__device__ __forceinline__ TwoLongs load_tagged(const void* from) {
  TwoLongs v;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1},[%2];" : "=l"(v.first), "=l"(v.second) : "l"(from) : "memory");
  return v;
}

// A copy of 16 bytes to shared memory, which is there after wait_for_copies() and a barrier.
__device__ __forceinline__ void copy_vec(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// 16 bytes that arrive whole.
__device__ __forceinline__ void publish_part(ListPart* to, const ListPart& part) {
  const unsigned long long low = static_cast<unsigned long long>(__float_as_uint(part.second)) << 32 |
                                 __float_as_uint(part.first),
                           high = static_cast<unsigned long long>(part.round) << 32 | part.more;
  asm volatile("{.reg .b128 q; mov.b128 q,{%1,%2}; st.relaxed.gpu.global.b128 [%0],q;}" ::"l"(to), "l"(low), "l"(high)
               : "memory");
}

__device__ __forceinline__ TwoLongs load_part(const void* from) {
  TwoLongs v;
  asm volatile("{.reg .b128 q; ld.relaxed.gpu.global.b128 q,[%2]; mov.b128 {%0,%1},q;}"
               : "=l"(v.first), "=l"(v.second)
               : "l"(from)
               : "memory");
  return v;
}

// Loads what the lanes of a warp have not got, until has_arrived(k) of all. The lanes go round together: those that
// waited at the end of the loop for the others would slow them.
template <int COUNT, class HasArrived, class Load>
__device__ __forceinline__ void wait_together(const HasArrived& has_arrived, const Load& load, int* fault,
                                              bool& timed_out) {
  SpinTimeout timeout;
  while (__any_sync(kWholeWarp, !timed_out)) {
    bool is_missing = false;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      if (has_arrived(k)) continue;
      load(k);
      is_missing = true;
    }
    if (!__any_sync(kWholeWarp, is_missing)) return;
    if (!timeout.keeps_spinning(fault)) timed_out = true;
  }
}

// Waits for `count` pieces of 16 bytes, shared out over the block's threads, several on their way at once.
// index(i): which piece the i-th is, of each thread in rising order; -1: it is not wanted. load(index);
// has_arrived(piece); store(index, piece).
template <class Index, class Load, class HasArrived, class Store>
__device__ __forceinline__ void gather(int count, const Index& index, const Load& load, const HasArrived& has_arrived,
                                       const Store& store, int* fault, bool& timed_out) {
  constexpr int kBatch = 5;  // those of 8 slots of 640 16-bit elements are on their way at once
  for (int first = threadIdx.x; first < count; first += kBatch * kThreads) {
    int wanted[kBatch];
    TwoLongs pieces[kBatch] = {};
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int i = first + k * kThreads;
      wanted[k] = i < count ? index(i) : -1;
      if (wanted[k] >= 0) pieces[k] = load(wanted[k]);
    }
    SpinTimeout timeout;
    while (!timed_out) {
      bool is_missing = false;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (wanted[k] < 0 || has_arrived(pieces[k])) continue;
        pieces[k] = load(wanted[k]);
        is_missing = true;
      }
      if (!is_missing) break;
      if (!timeout.keeps_spinning(fault)) timed_out = true;
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (wanted[k] >= 0) store(wanted[k], pieces[k]);
    }
  }
}

}  // namespace prnn::decode_cuda
