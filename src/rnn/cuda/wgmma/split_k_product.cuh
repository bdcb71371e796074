// The split-K wgmma kernels: those of wgmma/product.cuh for the largest layers, whose blocks read half of the states or
// of one gate's gradients each. docs/resident_kernels.md explains the design.
#pragma once

#include "rnn/cuda/wgmma/product.cuh"

namespace prnn {

// ---- timesteps, the cluster and its gate set ----

// The steps of a replica: those at which the first of its sequences is there.
struct ReplicaSteps {
  const ResidentSizes& sizes;
  int first, count, stride;  // of timesteps

  __device__ __forceinline__ ReplicaSteps(const ResidentSizes& all, bool down, int replica_column) : sizes(all) {
    count = sizes.steps;
    if (sizes.table != nullptr) {  // the batch never grows with t
      while (count > 0 && sizes.table[count - 1].batch <= replica_column) --count;
    }
    first = down ? count - 1 : 0;
    stride = down ? -1 : 1;
  }
  // Beyond the last: no sequences.
  __device__ __forceinline__ Step at(int s) const {
    return s < count ? step_at(sizes, first + s * stride) : Step{0, 0};
  }
};

// The barriers that count what the other block of the cluster sends, used in turn.
struct ClusterBarriers {
  uint64_t barrier[2];

  __device__ __forceinline__ void init() {
    if (threadIdx.x == 0) {
      init_barrier(&barrier[0]);
      init_barrier(&barrier[1]);
    }
    __syncthreads();
    sync_cluster();
  }
  __device__ __forceinline__ uint32_t address(int buffer) { return shared_address(&barrier[buffer]); }
  __device__ __forceinline__ void expect(int buffer, uint32_t bytes) {
    if (threadIdx.x == 0) expect_bytes(&barrier[buffer], bytes);
  }
  // Waits for what was sent in step `s`.
  __device__ __forceinline__ void wait(int s, int* fault, bool& timed_out) {
    SpinTimeout timeout;
    while (!timed_out && !__all_sync(kWholeWarp, has_completed(&barrier[s & 1], s / 2 & 1))) {
      if (!__all_sync(kWholeWarp, timeout.keeps_spinning(fault))) timed_out = true;
    }
  }
};

// Elements of K of each block of a cluster, an even number of chunks; the second's may be fewer.
__device__ __forceinline__ int split_k_share(int padded) {
  return (padded + 4 * kWgmmaChunk - 1) / (4 * kWgmmaChunk) * (2 * kWgmmaChunk);
}

// Copies two 16-bit elements to shared memory without waiting for them, or zeros; see wait_for_all_copies().
// `whole_words`: the address is one of whole words.
template <class T>
__device__ __forceinline__ void copy_two(uint32_t to, const T* from, bool wanted, bool whole_words) {
  if (whole_words) {
    asm volatile("cp.async.ca.shared.global [%0],[%1],4,%2;" ::"r"(to), "l"(from), "r"(wanted ? 4 : 0) : "memory");
  } else {
    const uint32_t word = wanted ? Element<T>::pack(Element<T>::to_float(from[0]), Element<T>::to_float(from[1])) : 0;
    asm volatile("st.shared.u32 [%0],%1;" ::"r"(to), "r"(word) : "memory");
  }
}
template <class T>
__device__ __forceinline__ void copy_four(uint32_t to, const Four<T>* from, bool wanted) {
  asm volatile("cp.async.ca.shared.global [%0],[%1],8,%2;" ::"r"(to), "l"(from), "r"(wanted ? 8 : 0) : "memory");
}

__device__ __forceinline__ void wait_for_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ uint32_t load_word(const void* address) {
  uint32_t word;
  asm volatile("ld.relaxed.gpu.global.u32 %0,[%1];" : "=r"(word) : "l"(address) : "memory");
  return word;
}

// ---- the product ----

// A cluster of two blocks shares 128 rows of weights and splits K. Warpgroup w of a block multiplies tile w, 64 of the
// rows, with all states of the block's K. A chunk is kWgmmaChunk elements of K, 128 bytes of a row. Both warpgroups
// fetch batches of kBatch chunks at the same time, warpgroup w the chunks 2 i + w, into a ring of two batch pairs
// in shared memory; each multiplies its own batch first, then the other's.
template <class T, int COLUMNS>
struct SplitKProduct {
  static constexpr int kBatch = split_k_batch(COLUMNS);     // chunks
  static constexpr int kSetBytes = kBatch * COLUMNS * 128;  // shared memory of a batch
  static constexpr int kRingBytes = kSplitKStages * kSetBytes;
  static constexpr int kLoads = kSetBytes / (kWarpgroupThreads * 16);   // of a thread for a batch
  static constexpr int kLoadColumns = COLUMNS > 16 ? COLUMNS / 16 : 1;  // columns that a thread loads for
  static constexpr int kRegisterChunks = kSplitKRegisterChunks;
  static constexpr int kRegisterBatchPairs = kRegisterChunks / (2 * kBatch);
  static_assert(kRegisterChunks % (2 * kBatch) == 0 && kRingBytes >= 2 * 8192);

