// What the kernels of wavefronts by chunks have in common: recurrent weights of a layer on a share of the GPU, in
// registers and shared memory, and the product of a chunk of timesteps with the weights of the neighbouring layer.
#pragma once

#include "rnn/cuda/common/lanes.cuh"
#include "rnn/cuda/mma/product.cuh"
#include "rnn/cuda/wavefront/wgmma_product.cuh"
#include "rnn/plan/wavefront_chunked.h"

namespace prnn {

constexpr int kSumsRead = 1;  // named barrier: the sums of a step have been read

// Weights of PAIRS pairs of row tiles by K_TILES k-tiles of a warp, in the order in which they are multiplied. Of
// kFragments operands of the instruction, IN_REGISTERS are spread evenly over that order, so that the others are loaded
// from shared memory while these are multiplied.
template <class T, int PAIRS, int K_TILES, int IN_REGISTERS>
struct ChunkedWeights {
  static constexpr int kFragments = 2 * PAIRS * K_TILES;
  static constexpr int kInRegisters = IN_REGISTERS < kFragments ? IN_REGISTERS : kFragments;
  static constexpr int kInShared = kFragments - kInRegisters;

  uint4 weights[kInRegisters];
  uint4* more;  // shared memory: [fragment][thread]

  // Fragments before number f that are in registers.
  static constexpr int registers_before(int f) { return f * kInRegisters / kFragments; }
  static constexpr bool is_in_register(int f) { return registers_before(f + 1) > registers_before(f); }

  __device__ __forceinline__ void keep(int f, const uint4& operand) {
    if (is_in_register(f)) {
      weights[registers_before(f)] = operand;
    } else {
      more[(f - registers_before(f)) * kResidentThreads] = operand;
    }
  }
  __device__ __forceinline__ uint4 operand(int f) const {
    return is_in_register(f) ? weights[registers_before(f)] : more[(f - registers_before(f)) * kResidentThreads];
  }
};

// ---- the product of a chunk ----

__device__ __forceinline__ void copy_async(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(to), "l"(from) : "memory");
}

#if PRNN_HAS_WGMMA
#define PRNN_D4(at) "+f"(d[at]), "+f"(d[at + 1]), "+f"(d[at + 2]), "+f"(d[at + 3])
#define PRNN_D8(at) PRNN_D4(at), PRNN_D4(at + 4)
template <class T>
__device__ __forceinline__ void wgmma_columns(float (&d)[40], uint64_t a, uint64_t b) {
#define PRNN_WGMMA80(type)                                                                                         \
  asm volatile("wgmma.mma_async.sync.aligned.m64n80k16.f32." type "." type                                         \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%" \
               "26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39},%40,%41,1,1,1,0,0;"                        \
               : PRNN_D8(0), PRNN_D8(8), PRNN_D8(16), PRNN_D8(24), PRNN_D8(32)                                     \
               : "l"(a), "l"(b))
  if constexpr (Element<T>::kIsHalf) {
    PRNN_WGMMA80("f16");
  } else {
    PRNN_WGMMA80("bf16");
  }
#undef PRNN_WGMMA80
}
template <class T>
__device__ __forceinline__ void wgmma_columns(float (&d)[24], uint64_t a, uint64_t b) {
#define PRNN_WGMMA48(type)                                                                                \
  asm volatile("wgmma.mma_async.sync.aligned.m64n48k16.f32." type "." type                                \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23}" \
               ",%24,%25,1,1,1,0,0;"                                                                      \
               : PRNN_D8(0), PRNN_D8(8), PRNN_D8(16)                                                      \
               : "l"(a), "l"(b))
  if constexpr (Element<T>::kIsHalf) {
    PRNN_WGMMA48("f16");
  } else {
    PRNN_WGMMA48("bf16");
  }
#undef PRNN_WGMMA48
}
template <class T>
__device__ __forceinline__ void wgmma_columns(float (&d)[32], uint64_t a, uint64_t b) {
  wgmma(static_cast<const T*>(nullptr), d, a, b);
}
#undef PRNN_D8
#undef PRNN_D4
#else
template <class T, int COUNT>
__device__ __forceinline__ void wgmma_columns(float (&)[COUNT], uint64_t, uint64_t) {}
#endif

// D[64, 2 COLUMNS] = A[64, K] B[2 COLUMNS, K]': warpgroup w has columns w * COLUMNS onwards. `a_row(r)` and `b_row(c)`
// are where row r of A and of B begins, both aligned to 16 bytes; K is a multiple of 64. `stages`: shared memory,
// kChunkedStages * chunked_stage_bytes(2 * COLUMNS), aligned to 1024 bytes. The whole block calls it.
template <class T, int COLUMNS, class ARow, class BRow>
__device__ __forceinline__ void multiply_rows(float (&sums)[COLUMNS / 2], int k_elements, uint32_t stages, int thread,
                                              const ARow& a_row, const BRow& b_row) {
  constexpr int kStage = chunked_stage_bytes(2 * COLUMNS), kLoadsA = kChunkedRows / 32, kLoadsB = COLUMNS / 16;
  const int warpgroup = __shfl_sync(kWholeWarp, threadIdx.x / 128, 0);
  const int row = thread / 8, vec = thread % 8;
  const int chunks = k_elements / 64;
  const auto issue = [&](int chunk) {
    if (chunk < chunks) {
      const uint32_t stage = stages + chunk % kChunkedStages * kStage;
      const int element = chunk * 64 + vec * 8;
#pragma unroll
      for (int i = 0; i < kLoadsA; ++i) copy_async(stage + swizzled(row + i * 32, vec), a_row(row + i * 32) + element);
#pragma unroll
      for (int i = 0; i < kLoadsB; ++i) {
        copy_async(stage + kChunkedRows * 128 + swizzled(row + i * 32, vec), b_row(row + i * 32) + element);
      }
    }
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = 0;
#pragma unroll
  for (int i = 0; i < kChunkedStages; ++i) issue(i);
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_for_copies<kChunkedStages - 1>();
    fence_for_wgmma();
    __syncthreads();
    const uint32_t stage = stages + chunk % kChunkedStages * kStage;
    const uint64_t a = matrix_descriptor(stage);
    const uint64_t b = matrix_descriptor(stage + (kChunkedRows + warpgroup * COLUMNS) * 128);
    wgmma_begin();
#pragma unroll
    for (int s = 0; s < 4; ++s) wgmma_columns<T>(sums, a + s * 2, b + s * 2);
    wgmma_commit();
    wgmma_wait<0>();
    __syncthreads();
    issue(chunk + kChunkedStages);
  }
}

// ---- a layer's progress: how many of its blocks have finished a chunk, counted over all chunks ----

__device__ __forceinline__ void count_block(unsigned* progress) {
  asm volatile("red.release.gpu.global.add.u32 [%0],1;" ::"l"(progress) : "memory");
}
__device__ __forceinline__ void wait_for_blocks(const unsigned* progress, unsigned blocks, int* fault,
                                                bool& timed_out) {
  SpinTimeout timeout;
  unsigned count = 0;
  while (!timed_out) {
    asm volatile("ld.acquire.gpu.global.u32 %0,[%1];" : "=r"(count) : "l"(progress) : "memory");
    if (count >= blocks) return;
    if (!timeout.keeps_spinning(fault)) timed_out = true;
  }
}

}  // namespace prnn
