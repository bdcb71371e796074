// Loads and stores of shared memory by its 32-bit address.
#pragma once

#include <cstdint>

namespace prnn {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ uint4 load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

__device__ __forceinline__ void load_shared(uint32_t address, float& v) {
  asm volatile("ld.shared.f32 %0,[%1];" : "=f"(v) : "r"(address) : "memory");
}

__device__ __forceinline__ void load_shared(uint32_t address, float4& v) {
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3},[%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void add_to(float& sum, float value) { sum += value; }
__device__ __forceinline__ void add_to(float4& sum, const float4& value) {
  sum.x += value.x, sum.y += value.y, sum.z += value.z, sum.w += value.w;
}

// The sum of all, in pairs, into the first.
template <class V, int COUNT>
__device__ __forceinline__ void add_all(V (&values)[COUNT]) {
#pragma unroll
  for (int step = 1; step < COUNT; step *= 2) {
#pragma unroll
    for (int i = 0; i + step < COUNT; i += 2 * step) add_to(values[i], values[i + step]);
  }
}

__device__ __forceinline__ void store_shared(bool valid, uint32_t address, float value) {
  asm volatile("{.reg .pred p; setp.ne.u32 p,%2,0; @p st.shared.f32 [%0],%1;}" ::"r"(address), "f"(value),
               "r"(static_cast<uint32_t>(valid))
               : "memory");
}

__device__ __forceinline__ void store_shared(bool valid, uint32_t address, float4 v) {
  asm volatile("{.reg .pred p; setp.ne.u32 p,%5,0; @p st.shared.v4.f32 [%0],{%1,%2,%3,%4};}" ::"r"(address), "f"(v.x),
               "f"(v.y), "f"(v.z), "f"(v.w), "r"(static_cast<uint32_t>(valid))
               : "memory");
}

}  // namespace prnn
