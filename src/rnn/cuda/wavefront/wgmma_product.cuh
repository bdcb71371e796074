// The product of the wgmma wavefront kernels: a warpgroup multiplies one part of K, its own state or the neighbour's,
// for all rows of the block and all sequences of the replica, by wgmma. docs/resident_kernels.md, section wavefront.
#pragma once

#include <utility>

#include "rnn/cuda/wavefront/product.cuh"
#include "rnn/cuda/wgmma/product.cuh"
#include "rnn/plan/wavefront_wgmma.h"

namespace prnn {

// 16 bytes from global into shared memory past the registers, where `wanted`; they come from L2.
__device__ __forceinline__ void copy_ahead(bool wanted, uint32_t to, const void* from) {
  asm volatile("{.reg .pred p; setp.ne.u32 p,%0,0; @p cp.async.cg.shared.global [%1],[%2],16;}" ::"r"(
                   static_cast<uint32_t>(wanted)),
               "r"(to), "l"(from)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Stores four 8x8 matrices of 16-bit elements transposed: lane l gives the address of column l.
__device__ __forceinline__ void store_transposed(uint32_t address, const uint32_t (&v)[4]) {
#if PRNN_HAS_WGMMA
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0],{%1,%2,%3,%4};" ::"r"(address), "r"(v[0]),
               "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
#endif
}

// The neighbour's sums go from one warpgroup to the other through shared memory. Each thread signals to the other
// warpgroup that they are there, and that they have been taken. (bar.arrive would do as well, but racecheck does not
// follow it, nor one lane's arrival for its warp.)
struct Handover {
  uint64_t there, taken;

  __device__ void init() {  // by one thread, before the block's first barrier
    for (uint64_t* const barrier : {&there, &taken}) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(shared_address(barrier)), "n"(kWarpgroupThreads)
                   : "memory");
    }
  }
  static __device__ __forceinline__ void arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(shared_address(barrier)) : "memory");
  }
  // Waits for the end of phase `count`.
  static __device__ __forceinline__ void wait(uint64_t* barrier, int count) {
    uint32_t done;
    do {
      asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p,[%1],%2; selp.u32 %0,1,0,p;}"
                   : "=r"(done)
                   : "r"(shared_address(barrier)), "r"(count & 1)
                   : "memory");
    } while (done == 0);
  }
};

// Publishes 16 bytes, for which other blocks wait, in one store.
__device__ __forceinline__ void publish_16_bytes(void* address, const uint4& v) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0],{%1,%2,%3,%4};" ::"l"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void publish_8_bytes(void* address, const uint2& v) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0],{%1,%2};" ::"l"(address), "r"(v.x), "r"(v.y) : "memory");
}

// Two states as they go to the layer above: bits 0 and 1 of `kept` say whether.
template <class T>
__device__ __forceinline__ uint32_t dropped_word(uint32_t word, uint32_t kept, float scale) {
  return Element<T>::pack(kept & 1 ? element_value<T>(word) * scale : 0,
                          kept & 2 ? element_value<T>(word >> 16) * scale : 0);
}

// Calls add(i) for the batches, one after the other, each a constant.
template <class Add, int... BATCH>
__device__ __forceinline__ void add_batches(const Add& add, std::integer_sequence<int, BATCH...>) {
  (add(std::integral_constant<int, BATCH>()), ...);
}

// TILES of 64 rows. A stage of shared memory holds a batch: kBatch chunks of the states of all columns. Weights are
// chunk tiles, 64 rows by one chunk, in the order chunk, tile; the first ones are in registers.
template <class T, int TILES>
struct WavefrontWgmmaProduct {
  static constexpr int kChunks = wavefront_wgmma_chunks(TILES), kBatch = kWavefrontWgmmaBatch;
  static constexpr int kColumns = kWavefrontWgmmaColumns;
  static constexpr int kBatches = kChunks / kBatch;
  static constexpr int kInRegisters = wavefront_wgmma_register_tiles(TILES);
  static constexpr int kChunkBytes = kColumns * 128, kStageBytes = kBatch * kChunkBytes;
  static constexpr int kColumnSteps = kColumns / 16;  // a thread loads for that many columns, 16 apart
  static constexpr int kLoads = kBatch * kColumnSteps;

