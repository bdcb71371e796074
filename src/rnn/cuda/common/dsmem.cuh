// Thread-block clusters: distributed shared memory, and the mbarriers that count what other blocks send.
#pragma once

#include "core/cuda/features.cuh"
#include "rnn/cuda/common/exchange.cuh"
#include "rnn/cuda/common/shared_memory.cuh"

namespace prnn {

#if PRNN_HAS_CLUSTERS
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0,%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// In two parts.
__device__ __forceinline__ void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ uint32_t address_in_rank(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

__device__ __forceinline__ void init_barrier(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0],1;" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void expect_bytes(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

// Sends 16 bytes to a block of the cluster; the barrier there counts them.
__device__ __forceinline__ void send_to_rank(uint32_t address, uint32_t barrier, const float4& v) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0],{%1,%2,%3,%4},[%5];" ::"r"(address),
               "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
               : "memory");
}
#else
// Never called: clusters are launched on compute capability 9.0 and above alone.
__device__ __forceinline__ uint32_t cluster_rank() { return 0; }
__device__ __forceinline__ void sync_cluster() {}
__device__ __forceinline__ void arrive_at_cluster() {}
__device__ __forceinline__ void wait_for_cluster() {}
__device__ __forceinline__ uint32_t address_in_rank(uint32_t address, uint32_t) { return address; }
__device__ __forceinline__ void init_barrier(uint64_t*) {}
__device__ __forceinline__ void expect_bytes(uint64_t*, uint32_t) {}
__device__ __forceinline__ void send_to_rank(uint32_t, uint32_t, const float4&) {}
#endif

// Sends 4 bytes to a block of the cluster; the barrier there counts them.
__device__ __forceinline__ void send_word(uint32_t address, uint32_t barrier, uint32_t word) {
#if PRNN_HAS_CLUSTERS
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0],%1,[%2];" ::"r"(address), "r"(word),
               "r"(barrier)
               : "memory");
#endif
}

// Sends 8 bytes.
__device__ __forceinline__ void send_words(uint32_t address, uint32_t barrier, uint32_t first, uint32_t second) {
#if PRNN_HAS_CLUSTERS
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0],{%1,%2},[%3];" ::"r"(address),
               "r"(first), "r"(second), "r"(barrier)
               : "memory");
#endif
}

// Whether the barrier's phase of this parity is over. What it counted is then there to be read. The block's scope is
// enough, whose barrier and data they are; the cluster's would empty the L1 cache each time.
__device__ __forceinline__ bool has_arrived(uint32_t barrier, uint32_t parity) {
  uint32_t done = 1;
#if PRNN_HAS_CLUSTERS
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p,[%1],%2; selp.u32 %0,1,0,p;}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
#endif
  return done != 0;
}

__device__ __forceinline__ void wait_for_arrival(uint32_t barrier, uint32_t parity, int* fault, bool& timed_out) {
  if (timed_out || has_arrived(barrier, parity)) return;
  SpinTimeout timeout;
  while (!has_arrived(barrier, parity)) {
    if (timeout.keeps_spinning(fault)) continue;
    timed_out = true;
    return;
  }
}

// Waits by all lanes of a warp.
__device__ __forceinline__ void wait_for_arrival_by_warp(uint32_t barrier, uint32_t parity, int* fault,
                                                         bool& timed_out) {
  SpinTimeout timeout;
  while (!timed_out && !__all_sync(kWholeWarp, has_arrived(barrier, parity))) {
    if (!__all_sync(kWholeWarp, timeout.keeps_spinning(fault))) timed_out = true;
  }
}

// Makes initialised barriers visible to the cluster; a barrier of the cluster must follow.
__device__ __forceinline__ void fence_barriers() {
#if PRNN_HAS_CLUSTERS
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Two barriers that count what other blocks of the cluster send in even and in odd steps.
struct BarrierPair {
  uint64_t barrier[2];

  // A barrier of the block and of the cluster must follow. `first_bytes`: that step 0 waits for; 0: expect() says it.
  __device__ __forceinline__ void init(uint32_t first_bytes = 0) {
    if (threadIdx.x != 0) return;
    init_barrier(&barrier[0]);
    init_barrier(&barrier[1]);
    fence_barriers();
    if (first_bytes > 0) expect_bytes(&barrier[0], first_bytes);
  }
  __device__ __forceinline__ uint32_t address(int buffer) { return shared_address(&barrier[buffer]); }
  __device__ __forceinline__ void expect(int buffer, uint32_t bytes) {
    if (threadIdx.x == 0) expect_bytes(&barrier[buffer], bytes);
  }
  // Waits for what was sent in step `s`.
  __device__ __forceinline__ void wait(int s, int* fault, bool& timed_out) {
    wait_for_arrival_by_warp(address(s & 1), s / 2 & 1, fault, timed_out);
  }
};

}  // namespace prnn