  using Sums = float[COLUMNS / 2];

  uint32_t weights[kRegisterChunks][4][4];  // of a batch pair's batches the own one first
  uint32_t ring, more_weights;    // shared addresses: of the sets, and of this warpgroup's weights beyond the registers
  uint32_t place;                 // where in a set this thread stores its first load
  int chunks, batch_pairs;        // a batch pair: one batch of each warpgroup
  int warpgroup = 0, thread = 0;  // warpgroup of the block, thread of the warpgroup

  uint4 states[kLoads];              // of the batch that is on its way
  const char* source[kLoadColumns];  // this thread's bytes of the block's chunk 0
  int left[kLoadColumns];            // elements of K from there on; 0 or less: a column that is not to be read

  __device__ __forceinline__ void sync_warpgroup() const {
    asm volatile("bar.sync %0,128;" ::"r"(1 + warpgroup) : "memory");
  }

  // Element of the block's K where this thread's loads begin.
  static __device__ __forceinline__ int first_element() {
    const int chunk = threadIdx.x / kWarpgroupThreads + (COLUMNS == 8 ? threadIdx.x / 64 % 2 * 2 : 0);
    return chunk * kWgmmaChunk + threadIdx.x % 8 * 8;
  }
  // The column of which this thread loads number `load_column`.
  static __device__ __forceinline__ int column(int load_column) {
    return load_column * 16 + threadIdx.x / 8 % 16 % COLUMNS;
  }

  // Chunk `c` of warpgroup w's batch of a batch pair, and the batch's set.
  static __device__ __forceinline__ int chunk_of(int batch_pair, int c, int w) {
    return (batch_pair * kBatch + c) * 2 + w;
  }
  __device__ __forceinline__ uint32_t set_of(int batch_pair, int w) const {
    return ring + (batch_pair % 2 * 2 + w) * kSetBytes;
  }
  // Says that this warpgroup's batch of a batch pair is in shared memory, and waits for the other's. Two barriers a
  // warpgroup, in turn: it may be a batch pair ahead.
  __device__ __forceinline__ void say_stored(int batch_pair) const {
    asm volatile("bar.arrive %0,256;" ::"r"(3 + batch_pair % 2 * 2 + warpgroup) : "memory");
  }
  __device__ __forceinline__ void wait_for_other(int batch_pair) const {
    asm volatile("bar.sync %0,256;" ::"r"(3 + batch_pair % 2 * 2 + 1 - warpgroup) : "memory");
  }

