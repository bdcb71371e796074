// Words that blocks exchange through L2: publishing, polling, and the limit on a wait.
#pragma once

#include <cstdint>

#include "rnn/cuda/common/element.cuh"

namespace prnn {

constexpr unsigned kWholeWarp = 0xFFFFFFFFu;

__device__ __forceinline__ void publish_word(bool valid, void* address, uint32_t word) {
  asm volatile("{.reg .pred p; setp.ne.u32 p,%2,0; @p st.relaxed.gpu.global.u32 [%0],%1;}" ::"l"(address), "r"(word),
               "r"(static_cast<uint32_t>(valid))
               : "memory");
}

// 16 bytes that other blocks write, or zeros. Predicated, without a branch.
__device__ __forceinline__ uint4 load_or_zeros(bool wanted, const void* address) {
  uint4 v;
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p,%4,0; mov.u32 %0,0; mov.u32 %1,0; mov.u32 %2,0; mov.u32 %3,0;"
      "@p ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3},[%5];}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "r"(static_cast<uint32_t>(wanted)), "l"(address)
      : "memory");
  return v;
}

// kEmpty if a word has not arrived yet: it is the largest of all.
__device__ __forceinline__ uint32_t largest_word(const uint4& v) { return max(max(v.x, v.y), max(v.z, v.w)); }

// Loads again, without a branch, what has not arrived yet.
__device__ __forceinline__ void reload_if_missing(uint4& v, const void* address) {
  asm volatile("{.reg .pred p; setp.eq.u32 p,%4,0xFFFFFFFF; @p ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3},[%5];}"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
               : "r"(largest_word(v)), "l"(address)
               : "memory");
}

__device__ __forceinline__ uint64_t global_nanoseconds() {
  uint64_t time;
  asm volatile("mov.u64 %0,%globaltimer;" : "=l"(time));
  return time;
}

// Returns `number`, opaque to the compiler: what rare code computes from it stays in that code, and takes no registers
// from the loop around it.
__device__ __forceinline__ int pin_in_register(int number) {
  asm volatile("" : "+r"(number));
  return number;
}

// Keeps the compiler from working a value out again, or only, where it is used: after a wait, each cycle counts.
__device__ __forceinline__ void pin_in_register(uint32_t& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void pin_in_register(float& value) { asm volatile("" : "+f"(value)); }

// Differences of up to 2 seconds count.
__device__ __forceinline__ unsigned clock_low() {
  unsigned cycles;
  asm volatile("mov.u32 %0,%clock;" : "=r"(cycles)::"memory");
  return cycles;
}

// Polls before others' stores can have arrived compete with those stores: waits until so many cycles since the block's
// own.
__device__ __forceinline__ void wait_poll_delay(unsigned published, int cycles) {
  while (clock_low() - published < static_cast<unsigned>(cycles)) {
  }
}

// Whether a wait goes on. Looks at the clock and at the fault flag only now and then. False: give up, the kernel's
// results are lost and `fault` says so to the next call.
struct SpinTimeout {
  static constexpr uint64_t kNanoseconds = 4000000000;
  unsigned polls = 0;
  uint64_t start = 0;

  __device__ __forceinline__ bool keeps_spinning(int* fault) {
    if ((++polls & 0xFFF) != 0) return true;
    const uint64_t now = global_nanoseconds();
    if (start == 0) start = now;
    if (*static_cast<volatile int*>(fault) != 0) return false;
    if (now - start < kNanoseconds) return true;
    *static_cast<volatile int*>(fault) = 1;
    __threadfence_system();
    return false;
  }
};

// Waits until all words of this warp's loads have arrived; reloads those that have not. `address(i)` is where words[i]
// was loaded from.
template <int COUNT, class Address>
__device__ __forceinline__ void poll_words(uint4 (&words)[COUNT], const Address& address, int* fault, bool& timed_out) {
  SpinTimeout timeout;
  while (!timed_out) {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) largest = max(largest, largest_word(words[i]));
    if (!__any_sync(kWholeWarp, largest == kEmpty)) return;
    if (!__all_sync(kWholeWarp, timeout.keeps_spinning(fault))) timed_out = true;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) reload_if_missing(words[i], address(i));
  }
}

// Publishes the values of 8 units of one sequence: lane unit * 4 + sub has the one of `unit`. `row` is where unit 0
// goes.
template <class T>
__device__ __forceinline__ void publish_unit_tile(T* row, int lane, float value, bool valid) {
  if constexpr (Element<T>::kPerWord == 2) {
    const int from = lane % 4 * 8;  // lane s of the first four stores units 2 s and 2 s + 1
    const float first = __shfl_sync(kWholeWarp, value, from), second = __shfl_sync(kWholeWarp, value, from + 4);
    publish_word(valid && lane < 4, row + 2 * lane, Element<T>::pack(first, second));
  } else {
    publish_word(valid && lane % 4 == 0, row + lane / 4, Element<T>::pack(value, 0));
  }
}

// Publishes where every `sub` has a row of its own: `row` is that of this lane.
template <class T>
__device__ __forceinline__ void publish_gate_tiles(T* row, int lane, float value, bool valid) {
  const int unit = lane / 4;
  if constexpr (Element<T>::kPerWord == 2) {
    const float next = __shfl_down_sync(kWholeWarp, value, 4);
    publish_word(valid && unit % 2 == 0, row + unit, Element<T>::pack(value, next));
  } else {
    publish_word(valid, row + unit, Element<T>::pack(value, 0));
  }
}

}  // namespace prnn
