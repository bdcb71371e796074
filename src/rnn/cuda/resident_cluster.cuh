// What the cluster kernels have in common: a layer whose weights fit one thread-block cluster, whose blocks send their
// states straight into each other's shared memory. docs/resident_kernels.md explains the design.
#pragma once

#include "rnn/cuda/resident.cuh"
#include "rnn/plan/cluster.h"

namespace prnn {

// Keeps the compiler from working a value out again, or only, where it is used: after a wait, each cycle counts.
__device__ __forceinline__ void keep(uint32_t& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void keep(float& value) { asm volatile("" : "+f"(value)); }

// Sends 4 bytes to a block of the cluster; the barrier there counts them.
__device__ __forceinline__ void send_word(uint32_t address, uint32_t barrier, uint32_t word) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0],%1,[%2];" ::"r"(address), "r"(word),
               "r"(barrier)
               : "memory");
#endif
}

// Whether the barrier's phase of this parity is over. What it counted is then there to be read. The block's scope is
// enough, whose barrier and data they are; the cluster's would empty the L1 cache each time.
__device__ __forceinline__ bool has_arrived(uint32_t barrier, uint32_t parity) {
  uint32_t done = 1;
#if __CUDA_ARCH__ >= 900
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p,[%1],%2; selp.u32 %0,1,0,p;}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
#endif
  return done != 0;
}

__device__ __forceinline__ void wait_for_arrival(uint32_t barrier, uint32_t parity, int* fault, bool& gave_up) {
  if (gave_up || has_arrived(barrier, parity)) return;
  Patience patience;
  while (!has_arrived(barrier, parity)) {
    if (patience.lasts(fault)) continue;
    gave_up = true;
    return;
  }
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

// Makes initialised barriers visible to the cluster; a barrier of the cluster must follow.
__device__ __forceinline__ void fence_barriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// A 16-bit element in a register of its own: two in the halves of one would wait for each other.
template <class T>
__device__ __forceinline__ uint32_t load_element(const T* from) {
  uint32_t bits;
  asm volatile("{.reg .u16 h; ld.global.cs.u16 h,[%1]; cvt.u32.u16 %0,h;}" : "=r"(bits) : "l"(from));
  return bits;
}

template <class T>
__device__ __forceinline__ float element_value(uint32_t bits) {
  const uint16_t low = static_cast<uint16_t>(bits);
  return Element<T>::to_float(reinterpret_cast<const T&>(low));
}

// Timesteps that have a sequence from `column` on: the first ones, since batches do not grow.
__device__ __forceinline__ int steps_of_column(const ResidentSizes& sizes, int column) {
  if (sizes.table == nullptr) return sizes.steps;
  int low = 0, high = sizes.steps;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (sizes.table[middle].batch > column) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// One cluster for every group of every direction. They do not wait for each other: they need not be resident together.
template <class Params>
cudaError_t launch_cluster(void (*kernel)(Params), int cluster, int threads, size_t shared_bytes, const Params& params,
                           cudaStream_t stream) {
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(cluster * params.sizes.groups * params.sizes.directions));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, params);
}

}  // namespace prnn
