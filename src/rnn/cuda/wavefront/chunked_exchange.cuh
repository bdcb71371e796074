// How the two blocks of a cluster of the backward kernel by chunks signal and send sums to each other.
#pragma once

#include "rnn/cuda/common/dsmem.cuh"
#include "rnn/cuda/common/exchange.cuh"
#include "rnn/cuda/common/shared_memory.cuh"

namespace prnn {

// Whether the barrier's phase is over; unlike has_arrived(), returns at once.
__device__ __forceinline__ bool chunked_is_over(uint32_t barrier, uint32_t parity) {
  uint32_t done = 1;
#if PRNN_HAS_CLUSTERS
  asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p,[%1],%2; selp.u32 %0,1,0,p;}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
#endif
  return done != 0;
}
__device__ __forceinline__ void chunked_arrive(uint32_t barrier) {
#if PRNN_HAS_CLUSTERS
  asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(barrier) : "memory");
#endif
}

// Stores to another block of the cluster, which sees by the words that they have arrived.
__device__ __forceinline__ void chunked_store_to_rank(uint32_t address, float2 v) {
#if PRNN_HAS_CLUSTERS
  asm volatile("st.relaxed.cluster.shared::cluster.v2.f32 [%0],{%1,%2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
#endif
}
__device__ __forceinline__ void chunked_store_to_rank(uint32_t address, const float* v) {
#if PRNN_HAS_CLUSTERS
  asm volatile("st.relaxed.cluster.shared::cluster.v4.f32 [%0],{%1,%2,%3,%4};" ::"r"(address), "f"(v[0]), "f"(v[1]),
               "f"(v[2]), "f"(v[3])
               : "memory");
#endif
}

__device__ __forceinline__ void chunked_load(uint32_t address, float (&v)[1]) { load_shared(address, v[0]); }
__device__ __forceinline__ void chunked_load(uint32_t address, float (&v)[2]) {
  asm volatile("ld.shared.v2.f32 {%0,%1},[%2];" : "=f"(v[0]), "=f"(v[1]) : "r"(address) : "memory");
}
// Whether what another block stores has arrived.
__device__ __forceinline__ bool chunked_load_arrived(uint32_t address, float (&v)[1]) {
  asm volatile("ld.volatile.shared.f32 %0,[%1];" : "=f"(v[0]) : "r"(address) : "memory");
  return __float_as_uint(v[0]) != kEmpty;
}
__device__ __forceinline__ bool chunked_load_arrived(uint32_t address, float (&v)[2]) {
  asm volatile("ld.volatile.shared.v2.f32 {%0,%1},[%2];" : "=f"(v[0]), "=f"(v[1]) : "r"(address) : "memory");
  return max(__float_as_uint(v[0]), __float_as_uint(v[1])) != kEmpty;
}
__device__ __forceinline__ bool chunked_load_arrived(uint32_t address, float (&v)[4]) {
  asm volatile("ld.volatile.shared.v4.f32 {%0,%1,%2,%3},[%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(address)
               : "memory");
  return max(max(__float_as_uint(v[0]), __float_as_uint(v[1])), max(__float_as_uint(v[2]), __float_as_uint(v[3]))) !=
         kEmpty;
}

}  // namespace prnn
