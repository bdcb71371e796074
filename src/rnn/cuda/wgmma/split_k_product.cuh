// The split-K wgmma kernels: those of wgmma/product.cuh for the largest layers, whose blocks read half of the states or
// of one gate's gradients each. docs/resident_kernels.md explains the design.
#pragma once

#include "rnn/cuda/wgmma/product.cuh"

namespace prnn {

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
// rows, with all states of the block's K. Both warpgroups fetch batches of kBatch chunks at the same time, each its own
// chunks, into a ring of two batch pairs in shared memory; each multiplies its own batch first, then the other's.
template <class T, int COLUMNS>
struct SplitKProduct {
  static constexpr int kBatch = split_k_batch(COLUMNS);  // chunks
  using Loads = StateLoads<T, COLUMNS, kBatch>;
  static constexpr int kSetBytes = Loads::kSetBytes;
  static constexpr int kRingBytes = kSplitKStages * kSetBytes;
  static constexpr int kRegisterChunks = kSplitKRegisterChunks;
  static constexpr int kRegisterBatchPairs = kRegisterChunks / (2 * kBatch);
  static_assert(kRegisterChunks % (2 * kBatch) == 0 && kRingBytes >= 2 * 8192);

  using Sums = float[COLUMNS / 2];

  const Warpgroup warpgroup;
  Loads loads;
  uint32_t weights[kRegisterChunks][4][4];  // of a batch pair's batches the own one first
  uint32_t ring, more_weights;  // shared addresses: of the sets, and of this warpgroup's weights beyond the registers
  int chunks, batch_pairs;      // a batch pair: one batch of each warpgroup
  uint4 states[Loads::kLoads];  // of the batch that is on its way

  // Chunk `c` of warpgroup w's batch of a batch pair, and the batch's set.
  static __device__ __forceinline__ int chunk_of(int batch_pair, int c, int w) {
    return (batch_pair * kBatch + c) * 2 + w;
  }
  __device__ __forceinline__ uint32_t set_of(int batch_pair, int w) const {
    return ring + (batch_pair % 2 * 2 + w) * kSetBytes;
  }
  // Signals that this warpgroup's batch of a batch pair is in shared memory, and waits for the other's. Two barriers a
  // warpgroup, in turn: it may be a batch pair ahead.
  __device__ __forceinline__ void signal_stored(int batch_pair) const {
    asm volatile("bar.arrive %0,256;" ::"r"(3 + batch_pair % 2 * 2 + warpgroup.index) : "memory");
  }
  __device__ __forceinline__ void wait_for_other(int batch_pair) const {
    asm volatile("bar.sync %0,256;" ::"r"(3 + batch_pair % 2 * 2 + 1 - warpgroup.index) : "memory");
  }

  // `share`: elements of K of a block; shared addresses of the ring and of the room for weights beyond the registers,
  // both aligned to 1024 bytes. `load(chunk, row, vec)` as for load_weight_tiles(), of this warpgroup's tile.
  template <bool TRANSPOSED, class Load>
  __device__ __forceinline__ void load_weights(int share, uint32_t ring_of_block, uint32_t more, const Load& load) {
    chunks = share / kWgmmaChunk;
    batch_pairs = (chunks + 2 * kBatch - 1) / (2 * kBatch);
    ring = ring_of_block;
    more_weights = more + warpgroup.index * max(chunks - kRegisterChunks, 0) * 8192;
    load_weight_tiles<TRANSPOSED>(weights, chunks, ring + warpgroup.index * 8192, more_weights, warpgroup,
                                  [&](int c, int row, int vec) {
                                    const int w = c / kBatch % 2 == 0 ? warpgroup.index : 1 - warpgroup.index;
                                    const int chunk = c < kRegisterChunks ? chunk_of(c / kBatch / 2, c % kBatch, w) : c;
                                    return chunk < chunks ? load(chunk, row, vec) : uint4{0, 0, 0, 0};
                                  });
    __syncthreads();
  }

  // Multiplies a batch pair. Those of the batch pair before are still running while this one is waited for.
  template <class Multiply>
  __device__ __forceinline__ void step(int batch_pair, int* fault, bool& timed_out, const Multiply& multiply) {
    const uint32_t own = set_of(batch_pair, warpgroup.index), other = set_of(batch_pair, 1 - warpgroup.index);
    loads.wait_and_store(states, batch_pair, own, fault, timed_out);
    fence_for_wgmma();
    loads.issue(states, batch_pair + 1);
    wgmma_wait<0>();
    warpgroup.sync();
    signal_stored(batch_pair);
    wgmma_begin();
    multiply(warpgroup.index, 0, matrix_descriptor(own));
    wgmma_commit();
    wait_for_other(batch_pair);
    wgmma_begin();
    multiply(1 - warpgroup.index, 1, matrix_descriptor(other));
    wgmma_commit();
  }

  template <int BATCH_PAIR>
  __device__ __forceinline__ void step_with_registers(Sums& sums, int* fault, bool& timed_out) {
    step(BATCH_PAIR, fault, timed_out, [&](int, int place_in_pair, uint64_t states_at) {
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        multiply_chunk<T>(sums, weights[(BATCH_PAIR * 2 + place_in_pair) * kBatch + c], states_at + c * COLUMNS * 8);
      }
    });
    if constexpr (BATCH_PAIR + 1 < kRegisterBatchPairs) {
      if (BATCH_PAIR + 1 < batch_pairs) step_with_registers<BATCH_PAIR + 1>(sums, fault, timed_out);
    }
  }

  // Issues the first loads of the first batches.
  __device__ __forceinline__ void prefetch() { loads.issue(states, 0); }

  // The product with the states whose loads prefetch() has issued.
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
          multiply_chunk<T>(sums, weights_at + c * 1024, states_at + c * COLUMNS * 8);
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
      store_shared(true, to + j * 2048 + sums_of_thread(warpgroup.thread),
                   float4{sums[j * 4], sums[j * 4 + 1], sums[j * 4 + 2], sums[j * 4 + 3]});
    }
  }

  // Sends the sums to the other block of the cluster; `barrier` there counts the bytes.
  __device__ __forceinline__ void send_sums(const Sums& sums, uint32_t to, uint32_t barrier, uint32_t rank) const {
    const uint32_t there = address_in_rank(to, rank), barrier_there = address_in_rank(barrier, rank);
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; ++j) {
      send_to_rank(there + j * 2048 + sums_of_thread(warpgroup.thread), barrier_there,
                   {sums[j * 4], sums[j * 4 + 1], sums[j * 4 + 2], sums[j * 4 + 3]});
    }
  }

  // The product of step `step`. Each block of the cluster has the sums of its tile, number `rank`, in three places of
  // kSumsBytes: its own, and those of the other block, of which `barriers` say when they are there, in one of two.
  __device__ __forceinline__ void run_and_share(int step, int rank, uint32_t places, BarrierPair& barriers, int* fault,
                                                bool& timed_out) {
    Sums sums;
    run(sums, fault, timed_out);
    if (warpgroup.index == rank) {
      store_sums(sums, places);
    } else {
      send_sums(sums, places + (1 + step % 2) * kSumsBytes, barriers.address(step % 2), 1 - rank);
    }
    barriers.expect(step % 2, kSumsBytes);
  }
};

}  // namespace prnn
