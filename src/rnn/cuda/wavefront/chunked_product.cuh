// Shared parts of the kernels of wavefronts by chunks: recurrent weights of a layer on a share of the GPU, in
// registers and shared memory, and the products of a chunk of timesteps with a matrix that is read from L2.
#pragma once

#include <utility>

#include "rnn/cuda/wavefront/wgmma_product.cuh"
#include "rnn/plan/wavefront_chunked.h"

namespace prnn {

// ---- recurrent weights ----

// The operands of a block's row tiles by kChunkedKTiles k-tiles of a warp, in the order in which they are multiplied.
// The operands that are in registers are spread evenly over that order: while they are multiplied, the others are
// loaded from shared memory.
template <int GATES, int UNIT_TILES>
struct ChunkedWeights {
  static constexpr int kOperands = chunked_operands(GATES, UNIT_TILES);
  static constexpr int kInRegisters = chunked_registers(GATES, UNIT_TILES);

  uint4 weights[kInRegisters];
  uint4* more;  // shared memory: [operand][thread]

  static constexpr int registers_before(int operand) { return operand * kInRegisters / kOperands; }
  static constexpr bool is_in_register(int operand) {
    return registers_before(operand + 1) > registers_before(operand);
  }

  __device__ __forceinline__ void keep(int i, const uint4& operand) {
    if (is_in_register(i)) {
      weights[registers_before(i)] = operand;
    } else {
      more[(i - registers_before(i)) * kResidentThreads] = operand;
    }
  }
  __device__ __forceinline__ uint4 operand(int i) const {
    return is_in_register(i) ? weights[registers_before(i)] : more[(i - registers_before(i)) * kResidentThreads];
  }
};

// One buffer of sums: a warp says that it has read those of a step, and waits for all before it stores the next ones.
constexpr int kSumsReadBarrier = 1;
__device__ __forceinline__ void arrive_sums_read() {
  asm volatile("bar.arrive %0,%1;" ::"n"(kSumsReadBarrier), "n"(2 * kResidentThreads) : "memory");
}
__device__ __forceinline__ void sync_sums_read() {
  asm volatile("bar.sync %0,%1;" ::"n"(kSumsReadBarrier), "n"(2 * kResidentThreads) : "memory");
}

constexpr int kLineBytes = 128;  // of L2
__device__ __forceinline__ void prefetch_to_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}

// copy_ahead() of a row whose next bytes are copied soon: where L2 does not have it, 256 bytes of it come at once.
__device__ __forceinline__ void copy_row_ahead(bool wanted, uint32_t to, const void* from) {
  asm volatile("{.reg .pred p; setp.ne.u32 p,%0,0; @p cp.async.cg.shared.global.L2::256B [%1],[%2],16;}" ::"r"(
                   static_cast<uint32_t>(wanted)),
               "r"(to), "l"(from)
               : "memory");
}

// ---- the product of a chunk ----

// wgmma() for the numbers of columns that blocks have here, both operands in shared memory.
#if PRNN_HAS_WGMMA
#define PRNN_SUMS8(at)                                                                                               \
  "+f"(d[at]), "+f"(d[at + 1]), "+f"(d[at + 2]), "+f"(d[at + 3]), "+f"(d[at + 4]), "+f"(d[at + 5]), "+f"(d[at + 6]), \
      "+f"(d[at + 7])
#define PRNN_WGMMA(type)                                                                                           \
  asm volatile("wgmma.mma_async.sync.aligned.m64n80k16.f32." type "." type                                         \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%" \
               "26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39},%40,%41,1,1,1,0,0;"                        \
               : PRNN_SUMS8(0), PRNN_SUMS8(8), PRNN_SUMS8(16), PRNN_SUMS8(24), PRNN_SUMS8(32)                      \
               : "l"(a), "l"(b))
template <class T>
__device__ __forceinline__ void wgmma_columns(float (&d)[40], uint64_t a, uint64_t b) {
  if constexpr (Element<T>::kIsHalf) {
    PRNN_WGMMA("f16");
  } else {
    PRNN_WGMMA("bf16");
  }
}
#undef PRNN_WGMMA
#define PRNN_WGMMA(type)                                                                                  \
  asm volatile("wgmma.mma_async.sync.aligned.m64n48k16.f32." type "." type                                \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23}" \
               ",%24,%25,1,1,1,0,0;"                                                                      \
               : PRNN_SUMS8(0), PRNN_SUMS8(8), PRNN_SUMS8(16)                                             \
               : "l"(a), "l"(b))