  using Sums = float[TILES][kColumns / 2];

  const Warpgroup warpgroup;
  uint32_t weights[kInRegisters][4][4];
  uint32_t more_weights;  // shared address, of this warpgroup's
  uint32_t stages_at;     // shared address
  uint32_t states;        // ... plus where this thread stores its first load of one
  int column_bytes;       // of 16 columns of the states
  int left;               // elements of K from this thread's on

  __device__ __forceinline__ int column() const { return warpgroup.thread / 8; }
  __device__ __forceinline__ int first_element() const { return warpgroup.thread % 8 * 8; }

  // `stages` and `more`: shared addresses, aligned to 1024 bytes; `count` stages. `load(tile, chunk, row, vec)` as for
  // load_weight_tiles().
  template <class Load>
  __device__ __forceinline__ void begin(uint32_t stages, int count, uint32_t more, int k, int row_bytes,
                                        const Load& load) {
    stages_at = stages;
    more_weights = more;
    column_bytes = 16 * row_bytes;
    left = k - first_element();
    load_weight_tiles<false>(weights, kChunks * TILES, stages, more, warpgroup,
                             [&](int i, int row, int vec) { return load(i % TILES, i / TILES, row, vec); });
    warpgroup.sync();
    for (int i = warpgroup.thread * 16; i < count * kStageBytes; i += kWarpgroupThreads * 16)
      store_shared(stages + i, {0, 0, 0, 0});
    states = stages + swizzled(warpgroup.thread / 8, warpgroup.thread % 8);
    fence_for_wgmma();
    warpgroup.sync();
  }

