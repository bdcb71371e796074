// The wgmma kernels: a block's 64 rows of weights times a tile of up to 64 sequences by wgmma. Weights are the
// register or shared-memory operand A, states are staged in shared memory as operand B. 16-bit types, gated cells.
// docs/resident_kernels.md explains the design.
#pragma once

#include "rnn/cuda/common/activations.cuh"
#include "rnn/cuda/common/block.cuh"
#include "rnn/cuda/common/dsmem.cuh"
#include "rnn/cuda/common/exchange.cuh"
#include "rnn/cuda/common/launch.cuh"
#include "rnn/cuda/common/sequence.cuh"
#include "rnn/cuda/common/step_io.cuh"
#include "rnn/cuda/common/unit_io.cuh"
#include "rnn/cuda/common/weights.cuh"
#include "rnn/plan/wgmma.h"

namespace prnn {

// ---- wgmma: D[64 rows, COLUMNS] += A[64, 16] B[16, COLUMNS] by the 4 warps of a warpgroup ----

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
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." PRNN_WGMMA_TYPE "." PRNN_WGMMA_TYPE           \
                 " {" d_names "},{" a_names "}," b_of_registers ",1,1,1,0;"                                            \
                 : sums(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                      \
  }                                                                                                                    \
  __device__ __forceinline__ void wgmma(const type*, float (&d)[columns / 2], uint64_t a, uint64_t b) {                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." PRNN_WGMMA_TYPE "." PRNN_WGMMA_TYPE           \
                 " {" d_names "}," a_of_shared "," b_of_shared ",1,1,1,0,0;" : sums(0) : "l"(a), "l"(b));              \
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
#define PRNN_WGMMA_TYPE "f16"
PRNN_WGMMA_OF(__half)
#undef PRNN_WGMMA_TYPE
#define PRNN_WGMMA_TYPE "bf16"
PRNN_WGMMA_OF(__nv_bfloat16)
#undef PRNN_WGMMA_TYPE
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

// ---- the product ----

// The two warpgroups of a block split the block's share of K: chunk i of warpgroup g is the block's chunk 2 i + g. A
// chunk is kWgmmaChunk elements, 128 bytes of a row. A warpgroup fetches and multiplies batches of chunks; the next
// batch is on its way while one is multiplied, and a ring of two sets in shared memory holds them.
template <class T, int COLUMNS>
struct WgmmaProduct {
  static constexpr int kBatch = wgmma_batch(COLUMNS);                   // chunks
  static constexpr int kSetBytes = kBatch * COLUMNS * 128;              // shared memory of a batch
  static constexpr int kRingBytes = 4 * kSetBytes;                      // two sets of two warpgroups
  static constexpr int kLoads = kSetBytes / (kWarpgroupThreads * 16);   // of a thread for a batch
  static constexpr int kLoadColumns = COLUMNS > 16 ? COLUMNS / 16 : 1;  // columns that a thread loads for
  static constexpr int kRegisterChunks = wgmma_register_chunks(COLUMNS);
  static constexpr int kRegisterBatches = kRegisterChunks / kBatch;
  static_assert(kRegisterBatches % 2 == 0 && COLUMNS * 256 <= 2 * kSetBytes);

  using Sums = float[COLUMNS / 2];

  uint32_t weights[kRegisterChunks][4][4];
  uint32_t ring,
      more_weights;       // shared addresses: of this warpgroup's two sets, and of its chunks beyond the registers
  uint32_t place;         // where in a set this thread stores its first load
  int chunks, batches;    // of a warpgroup: the same for both, so that no branch around wgmma diverges
  int warpgroup, thread;  // warpgroup of the block, thread of the warpgroup

  uint4 states[2][kLoads];           // of two batches on their way
  const char* source[kLoadColumns];  // this thread's bytes of the warpgroup's chunk 0
  int left[kLoadColumns];            // elements of K from there on; 0: a column that is not to be read

  __device__ __forceinline__ void sync_warpgroup() const {
    asm volatile("bar.sync %0,128;" ::"r"(1 + warpgroup) : "memory");
  }

  // Element of the block's K where this thread's loads begin.
  __device__ __forceinline__ int first_element() const {
    return (warpgroup + (COLUMNS == 8 ? thread / 64 * 2 : 0)) * kWgmmaChunk + thread % 8 * 8;
  }
  // The column of which this thread loads number `load_column`.
  __device__ __forceinline__ int column(int load_column) const { return load_column * 16 + thread / 8 % COLUMNS; }