template <class T>
__device__ __forceinline__ void wgmma_columns(float (&d)[24], uint64_t a, uint64_t b) {
  if constexpr (Element<T>::kIsHalf) {
    PRNN_WGMMA("f16");
  } else {
    PRNN_WGMMA("bf16");
  }
}
#undef PRNN_WGMMA
#define PRNN_WGMMA(type)                                                                                              \
  asm volatile("wgmma.mma_async.sync.aligned.m64n72k16.f32." type "." type                                            \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%"    \
               "26,%27,%28,%29,%30,%31,%32,%33,%34,%35},%36,%37,1,1,1,0,0;"                                           \
               : PRNN_SUMS8(0), PRNN_SUMS8(8), PRNN_SUMS8(16), PRNN_SUMS8(24), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), \
                 "+f"(d[35])                                                                                          \
               : "l"(a), "l"(b))
template <class T>
__device__ __forceinline__ void wgmma_columns(float (&d)[36], uint64_t a, uint64_t b) {
  if constexpr (Element<T>::kIsHalf) {
    PRNN_WGMMA("f16");
  } else {
    PRNN_WGMMA("bf16");
  }
}
#undef PRNN_WGMMA
#undef PRNN_SUMS8
template <class T>
__device__ __forceinline__ void wgmma_columns(float (&d)[32], uint64_t a, uint64_t b) {
  wgmma(static_cast<const T*>(nullptr), d, a, b);
}
template <class T>
__device__ __forceinline__ void wgmma_columns(float (&d)[8], uint64_t a, uint64_t b) {
  wgmma(static_cast<const T*>(nullptr), d, a, b);
}
#else
template <class T, int COUNT>
__device__ __forceinline__ void wgmma_columns(float (&)[COUNT], uint64_t, uint64_t) {}
#endif

// A stage has kChunkedStageK elements of K of each row, 64 bytes: as matrix_descriptor() and swizzled(), vec p of row r
// is at p ^ (r / 2 % 4), and eight rows are 512 bytes, aligned.
__device__ __forceinline__ uint64_t stage_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | uint64_t{1} << 16 | uint64_t{512 >> 4} << 32 |
         uint64_t{2} << 62;
}
__device__ __forceinline__ uint32_t stage_place(int row, int vec) {
  return static_cast<uint32_t>(row * 64 + (vec ^ (row / 2 % 4)) * 16);
}

// Goes through stages of shared memory, of which STAGES - 1 are on their way: `issue(s)` starts the copies of stage s,
// `multiply(s)` its products. The block calls it; the stages are free afterwards.
template <int STAGES, class Issue, class Multiply>
__device__ __forceinline__ void through_stages(int count, const Issue& issue, const Multiply& multiply) {
  const auto start = [&](int s) {
    if (s < count) issue(s);
    commit_copies();
  };
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) start(s);
#pragma unroll 1
  for (int s = 0; s < count; ++s) {
    wait_for_copies<STAGES - 2>();
    fence_for_wgmma();
    __syncthreads();  // stage s has arrived, and the one before has been multiplied
    start(s + STAGES - 1);
    multiply(s);
    wgmma_commit();
    wgmma_wait<0>();
  }
  __syncthreads();
}

// The rows of a chunk, operand A of its product: only they are read, and only their sums mean anything.
template <class T>
struct ChunkRows {
  const T* first;
  int count, stride;  // elements
};