  // Issues the loads of a batch of `columns` states; `from` is where this thread's bytes of the states' chunk 0 are,
  // NULL: none. Columns beyond them keep what they had.
  __device__ __forceinline__ void prefetch(int stage, int batch, const char* from, int columns) const {
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int step = l % kColumnSteps, chunk = batch * kBatch + l / kColumnSteps;
      copy_ahead(from != nullptr && chunk * kWgmmaChunk < left && column() + 16 * step < columns,
                 states + stage * kStageBytes + l / kColumnSteps * kChunkBytes + step * 2048,
                 from + chunk * 128 + step * column_bytes);
    }
    commit_copies();
  }

  // Waits until a batch has arrived whole. PENDING: batches whose loads were issued later. `prefetch_again()` issues
  // those again: where this batch's were issued too early, so were they.
  template <int PENDING, class PrefetchAgain>
  __device__ __forceinline__ void wait_loads(int stage, int batch, const char* from, int* fault, bool& timed_out,
                                             const PrefetchAgain& prefetch_again) const {
    wait_for_copies<PENDING>();
    const uint32_t at = states + stage * kStageBytes;
    uint4 v[kLoads];
    uint32_t largest = 0;
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      v[l] = load_shared(at + l / kColumnSteps * kChunkBytes + l % kColumnSteps * 2048);
      largest = max(largest, largest_word(v[l]));
    }
    if (__any_sync(kWholeWarp, largest == kEmpty)) {
      prefetch_again();
      SpinTimeout timeout;
      while (!timed_out && __any_sync(kWholeWarp, largest == kEmpty)) {
        if (!__all_sync(kWholeWarp, timeout.keeps_spinning(fault))) timed_out = true;
        largest = 0;
#pragma unroll
        for (int l = 0; l < kLoads; ++l) {
          reload_if_missing(v[l], from + (batch * kBatch + l / kColumnSteps) * 128 + l % kColumnSteps * column_bytes);
        }
#pragma unroll
        for (int l = 0; l < kLoads; ++l) largest = max(largest, largest_word(v[l]));
      }
#pragma unroll
      for (int l = 0; l < kLoads; ++l)
        store_shared(at + l / kColumnSteps * kChunkBytes + l % kColumnSteps * 2048, v[l]);
    }
    fence_for_wgmma();
    warpgroup.sync();
  }

  // The neighbour's sums, from one warpgroup to the other: `at` is the shared address of kSumBytes.
  static constexpr int kSumBytes = TILES * kColumns * 256;
  __device__ __forceinline__ void store_sums(const Sums& sums, uint32_t at) const {
#pragma unroll
    for (int i = 0; i < TILES * kColumns / 8; ++i) {
      const float* const from = &sums[i / (kColumns / 8)][i % (kColumns / 8) * 4];
      store_shared(
          at + (i * kWarpgroupThreads + warpgroup.thread) * 16,
          {__float_as_uint(from[0]), __float_as_uint(from[1]), __float_as_uint(from[2]), __float_as_uint(from[3])});
    }
  }
  __device__ __forceinline__ void load_sums(Sums& sums, uint32_t at) const {
#pragma unroll
    for (int i = 0; i < TILES * kColumns / 8; ++i) {
      const uint4 v = load_shared(at + (i * kWarpgroupThreads + warpgroup.thread) * 16);
      float* const to = &sums[i / (kColumns / 8)][i % (kColumns / 8) * 4];
      to[0] = __uint_as_float(v.x);
      to[1] = __uint_as_float(v.y);
      to[2] = __uint_as_float(v.z);
      to[3] = __uint_as_float(v.w);
    }
  }

  // The whole product with the own state, in as many stages as there are batches, whose loads have been issued.
  __device__ __forceinline__ void add_own(Sums& sums, const char* from, int columns, int* fault,
                                          bool& timed_out) const {
    add_batches(
        [&](auto batch) {
          constexpr int kNow = decltype(batch)::value;
          wait_loads<kBatches - 1 - kNow>(kNow, kNow, from, fault, timed_out, [&] {
            wait_for_copies<0>();  // two copies to one place come in no order
#pragma unroll
            for (int b = kNow + 1; b < kBatches; ++b) prefetch(b, b, from, columns);
          });
          multiply<kNow>(kNow, sums);
        },
        std::make_integer_sequence<int, kBatches>());
    wgmma_wait<0>();
  }

  // The whole product with the neighbour's state of the launch's step `step`. Loads are issued two batches ahead, of
  // the step's states and then of the next one's (`next`, NULL: there is none). prefetch_first() goes before the first
  // step.
  __device__ __forceinline__ void prefetch_first(const char* from, int columns) const {
    static_assert(kBatches >= 2, "both of the first step");
    prefetch(0, 0, from, columns);
    prefetch(1, 1, from, columns);
  }
  __device__ __forceinline__ void add_neighbour(Sums& sums, int step, const char* from, int columns, const char* next,
                                                int next_columns, int* fault, bool& timed_out) const {
    add_batches(
        [&](auto batch) {
          constexpr int kNow = decltype(batch)::value;
          constexpr bool kOfNext = kNow + 2 >= kBatches;
          const int stage = (step * kBatches + kNow) % kWavefrontWgmmaRing;
          wait_loads<1>(stage, kNow, from, fault, timed_out, [] {});
          prefetch((stage + 2) % kWavefrontWgmmaRing, (kNow + 2) % kBatches, kOfNext ? next : from,
                   kOfNext ? next_columns : columns);
          multiply<kNow>(stage, sums);
          wgmma_wait<kNow + 1 < kBatches ? 1 : 0>();  // the stage of the batch before is free
        },
        std::make_integer_sequence<int, kBatches>());
  }

  // Adds a batch that has arrived. It is complete after wgmma_wait().
  template <int BATCH>
  __device__ __forceinline__ void multiply(int stage, Sums& sums) const {
    uint32_t stage_at = stages_at + stage * kStageBytes, more = more_weights;
    asm volatile("" : "+r"(stage_at), "+r"(more));  // descriptors are worked out here, not kept from step to step
    const uint64_t states_at = matrix_descriptor(stage_at), weights_at = matrix_descriptor(more);
    wgmma_begin();
#pragma unroll
    for (int c = 0; c < kBatch; ++c) {
#pragma unroll
      for (int s = 0; s < 4; ++s) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
          const int i = (BATCH * kBatch + c) * TILES + tile;
          const uint64_t b = states_at + c * (kChunkBytes / 16) + s * 2;
          if (i < kInRegisters) {
            wgmma(static_cast<const T*>(nullptr), sums[tile], weights[i < kInRegisters ? i : 0][s], b);
          } else {
            wgmma(static_cast<const T*>(nullptr), sums[tile], weights_at + (i - kInRegisters) * 512 + s * 2, b);
          }
        }
      }
    }
    wgmma_commit();
  }
};

}  // namespace prnn