  // `share`: elements of K of a block; shared addresses of the ring and of the room for weights beyond the registers,
  // both aligned to 1024 bytes. `load(chunk, row, vec)` is 16 bytes of the weights of this warpgroup's tile: of row
  // `row` K elements 8 vec onwards of the chunk; TRANSPOSED: of K element `row` of the chunk, rows 8 vec onwards.
  template <bool TRANSPOSED, class Load>
  __device__ __forceinline__ void load_weights(int share, uint32_t ring_of_block, uint32_t more, const Load& load) {
    warpgroup = __shfl_sync(kWholeWarp, threadIdx.x / kWarpgroupThreads, 0);  // in a uniform register
    thread = threadIdx.x % kWarpgroupThreads;
    const int lane = thread % 32, warp = thread / 32;
    chunks = share / kWgmmaChunk;
    batch_pairs = (chunks + 2 * kBatch - 1) / (2 * kBatch);
    ring = ring_of_block;
    place = swizzled(thread / 8, thread % 8);
    more_weights = more + warpgroup * max(chunks - kRegisterChunks, 0) * 8192;
    const uint32_t scratch = ring + warpgroup * 8192;
    const int half = lane / 8 % 2, side = lane / 16;  // of the four matrices that a lane's address is one of
    const auto fetch = [&](int chunk, uint32_t (&fragment)[4][4]) {
      sync_warpgroup();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i * 16 + thread / 8, vec = thread % 8;
        store_shared(scratch + swizzled(row, vec), load(chunk, row, vec));
      }
      sync_warpgroup();
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const int row = TRANSPOSED ? s * 16 + side * 8 + lane % 8 : warp * 16 + half * 8 + lane % 8;
        load_matrices<TRANSPOSED>(fragment[s], scratch + swizzled(row, TRANSPOSED ? warp * 2 + half : s * 2 + side));
      }
    };
#pragma unroll
    for (int c = 0; c < kRegisterChunks; ++c) {
      const int w = c / kBatch % 2 == 0 ? warpgroup : 1 - warpgroup, chunk = chunk_of(c / kBatch / 2, c % kBatch, w);
      if (chunk < chunks) {
        fetch(chunk, weights[c]);
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
    __syncthreads();
  }

  // Chunks from a thread's first to the one of load `load` of a batch pair.
  static __device__ __forceinline__ int chunks_to(int batch_pair, int load) {
    return chunk_of(batch_pair, COLUMNS == 8 ? 2 * load : load / kLoadColumns, 0);
  }

  // Issues the first loads of this warpgroup's batch of a batch pair, where there is one.
  __device__ __forceinline__ void issue_loads(int batch_pair) {
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int load_column = l % kLoadColumns, to = chunks_to(batch_pair, l);
      states[l] = load_or_zeros(to * kWgmmaChunk < left[load_column], source[load_column] + to * (2 * kWgmmaChunk));
    }
  }

  // Waits until the batch has arrived whole.
  __device__ __forceinline__ void wait_loads(int batch_pair, int* fault, bool& timed_out) {
    SpinTimeout timeout;
    while (!timed_out) {
      uint32_t largest = 0;
#pragma unroll
      for (int l = 0; l < kLoads; ++l) largest = max(largest, largest_word(states[l]));
      if (!__any_sync(kWholeWarp, largest == kEmpty)) return;
      if (!__all_sync(kWholeWarp, timeout.keeps_spinning(fault))) timed_out = true;
#pragma unroll
      for (int l = 0; l < kLoads; ++l) {
        reload_if_missing(states[l], source[l % kLoadColumns] + chunks_to(batch_pair, l) * (2 * kWgmmaChunk));
      }
    }
  }

  // Multiplies a batch pair. Those of the batch pair before are still running while this one is waited for.
  template <class Multiply>
  __device__ __forceinline__ void step(int batch_pair, int* fault, bool& timed_out, const Multiply& multiply) {
    const uint32_t own = set_of(batch_pair, warpgroup), other = set_of(batch_pair, 1 - warpgroup);
    wait_loads(batch_pair, fault, timed_out);
#pragma unroll
    for (int l = 0; l < kLoads; ++l) store_shared(own + place + l * 2048, states[l]);
    fence_for_wgmma();
    issue_loads(batch_pair + 1);
    wgmma_wait<0>();
    sync_warpgroup();
    say_stored(batch_pair);
    wgmma_begin();
    multiply(warpgroup, 0, matrix_descriptor(own));
    wgmma_commit();
    wait_for_other(batch_pair);
    wgmma_begin();
    multiply(1 - warpgroup, 1, matrix_descriptor(other));
    wgmma_commit();
  }