  // `share`: elements of K of this block; shared addresses of the ring and of the room for weights beyond the
  // registers, both aligned to 1024 bytes. `load(chunk, row, vec)` is 16 bytes of the weights: of row `row` K
  // elements 8 vec onwards of the chunk; TRANSPOSED: of K element `row` of the chunk, rows 8 vec onwards.
  template <bool TRANSPOSED, class Load>
  __device__ __forceinline__ void load_weights(int share, uint32_t ring_of_block, uint32_t more, const Load& load) {
    warpgroup = __shfl_sync(kWholeWarp, threadIdx.x / kWarpgroupThreads, 0);  // in a uniform register
    thread = threadIdx.x % kWarpgroupThreads;
    const int lane = thread % 32, warp = thread / 32;
    chunks = (share + 2 * kWgmmaChunk - 1) / (2 * kWgmmaChunk);
    batches = (chunks + kBatch - 1) / kBatch;
    ring = ring_of_block + warpgroup * 2 * kSetBytes;
    place = swizzled(thread / 8, thread % 8);
    more_weights = more + warpgroup * max(chunks - kRegisterChunks, 0) * 8192;
    const int half = lane / 8 % 2, side = lane / 16;  // of the four matrices that a lane's address is one of
    const auto fetch = [&](int chunk, uint32_t (&fragment)[4][4]) {
      sync_warpgroup();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i * 16 + thread / 8, vec = thread % 8;
        store_shared(ring + swizzled(row, vec), load(2 * chunk + warpgroup, row, vec));
      }
      sync_warpgroup();
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const int row = TRANSPOSED ? s * 16 + side * 8 + lane % 8 : warp * 16 + half * 8 + lane % 8;
        load_matrices<TRANSPOSED>(fragment[s], ring + swizzled(row, TRANSPOSED ? warp * 2 + half : s * 2 + side));
      }
    };
#pragma unroll
    for (int c = 0; c < kRegisterChunks; ++c) {
      if (c < chunks) {
        fetch(c, weights[c]);
      } else {
#pragma unroll
        for (int i = 0; i < 16; ++i) weights[c][i / 4][i % 4] = 0;
      }
    }
#pragma unroll 1
    for (int c = kRegisterChunks; c < chunks; ++c) {
      uint32_t fragment[4][4];
      fetch(c, fragment);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int row = warp * 16 + i % 2 * 8 + lane / 4, vec = i / 4 * 2 + i % 4 / 2;
        const uint32_t to = more_weights + (c - kRegisterChunks) * 8192 + swizzled(row, vec) + lane % 4 * 4;
        asm volatile("st.shared.u32 [%0],%1;" ::"r"(to), "r"(fragment[i / 4][i % 4]) : "memory");
      }
    }
    fence_for_wgmma();
    sync_warpgroup();
  }

  // Issues the first loads of a batch, where there is one.
  template <int STAGE>
  __device__ __forceinline__ void issue_loads(int batch) {
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int load_column = l % kLoadColumns, chunk = batch * kBatch + (COLUMNS == 8 ? 2 * l : l / kLoadColumns);
      states[STAGE][l] =
          load_or_zeros(chunk * (2 * kWgmmaChunk) < left[load_column], source[load_column] + chunk * (4 * kWgmmaChunk));
    }
  }

  // Waits until the batch has arrived whole.
  template <int STAGE>
  __device__ __forceinline__ void wait_loads(int batch, int* fault, bool& timed_out) {
    SpinTimeout timeout;
    while (!timed_out) {
      uint32_t largest = 0;
#pragma unroll
      for (int l = 0; l < kLoads; ++l) largest = max(largest, largest_word(states[STAGE][l]));
      if (!__any_sync(kWholeWarp, largest == kEmpty)) return;
      if (!__all_sync(kWholeWarp, timeout.keeps_spinning(fault))) timed_out = true;
#pragma unroll
      for (int l = 0; l < kLoads; ++l) {
        const int load_column = l % kLoadColumns, chunk = batch * kBatch + (COLUMNS == 8 ? 2 * l : l / kLoadColumns);
        reload_if_missing(states[STAGE][l], source[load_column] + chunk * (4 * kWgmmaChunk));
      }
    }
  }

  // Multiplies a batch that has been asked for, and asks for the one after the next.
  template <int STAGE, class Multiply>
  __device__ __forceinline__ void step(int batch, int* fault, bool& timed_out, const Multiply& multiply) {
    wait_loads<STAGE>(batch, fault, timed_out);
    const uint32_t set = ring + STAGE * kSetBytes;
#pragma unroll
    for (int l = 0; l < kLoads; ++l) store_shared(set + place + l * 2048, states[STAGE][l]);
    issue_loads<STAGE>(batch + 2);
    fence_for_wgmma();
    sync_warpgroup();
    wgmma_begin();
    multiply(matrix_descriptor(set));
    wgmma_commit();
    wgmma_wait<0>();
  }

  template <int BATCH>
  __device__ __forceinline__ void step_with_registers(Sums& sums, int* fault, bool& timed_out) {
    step<BATCH % 2>(BATCH, fault, timed_out, [&](uint64_t states_at) {
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          wgmma(static_cast<const T*>(nullptr), sums, weights[BATCH * kBatch + c][s],
                states_at + c * COLUMNS * 8 + s * 2);
        }
      }
    });
    if constexpr (BATCH + 1 < kRegisterBatches) {
      if (BATCH + 1 < batches) step_with_registers<BATCH + 1>(sums, fault, timed_out);
    }
  }

  template <int STAGE>
  __device__ __forceinline__ void step_with_shared(int batch, Sums& sums, int* fault, bool& timed_out) {
    step<STAGE>(batch, fault, timed_out, [&](uint64_t states_at) {
      uint64_t weights_at = matrix_descriptor(more_weights) + (batch * kBatch - kRegisterChunks) * 512;
      const int count = min(kBatch, chunks - batch * kBatch);
#pragma unroll 1
      for (int c = 0; c < count; ++c) {
        wgmma_begin();
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          wgmma(static_cast<const T*>(nullptr), sums, weights_at + c * 512 + s * 2,
                states_at + c * COLUMNS * 8 + s * 2);
        }
      }
    });
  }

  // Issues the first loads of the first batches.
  __device__ __forceinline__ void prefetch() {
    issue_loads<0>(0);
    issue_loads<1>(1);
  }

  // The product with the states that have been asked for.
  __device__ __forceinline__ void run(Sums& sums, int* fault, bool& timed_out) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = 0;
    step_with_registers<0>(sums, fault, timed_out);
