// The operands of the wgmma kernels: weights, staged once into registers and shared memory, and states, which a
// warpgroup polls in batches of chunks and stores to shared memory. 16-bit types; weights of tf32 too. A chunk is 128
// bytes of a row: kWgmmaChunk elements of K, or 32 of tf32.
#pragma once

#include "rnn/cuda/common/exchange.cuh"
#include "rnn/cuda/wgmma/instructions.cuh"
#include "rnn/plan/wgmma.h"

namespace prnn {

struct Warpgroup {
  int index = __shfl_sync(kWholeWarp, threadIdx.x / kWarpgroupThreads, 0);  // of the block, in a uniform register
  int thread = threadIdx.x % kWarpgroupThreads;

  __device__ __forceinline__ void sync() const { asm volatile("bar.sync %0,128;" ::"r"(1 + index) : "memory"); }
};

// Keeps `count` tiles of 64 rows by one chunk: the first ones in registers, as operand A, those beyond at `more` in
// shared memory, 8192 bytes each. fetch(i, fragment) makes tile i's operand A.
template <int REGISTERS, class Fetch>
__device__ __forceinline__ void keep_weight_tiles(uint32_t (&weights)[REGISTERS][4][4], int count, uint32_t more,
                                                  const Warpgroup& warpgroup, const Fetch& fetch) {
  const int lane = warpgroup.thread % 32, warp = warpgroup.thread / 32;
#pragma unroll
  for (int i = 0; i < REGISTERS; ++i) fetch(i, weights[i]);
#pragma unroll 1
  for (int i = REGISTERS; i < count; ++i) {
    uint32_t fragment[4][4];
    fetch(i, fragment);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const int row = warp * 16 + j % 2 * 8 + lane / 4, vec = j / 4 * 2 + j % 4 / 2;
      const uint32_t to = more + (i - REGISTERS) * 8192 + swizzled(row, vec) + lane % 4 * 4;
      asm volatile("st.shared.u32 [%0],%1;" ::"r"(to), "r"(fragment[j / 4][j % 4]) : "memory");
    }
  }
  fence_for_wgmma();
}

// Loads operands by way of shared memory. `load(i, row, vec)` is 16 bytes of tile i, or zeros: of row `row` the vec-th
// 16 bytes of the chunk; TRANSPOSED, of 16 bits: of K element `row` of the chunk, rows 8 vec onwards. `scratch`: 8192
// bytes of the warpgroup. Shared addresses, aligned to 1024 bytes.
template <bool TRANSPOSED, int REGISTERS, class Load>
__device__ __forceinline__ void load_weight_tiles(uint32_t (&weights)[REGISTERS][4][4], int count, uint32_t scratch,
                                                  uint32_t more, const Warpgroup& warpgroup, const Load& load) {
  const int thread = warpgroup.thread, lane = thread % 32, warp = thread / 32;
  const int half = lane / 8 % 2, side = lane / 16;  // of the four matrices that a lane's address is one of
  keep_weight_tiles(weights, count, more, warpgroup, [&](int tile, uint32_t (&fragment)[4][4]) {
    warpgroup.sync();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i * 16 + thread / 8, vec = thread % 8;
      store_shared(scratch + swizzled(row, vec), load(tile, row, vec));
    }
    warpgroup.sync();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const int row = TRANSPOSED ? s * 16 + side * 8 + lane % 8 : warp * 16 + half * 8 + lane % 8;
      load_matrices<TRANSPOSED>(fragment[s], scratch + swizzled(row, TRANSPOSED ? warp * 2 + half : s * 2 + side));
    }
  });
}

// The same, TRANSPOSED, of elements of 32 bits, which ldmatrix does not transpose: `load(i, k, row)` is one element of
// tile i.
template <int REGISTERS, class Load>
__device__ __forceinline__ void gather_weight_tiles(uint32_t (&weights)[REGISTERS][4][4], int count, uint32_t more,
                                                    const Warpgroup& warpgroup, const Load& load) {
  const int lane = warpgroup.thread % 32, warp = warpgroup.thread / 32;
  keep_weight_tiles(weights, count, more, warpgroup, [&](int tile, uint32_t (&fragment)[4][4]) {
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      fragment[j / 4][j % 4] = load(tile, j / 2 * 4 + lane % 4, warp * 16 + j % 2 * 8 + lane / 4);
    }
  });
}

// How a thread of a warpgroup loads states: 16 bytes of kLoads rows of a batch of BATCH chunks. Chunk i of warpgroup w
// is the block's chunk 2 i + w.
template <class T, int COLUMNS, int BATCH>
struct StateLoads {
  static constexpr int kSetBytes = BATCH * COLUMNS * 128;               // shared memory of a batch
  static constexpr int kLoads = kSetBytes / (kWarpgroupThreads * 16);   // of a thread for a batch
  static constexpr int kLoadColumns = COLUMNS > 16 ? COLUMNS / 16 : 1;  // columns that a thread loads for

  const char* source[kLoadColumns];  // this thread's bytes of the warpgroup's chunk 0
  int left[kLoadColumns];            // elements of K from there on; 0 or less: a column that is not to be read

  // The column of which this thread loads number `load_column`.
  static __device__ __forceinline__ int column(int load_column) {
    return load_column * 16 + threadIdx.x / 8 % 16 % COLUMNS;
  }

  // `row`: the block's K of the column, `elements` of them.
  __device__ __forceinline__ void point_at(int load_column, const T* row, int elements, bool reads) {
    const int chunk = threadIdx.x / kWarpgroupThreads + (COLUMNS == 8 ? threadIdx.x / 64 % 2 * 2 : 0);
    const int first = chunk * kWgmmaChunk + threadIdx.x % 8 * 8;
    source[load_column] = reinterpret_cast<const char*>(row + first);
    left[load_column] = reads ? elements - first : 0;
  }

  // Issues the first loads of a batch, where there is one.
  __device__ __forceinline__ void issue(uint4 (&states)[kLoads], int batch) const {
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int chunk = chunk_of(batch, l);
      states[l] = load_or_zeros(chunk * (2 * kWgmmaChunk) < left[l % kLoadColumns],
                                source[l % kLoadColumns] + chunk * (4 * kWgmmaChunk));
    }
  }

  // Waits until the batch has arrived whole, and stores it to its set.
  __device__ __forceinline__ void wait_and_store(uint4 (&states)[kLoads], int batch, uint32_t set, int* fault,
                                                 bool& timed_out) const {
    poll_words(
        states, [&](int l) { return source[l % kLoadColumns] + chunk_of(batch, l) * (4 * kWgmmaChunk); }, fault,
        timed_out);
    const uint32_t place = set + swizzled(threadIdx.x % kWarpgroupThreads / 8, threadIdx.x % 8);
#pragma unroll
    for (int l = 0; l < kLoads; ++l) store_shared(place + l * 2048, states[l]);
  }

 private:
  static __device__ __forceinline__ int chunk_of(int batch, int load) {
    return batch * BATCH + (COLUMNS == 8 ? 2 * load : load / kLoadColumns);
  }
};

}  // namespace prnn