// sums <- A[64, K] B[2 COLUMNS, K]', of which warpgroup w has columns w * COLUMNS onwards. `b_row(c)`: elements from
// `b` to row c of B. Rows begin aligned to 16 bytes; K is a multiple of kChunkedStageK. `stages`: shared memory of
// STAGES stages, aligned to 512 bytes, free. The whole block calls it; `thread` is threadIdx.x.
template <class T, int COLUMNS, int STAGES = kChunkedStages, class BRow>
__device__ __forceinline__ void multiply_rows(float (&sums)[COLUMNS / 2], int k_elements, uint32_t stages, int thread,
                                              ChunkRows<T> a, const T* b, const BRow& b_row) {
  constexpr int kVecs = kChunkedStageK * 2 / 16, kRowsAtOnce = kResidentThreads / kVecs;
  constexpr int kStageBytes = chunked_stage_bytes(2 * COLUMNS), kStageRow = kChunkedStageK * 2;
  constexpr int kLoadsA = kChunkedRows / kRowsAtOnce, kLoadsB = (2 * COLUMNS + kRowsAtOnce - 1) / kRowsAtOnce;
  static_assert(kRowsAtOnce % 8 == 0 && kChunkedRows % kRowsAtOnce == 0);
  const int warpgroup = __shfl_sync(kWholeWarp, threadIdx.x / 128, 0);
  const int row = thread / kVecs, vec = thread % kVecs, count = k_elements / kChunkedStageK;
  int from_b[kLoadsB];
#pragma unroll
  for (int i = 0; i < kLoadsB; ++i) from_b[i] = b_row(min(row + i * kRowsAtOnce, 2 * COLUMNS - 1)) + vec * 8;
  const uint32_t place = stages + stage_place(row, vec);
  a.first += int64_t{row} * a.stride + vec * 8;
  const auto issue = [&](int s) {
    const uint32_t to = place + s % STAGES * kStageBytes;
#pragma unroll
    for (int i = 0; i < kLoadsA; ++i) {
      const int first = i * kRowsAtOnce;
      copy_ahead(row + first < a.count, to + first * kStageRow, a.first + first * a.stride);
    }
    a.first += kChunkedStageK;
#pragma unroll
    for (int i = 0; i < kLoadsB; ++i) {
      const int first = i * kRowsAtOnce;
      const bool wanted = first + kRowsAtOnce <= 2 * COLUMNS || row + first < 2 * COLUMNS;
      copy_row_ahead(wanted, to + (kChunkedRows + first) * kStageRow, b + from_b[i]);
    }
    b += kChunkedStageK;
  };
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = 0;
  through_stages<STAGES>(count, issue, [&](int s) {
    const uint32_t stage = stages + s % STAGES * kStageBytes;
    const uint64_t a = stage_descriptor(stage);
    const uint64_t b = stage_descriptor(stage + (kChunkedRows + warpgroup * COLUMNS) * kStageRow);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < kChunkedStageK / 16; ++i) wgmma_columns<T>(sums, a + i * 2, b + i * 2);
  });
}

// wgmma with B as it lies, rows along K: 64 or 16 columns.
#if PRNN_HAS_WGMMA
#define PRNN_SUMS8(at)                                                                                               \
  "+f"(d[at]), "+f"(d[at + 1]), "+f"(d[at + 2]), "+f"(d[at + 3]), "+f"(d[at + 4]), "+f"(d[at + 5]), "+f"(d[at + 6]), \
      "+f"(d[at + 7])
#define PRNN_WGMMA(type)                                                                                          \
  if constexpr (COLUMNS == 64) {                                                                                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                      \
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%2" \
                 "5,%26,%27,%28,%29,%30,%31},%32,%33,1,1,1,0,1;"                                                  \
                 : PRNN_SUMS8(0), PRNN_SUMS8(8), PRNN_SUMS8(16), PRNN_SUMS8(24)                                   \
                 : "l"(a), "l"(b));                                                                               \
  } else {                                                                                                        \
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32." type "." type                                      \
                 " {%0,%1,%2,%3,%4,%5,%6,%7},%8,%9,1,1,1,0,1;"                                                    \
                 : PRNN_SUMS8(0)                                                                                  \
                 : "l"(a), "l"(b));                                                                               \
  }
template <class T, int COLUMNS>
__device__ __forceinline__ void wgmma_along_k(float (&d)[32], uint64_t a, uint64_t b) {
  static_assert(COLUMNS == 64 || COLUMNS == 16);
  if constexpr (Element<T>::kIsHalf) {
    PRNN_WGMMA("f16");
  } else {
    PRNN_WGMMA("bf16");
  }
}
#undef PRNN_WGMMA
#undef PRNN_SUMS8
#else
template <class T, int COLUMNS>
__device__ __forceinline__ void wgmma_along_k(float (&)[32], uint64_t, uint64_t) {}
#endif

// Descriptor of a matrix in shared memory whose rows, along K, are 128 bytes, as matrix_descriptor()'s, or 32 bytes:
// vec p of row k is at p ^ (k / 4 % 2). From 8 rows to the next 8 are 8 rows' bytes.
template <int ROW_BYTES>
__device__ __forceinline__ uint64_t descriptor_along_k(uint32_t address) {
  static_assert(ROW_BYTES == 128 || ROW_BYTES == 32);
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | uint64_t{8 * ROW_BYTES >> 4} << 32 |
         uint64_t{ROW_BYTES == 128 ? 1 : 3} << 62;
}

// From `stages` to a stage that multiply_columns() does not use for the last products.
constexpr uint32_t free_columns_stage(int k_elements) {
  return k_elements / kChunkedColumnsK % kChunkedColumnsStages * chunked_columns_stage_bytes();
}