#pragma unroll 1
    for (int b = kRegisterBatches; b < batches; b += 2) {
      step_with_shared<0>(b, sums, fault, timed_out);
      if (b + 1 < batches) step_with_shared<1>(b + 1, sums, fault, timed_out);
    }
    if (batches % 2 == 1) sync_warpgroup();  // the next product begins with the same set
  }

  // The sums of a warpgroup lie where its states were.
  static __device__ __forceinline__ int sums_offset(int warpgroup) { return warpgroup * 2 * kSetBytes; }
  // Index of a row's and a column's sum there; different banks for what a warp stores and loads together.
  static __device__ __forceinline__ int sum_at(int row, int column) {
    return column * 64 + (row ^ (column / 2 % 4 * 8));
  }

  __device__ __forceinline__ void store_sums(const Sums& sums, char* shared) const {
    float* const to = reinterpret_cast<float*>(shared + sums_offset(warpgroup));
    sync_warpgroup();  // the last products have read them
    const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[sum_at(row + i / 2 * 8, j * 8 + column + i % 2)] = sums[j * 4 + i];
    }
  }

  // Or: each warpgroup finishes half of the columns, kEighths times 8 of them; of 8 columns the first one all.
  static constexpr int kEighths = COLUMNS > 8 ? COLUMNS / 16 : 1;
  static constexpr int kExchangeBytes = 2 * kEighths * kWarpgroupThreads * 16;
  using OwnSums = float[kEighths][4];

  // Adds up the two warpgroups' sums of what this one finishes, of 16 columns or more: of each eighth's rows
  // 16 w + lane / 4 and 8 more, columns lane % 4 * 2 and one more, as wgmma has them. `shared` has kExchangeBytes; two
  // such places are used in turn.
  __device__ __forceinline__ void exchange_sums(const Sums& sums, uint32_t shared, OwnSums& own) const {
    const uint32_t here = shared + thread * 16;
    constexpr int kWarpgroupBytes = kEighths * kWarpgroupThreads * 16;
#pragma unroll
    for (int r = 0; r < kEighths; ++r) {
      float given[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = sums[r * 4 + i], high = sums[(kEighths + r) * 4 + i];
        own[r][i] = warpgroup == 0 ? low : high;
        given[i] = warpgroup == 0 ? high : low;
      }
      asm volatile("st.shared.v4.f32 [%0],{%1,%2,%3,%4};" ::"r"(here + (1 - warpgroup) * kWarpgroupBytes + r * 2048),
                   "f"(given[0]), "f"(given[1]), "f"(given[2]), "f"(given[3])
                   : "memory");
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kEighths; ++r) {
      float other[4];
      asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3},[%4];"
                   : "=f"(other[0]), "=f"(other[1]), "=f"(other[2]), "=f"(other[3])
                   : "r"(here + warpgroup * kWarpgroupBytes + r * 2048)
                   : "memory");
#pragma unroll
      for (int i = 0; i < 4; ++i) own[r][i] += other[i];
    }
  }
};

}  // namespace prnn
