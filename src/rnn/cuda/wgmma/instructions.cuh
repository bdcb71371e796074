// The wgmma instruction, D[64 rows, COLUMNS] += A[64, K] B[K, COLUMNS] by the 4 warps of a warpgroup, and how its
// operands lie in shared memory. K is 32 bytes: 16 elements of 16 bits, 8 tf32 numbers.
#pragma once

#include "core/cuda/features.cuh"
#include "rnn/cuda/common/element.cuh"

namespace prnn {

struct Tf32;  // common/tf32.cuh

#if PRNN_HAS_WGMMA
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until no more than PENDING of the committed products are running.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Makes this thread's stores to shared memory visible to wgmma; a barrier must follow.
__device__ __forceinline__ void fence_for_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define PRNN_SUMS4(at) "+f"(d[at]), "+f"(d[at + 1]), "+f"(d[at + 2]), "+f"(d[at + 3])
#define PRNN_SUMS8(at) PRNN_SUMS4(at), PRNN_SUMS4(at + 4)
#define PRNN_SUMS16(at) PRNN_SUMS8(at), PRNN_SUMS8(at + 8)
#define PRNN_SUMS32(at) PRNN_SUMS16(at), PRNN_SUMS16(at + 16)
// clang-format off
#define PRNN_WGMMA(type, columns, sums, d_names, a_names, b_of_registers, a_of_shared, b_of_shared)                    \
  __device__ __forceinline__ void wgmma(const type*, float (&d)[columns / 2], const uint32_t (&a)[4], uint64_t b) {    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns PRNN_WGMMA_TYPES                                         \
                 " {" d_names "},{" a_names "}," b_of_registers ",1,1,1" PRNN_WGMMA_TRANSPOSES_B ";"                   \
                 : sums(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                      \
  }                                                                                                                    \
  __device__ __forceinline__ void wgmma(const type*, float (&d)[columns / 2], uint64_t a, uint64_t b) {                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns PRNN_WGMMA_TYPES                                         \
                 " {" d_names "}," a_of_shared "," b_of_shared ",1,1,1" PRNN_WGMMA_TRANSPOSES_BOTH ";"                 \
                 : sums(0) : "l"(a), "l"(b));                                                                          \
  }
#define PRNN_NAMES4 "%0,%1,%2,%3"
#define PRNN_NAMES8 PRNN_NAMES4 ",%4,%5,%6,%7"
#define PRNN_NAMES16 PRNN_NAMES8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define PRNN_NAMES32 PRNN_NAMES16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define PRNN_WGMMA_OF(type)                                                            \
  PRNN_WGMMA(type, 8, PRNN_SUMS4, PRNN_NAMES4, "%4,%5,%6,%7", "%8", "%4", "%5")        \
  PRNN_WGMMA(type, 16, PRNN_SUMS8, PRNN_NAMES8, "%8,%9,%10,%11", "%12", "%8", "%9")    \
  PRNN_WGMMA(type, 32, PRNN_SUMS16, PRNN_NAMES16, "%16,%17,%18,%19", "%20", "%16", "%17") \
  PRNN_WGMMA(type, 64, PRNN_SUMS32, PRNN_NAMES32, "%32,%33,%34,%35", "%36", "%32", "%33")
// clang-format on
#define PRNN_WGMMA_TRANSPOSES_B ",0"
#define PRNN_WGMMA_TRANSPOSES_BOTH ",0,0"
#define PRNN_WGMMA_TYPES "k16.f32.f16.f16"
PRNN_WGMMA_OF(__half)
#undef PRNN_WGMMA_TYPES
#define PRNN_WGMMA_TYPES "k16.f32.bf16.bf16"
PRNN_WGMMA_OF(__nv_bfloat16)
#undef PRNN_WGMMA_TYPES
#undef PRNN_WGMMA_TRANSPOSES_B
#undef PRNN_WGMMA_TRANSPOSES_BOTH
// Operands of 32 bits cannot be transposed.
#define PRNN_WGMMA_TRANSPOSES_B
#define PRNN_WGMMA_TRANSPOSES_BOTH
#define PRNN_WGMMA_TYPES "k8.f32.tf32.tf32"
PRNN_WGMMA_OF(Tf32)
#undef PRNN_WGMMA_TYPES
#undef PRNN_WGMMA_TRANSPOSES_B
#undef PRNN_WGMMA_TRANSPOSES_BOTH
#undef PRNN_WGMMA_OF
#undef PRNN_WGMMA
#undef PRNN_NAMES32
#undef PRNN_NAMES16
#undef PRNN_NAMES8
#undef PRNN_NAMES4
#undef PRNN_SUMS32
#undef PRNN_SUMS16
#undef PRNN_SUMS8
#undef PRNN_SUMS4
#else
// Never called: the wgmma kernels are launched on compute capability 9.0 alone.
__device__ __forceinline__ void wgmma_begin() {}
__device__ __forceinline__ void wgmma_commit() {}
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {}
__device__ __forceinline__ void fence_for_wgmma() {}
template <class T, int HALF_COLUMNS, class A>
__device__ __forceinline__ void wgmma(const T*, float (&)[HALF_COLUMNS], const A&, uint64_t) {}
#endif

// Descriptor of a matrix in shared memory, rows of 128 bytes whose 16-byte vectors are permuted: vec p of row r is at
// p ^ (r % 8). Eight rows are 1024 bytes, aligned.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

__device__ __forceinline__ uint32_t swizzled(int row, int vec) {
  return static_cast<uint32_t>(row * 128 + (vec ^ (row % 8)) * 16);
}

__device__ __forceinline__ void store_shared(uint32_t address, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0],{%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(uint32_t (&v)[4], uint32_t address) {
  if constexpr (TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
  }
}

// Adds the product of 64 rows and a chunk, whose states lie at `states`. Weights in registers, and in shared memory.
template <class T, int HALF_COLUMNS>
__device__ __forceinline__ void multiply_chunk(float (&sums)[HALF_COLUMNS], const uint32_t (&weights)[4][4],
                                               uint64_t states) {
#pragma unroll
  for (int s = 0; s < 4; ++s) wgmma(static_cast<const T*>(nullptr), sums, weights[s], states + s * 2);
}
template <class T, int HALF_COLUMNS>
__device__ __forceinline__ void multiply_chunk(float (&sums)[HALF_COLUMNS], uint64_t weights, uint64_t states) {
#pragma unroll
  for (int s = 0; s < 4; ++s) wgmma(static_cast<const T*>(nullptr), sums, weights + s * 2, states + s * 2);
}

}  // namespace prnn