// sums <- A[64, K] B[K, 80], for a matrix whose rows are along K: of the first warpgroup columns 0 to 63, of the second
// one 64 to 79, in the first 8 sums. `a_step(s)`: elements from stage s of a row of A to the next one; `b_stride`: from
// a row of B to the next; `b_vec(v)`: elements from the beginning of a row to 8 columns of it, all of them aligned to
// 16 bytes, as rows of A are; of the first `vecs` of these the sums are wanted. LAST: of all 10, else of 8 at most, and
// the second warpgroup has none. K is a multiple of kChunkedColumnsK and not 0. `stages`: shared memory of
// kChunkedColumnsStages stages, aligned to 1024 bytes, free. The whole block calls it; `thread` is threadIdx.x.
// `before_last()`: called when all stages but one are free again, that of free_columns_stage() among them.
template <class T, bool LAST, class AStep, class BVec, class BeforeLast>
__device__ __forceinline__ void multiply_columns(float (&sums)[32], int k_elements, uint32_t stages, int thread,
                                                 ChunkRows<T> a, const AStep& a_step, const T* b, int b_stride,
                                                 const BVec& b_vec, int vecs, const BeforeLast& before_last) {
  constexpr int kStageK = kChunkedColumnsK, kVecs = 8, kRowsAtOnce = kResidentThreads / kVecs;  // of 128 bytes
  constexpr int kLastVecs = kChunkedColumns / 8 - kVecs;                                        // of a row of B
  // A stage: A, columns 0 to 63 of B, and its others.
  constexpr int kFirstAt = kChunkedRows * kStageK * 2, kLastAt = kFirstAt + kStageK * 128;
  static_assert(kStageK == kVecs * 8 && kChunkedRows == 64 && kLastVecs == 2 && kStageK * kLastVecs < kResidentThreads);
  static_assert(chunked_columns_stage_bytes() == kLastAt + kStageK * 32 && chunked_columns_stage_bytes() % 1024 == 0);
  const int count = k_elements / kStageK, warpgroup = __shfl_sync(kWholeWarp, threadIdx.x / 128, 0);
  const int row = thread / kVecs, vec = thread % kVecs, last_row = thread / kLastVecs, last_vec = thread % kLastVecs;
  const int from_first = row * b_stride + b_vec(vec), from_last = last_row * b_stride + b_vec(kVecs + last_vec);
  const uint32_t place = stages + swizzled(row, vec);
  const uint32_t last_place = stages + kLastAt + last_row * 32 + (last_vec ^ (last_row / 4 % 2)) * 16;
  a.first += int64_t{row} * a.stride + vec * 8;
  const auto issue = [&](int s) {
    const uint32_t to = s % kChunkedColumnsStages * chunked_columns_stage_bytes();
#pragma unroll
    for (int first = 0; first < kChunkedRows; first += kRowsAtOnce) {
      copy_ahead(row + first < a.count, place + to + first * 128, a.first + first * a.stride);
    }
    a.first += a_step(s);
#pragma unroll
    for (int first = 0; first < kStageK; first += kRowsAtOnce) {
      copy_ahead(vec < vecs, place + to + kFirstAt + first * 128, b + from_first + first * b_stride);
    }
    if constexpr (LAST) copy_ahead(last_row < kStageK, last_place + to, b + from_last);
    b += kStageK * b_stride;
  };
#pragma unroll
  for (int i = 0; i < 32; ++i) sums[i] = 0;
  through_stages<kChunkedColumnsStages>(count, issue, [&](int s) {
    if (s + 1 == count) before_last();
    const uint32_t stage = stages + s % kChunkedColumnsStages * chunked_columns_stage_bytes();
    const uint64_t rows = matrix_descriptor(stage);
    if (warpgroup == 0) {
      const uint64_t columns = descriptor_along_k<128>(stage + kFirstAt);
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kStageK / 16; ++i) wgmma_along_k<T, 64>(sums, rows + i * 2, columns + i * (16 * 128 >> 4));
    } else if constexpr (LAST) {
      const uint64_t columns = descriptor_along_k<32>(stage + kLastAt);
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kStageK / 16; ++i) wgmma_along_k<T, 16>(sums, rows + i * 2, columns + i * (16 * 32 >> 4));
    }
  });
}

// ---- a layer's progress: blocks that have finished a chunk, counted over all chunks ----

// Everything that the block has written, which a barrier before this has collected, comes before the count.
__device__ __forceinline__ void count_block(unsigned* progress) {
  asm volatile("red.release.gpu.global.add.u32 [%0],1;" ::"l"(progress) : "memory");
}

// By one thread; a barrier must follow, after which the block may read what the counted blocks have written.
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
