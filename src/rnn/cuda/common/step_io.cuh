// Loads and stores of a timestep besides the exchanged words.
#pragma once

#include <type_traits>

#include "rnn/cuda/common/element.cuh"

namespace prnn {

template <class T>
__device__ __forceinline__ float load_float(const void* base, int64_t index) {
  return Element<T>::to_float(static_cast<const T*>(base)[index]);
}

template <class T>
__device__ __forceinline__ void store_float(void* base, int64_t index, float value) {
  static_cast<T*>(base)[index] = Element<T>::from_float(value);
}

// Four values of one unit, in one access.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T value[4];
};

// An element in a register of its own: two of 16 bits in the halves of one would wait for each other.
template <class T>
__device__ __forceinline__ uint32_t load_element(const T* from) {
  uint32_t bits;
  if constexpr (sizeof(T) == 4) {
    asm volatile("ld.global.cs.u32 %0,[%1];" : "=r"(bits) : "l"(from));
    return bits;
  }
  asm volatile("{.reg .u16 h; ld.global.cs.u16 h,[%1]; cvt.u32.u16 %0,h;}" : "=r"(bits) : "l"(from));
  return bits;
}

template <class T>
__device__ __forceinline__ float element_value(uint32_t bits) {
  const std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t> element = bits;
  return Element<T>::to_float(reinterpret_cast<const T&>(element));
}

}  // namespace prnn