  template <int BATCH_PAIR>
  __device__ __forceinline__ void step_with_registers(Sums& sums, int* fault, bool& timed_out) {
    step(BATCH_PAIR, fault, timed_out, [&](int, int place_in_pair, uint64_t states_at) {
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          wgmma(static_cast<const T*>(nullptr), sums, weights[(BATCH_PAIR * 2 + place_in_pair) * kBatch + c][s],
                states_at + c * COLUMNS * 8 + s * 2);
        }
      }
    });
    if constexpr (BATCH_PAIR + 1 < kRegisterBatchPairs) {
      if (BATCH_PAIR + 1 < batch_pairs) step_with_registers<BATCH_PAIR + 1>(sums, fault, timed_out);
    }
  }

  // Issues the first loads of the first batches.
  __device__ __forceinline__ void prefetch() { issue_loads(0); }

  // The product with the states that have been asked for.
  __device__ __forceinline__ void run(Sums& sums, int* fault, bool& timed_out) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = 0;
    step_with_registers<0>(sums, fault, timed_out);
#pragma unroll 1
    for (int batch_pair = kRegisterBatchPairs; batch_pair < batch_pairs; ++batch_pair) {
      step(batch_pair, fault, timed_out, [&](int w, int, uint64_t states_at) {
        const uint64_t weights_at =
            matrix_descriptor(more_weights) + (chunk_of(batch_pair, 0, w) - kRegisterChunks) * 512;
#pragma unroll
        for (int c = 0; c < kBatch; ++c) {
          if (chunk_of(batch_pair, c, 0) >= chunks) break;
#pragma unroll
          for (int s = 0; s < 4; ++s) {
            wgmma(static_cast<const T*>(nullptr), sums, weights_at + c * 1024 + s * 2,
                  states_at + c * COLUMNS * 8 + s * 2);
          }
        }
      });
    }
    wgmma_wait<0>();
  }

  // Sums of a tile in shared memory: 16 bytes a thread and 8 columns, as the threads of a warpgroup hold them.
  static constexpr int kSumsBytes = 64 * COLUMNS * 4;
  static __device__ __forceinline__ int sums_of_thread(int thread) {
    return (thread ^ thread / 8 % 4) * 16;  // different banks also for what a warp reads together
  }
  // Index of a row's and a column's sum there.
  static __device__ __forceinline__ int sum_at(int row, int column) {
    const int thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
    return column / 8 * 512 + sums_of_thread(thread) / 4 + row / 8 % 2 * 2 + column % 2;
  }

  __device__ __forceinline__ void store_sums(const Sums& sums, uint32_t to) const {
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; ++j) {
      asm volatile("st.shared.v4.f32 [%0],{%1,%2,%3,%4};" ::"r"(to + j * 2048 + sums_of_thread(thread)),
                   "f"(sums[j * 4]), "f"(sums[j * 4 + 1]), "f"(sums[j * 4 + 2]), "f"(sums[j * 4 + 3])
                   : "memory");
    }
  }

  // The same to the other block of the cluster; `barrier` there counts the bytes.
  __device__ __forceinline__ void send_sums(const Sums& sums, uint32_t to, uint32_t barrier, uint32_t rank) const {
    const uint32_t there = address_in_rank(to, rank), barrier_there = address_in_rank(barrier, rank);
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; ++j) {
      send_to_rank(there + j * 2048 + sums_of_thread(thread), barrier_there,
                   {sums[j * 4], sums[j * 4 + 1], sums[j * 4 + 2], sums[j * 4 + 3]});
    }
  }
};

}  // namespace prnn
