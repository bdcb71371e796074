// Loads and stores under a condition as single predicated instructions. The compiler may make a branch of an `if`,
// which costs a recursion more than the access itself.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace prnn {

// value = *at if `wanted`; else it stays. Nobody waits for the load before value is used.
__device__ __forceinline__ void load_if(bool wanted, const float* at, float& value) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p ld.global.f32 %0, [%1]; }"
               : "+f"(value)
               : "l"(at), "r"(static_cast<int>(wanted)));
}
__device__ __forceinline__ void load_if(bool wanted, const double* at, double& value) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p ld.global.f64 %0, [%1]; }"
               : "+d"(value)
               : "l"(at), "r"(static_cast<int>(wanted)));
}
__device__ __forceinline__ void load_pair_if(bool wanted, const float* at, float& first, float& second) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %3, 0; @p ld.global.v2.f32 {%0, %1}, [%2]; }"
               : "+f"(first), "+f"(second)
               : "l"(at), "r"(static_cast<int>(wanted)));
}
__device__ __forceinline__ void load_pair_if(bool wanted, const double* at, double& first, double& second) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %3, 0; @p ld.global.v2.f64 {%0, %1}, [%2]; }"
               : "+d"(first), "+d"(second)
               : "l"(at), "r"(static_cast<int>(wanted)));
}

// *at = value if `wanted`, for types of 8 or 16 bytes.
template <class T>
__device__ __forceinline__ void store_if(bool wanted, T* at, const T& value) {
  static_assert(sizeof(T) == 8 || sizeof(T) == 16);
  if constexpr (sizeof(T) == 8) {
    const uint2 words = reinterpret_cast<const uint2&>(value);
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %3, 0; @p st.global.v2.b32 [%0], {%1, %2}; }" ::"l"(at), "r"(words.x),
                 "r"(words.y), "r"(static_cast<int>(wanted))
                 : "memory");
  } else {
    const uint4 words = reinterpret_cast<const uint4&>(value);
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; @p st.global.v4.b32 [%0], {%1, %2, %3, %4}; }" ::"l"(at),
                 "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w), "r"(static_cast<int>(wanted))
                 : "memory");
  }
}

}  // namespace prnn
