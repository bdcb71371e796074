// Barriers of a block whose first kThreads threads go through a search's rounds; a greedy search has helpers beside
// them.
#pragma once

#include <cstdint>

#include "decode/cuda/search_plan.h"

namespace prnn::decode_cuda {

enum Barrier { kRounds, kTold, kHelped, kAmongHelpers };  // by number

// A barrier of the threads of the rounds.
__device__ __forceinline__ void sync_threads() {
  asm volatile("bar.sync %0,%1;" ::"r"(static_cast<int>(kRounds)), "n"(kThreads) : "memory");
}
// Returns, behind such a barrier, whether value is true in one of them.
__device__ __forceinline__ bool sync_threads_or(bool value) {
  uint32_t any;
  asm volatile("{.reg .pred p,q; setp.ne.u32 p,%1,0; bar.red.or.pred q,%2,%3,p; selp.u32 %0,1,0,q;}"
               : "=r"(any)
               : "r"(static_cast<uint32_t>(value)), "r"(static_cast<int>(kRounds)), "n"(kThreads)
               : "memory");
  return any != 0;
}

// A barrier of the helpers.
__device__ __forceinline__ void sync_helpers() {
  asm volatile("bar.sync %0,%1;" ::"r"(static_cast<int>(kAmongHelpers)), "n"(kHelperThreads) : "memory");
}

// Threads that arrive go on; those that wait see what others did before they arrived.
__device__ __forceinline__ void arrive_at(Barrier barrier) {
  asm volatile("bar.arrive %0,%1;" ::"r"(static_cast<int>(barrier)), "n"(kThreads + kHelperThreads) : "memory");
}
__device__ __forceinline__ void wait_at(Barrier barrier) {
  asm volatile("bar.sync %0,%1;" ::"r"(static_cast<int>(barrier)), "n"(kThreads + kHelperThreads) : "memory");
}

}  // namespace prnn::decode_cuda
