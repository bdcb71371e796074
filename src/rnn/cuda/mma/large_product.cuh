// Shared parts of the large-layer mma kernels, which serve the largest layers: weights in more registers, a number
// of units a block that is no multiple of 8, one tile of sequences. docs/resident_kernels.md explains the arithmetic.
#pragma once

#include "rnn/cuda/mma/product.cuh"

namespace prnn {

// Read each time it is used, so that neither it nor values derived from it stay in a register.
__device__ __forceinline__ int lane_id() {
  int lane;
  asm volatile("mov.u32 %0,%laneid;" : "=r"(lane));
  return lane;
}

// ---- exchange ----

// A word of 16-bit elements may be of two blocks: each stores its half, and a half that is all ones has not arrived.
template <class T>
__device__ __forceinline__ void publish_element(bool valid, T* address, T value) {
  if constexpr (sizeof(T) == 2) {
    asm volatile("{.reg .pred p; setp.ne.u32 p,%2,0; @p st.relaxed.gpu.global.u16 [%0],%1;}" ::"l"(address),
                 "h"(reinterpret_cast<const uint16_t&>(value)), "r"(static_cast<uint32_t>(valid))
                 : "memory");
  } else {
    publish_word(valid, address, Element<T>::pack(Element<T>::to_float(value), 0));
  }
}

// Not zero if an element has not arrived. Halves: (x - 1) & ~x has the highest bit of a half that is 0, x being ~word.
template <class T>
__device__ __forceinline__ uint32_t missing_elements(const uint4& v) {
  if constexpr (sizeof(T) == 4) return largest_word(v) == kEmpty;
  const auto gap = [](uint32_t word) { return ~(word + 0x00010001u) & word; };
  return (gap(v.x) | gap(v.y) | gap(v.z) | gap(v.w)) & 0x80008000u;
}

__device__ __forceinline__ void reload_if(bool wanted, uint4& v, const void* address) {
  asm volatile("{.reg .pred p; setp.ne.u32 p,%4,0; @p ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3},[%5];}"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
               : "r"(static_cast<uint32_t>(wanted)), "l"(address)
               : "memory");
}

// ---- the product of resident weights with a tile of states ----

// ROWS rows by the warp's k-tiles; k-tile i of warp w is w + 8 i. Whole row tiles lie in registers as far as
// REGISTER_TILES go, k-tile after k-tile, and then in shared memory; the last rows, fewer than 8, in shared memory
// alone, where they take no more room than they are. `load` is a function (row, k-tile) -> uint4 that fetches 16 bytes
// of a row, those of this lane % 4.
template <class T, int ROWS, int REGISTER_TILES>
struct MmaLargeProduct {
  static constexpr int kWhole = ROWS / kTileRows, kRest = ROWS % kTileRows;
  static constexpr int kSplit = REGISTER_TILES % kWhole;  // row tiles in registers of a k-tile that is not there whole
  static constexpr int kFirstShared = REGISTER_TILES / kWhole + (kSplit > 0 ? 1 : 0);  // first k-tile without any
  static constexpr int kSplitShared = kSplit > 0 ? kWhole - kSplit : 0;
  static constexpr int kTiles = kWhole / 2;  // of 16 rows; a row tile that is left over and the rest go transposed
  static constexpr int kChunk = kTiles >= 4 ? 2 : kChunkKTiles;  // k-tiles that are loaded and multiplied together
  static constexpr int kKnownChunks = (kFirstShared + 2 * kChunk - 1) / (2 * kChunk) * 2;
  static_assert(kSplit % 2 == 0 && kRest > 0, "a tile's two row tiles are both in registers or both in shared memory");

  struct Sums {
    float tiles[kTiles > 0 ? kTiles : 1][4];
    float single[4], rest[4];
  };

  uint4 weights[REGISTER_TILES];
  uint4 *split, *shared_tiles, *rest;  // shared memory, of this lane
  int k_tiles;                         // of this warp
  int k_tile_stride;                   // bytes from a warp's k-tile of states to its next
  uint4 states[2][kChunk];

  __device__ __forceinline__ uint4* place(int k_tile, int row_tile) const {
    if (k_tile < kFirstShared) return split + (row_tile - kSplit) * 32;
    return shared_tiles + ((k_tile - kFirstShared) * kResidentWarps * kWhole + row_tile) * 32;
  }

  template <class Load>
  __device__ __forceinline__ void load_weights(int total_k_tiles, void* shared, const Load& load) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    k_tiles = k_tiles_of_warp(total_k_tiles);
    uint4* const base = static_cast<uint4*>(shared);
    split = base + warp * kSplitShared * 32 + lane;
    shared_tiles = base + (kResidentWarps * kSplitShared + warp * kWhole) * 32 + lane;
    rest = base +
           (kResidentWarps * kSplitShared + max(total_k_tiles - kResidentWarps * kFirstShared, 0) * kWhole) * 32 +
           warp * kRest * 4 + lane;
    // The k-tile of which a part is in registers is multiplied whether the warp has it or not: then it is zeros.
    const auto load_or_zero = [&](int i, int o) {
      return i < k_tiles ? load(o * kTileRows + lane / 4, warp + i * kResidentWarps) : uint4{0, 0, 0, 0};
    };
#pragma unroll
    for (int f = 0; f < REGISTER_TILES; ++f) weights[f] = load_or_zero(f / kWhole, f % kWhole);
#pragma unroll 1
    for (int i = kFirstShared - (kSplit > 0 ? 1 : 0); i < max(k_tiles, kFirstShared); ++i) {
      int o = i < kFirstShared ? kSplit : 0;
#pragma unroll 1
      for (; o + 1 < kWhole; o += 2) {  // in the order of the instruction's operand
        const WeightOperands a = operands_of(load_or_zero(i, o), load_or_zero(i, o + 1));
        *place(i, o) = a.first;
        *place(i, o + 1) = a.second;
      }
      if (o < kWhole) *place(i, o) = load_or_zero(i, o);
    }
    if (lane < kRest * 4) {
#pragma unroll 2
      for (int i = 0; i < k_tiles; ++i) {
        rest[i * kResidentWarps * kRest * 4] = load(kWhole * kTileRows + lane / 4, warp + i * kResidentWarps);
      }
    }
  }

  // Issues the first loads of the states of a chunk. `base` is where this lane's 16 bytes of the warp's first k-tile
  // are; lanes that are not to read get zeros, and so does a k-tile beyond the last.
  __device__ __forceinline__ void issue_loads(int stage, int chunk, const char* base, bool reads) {
    const char* const source = base + chunk * (kChunk * k_tile_stride);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      states[stage][i] = load_or_zeros(reads && chunk * kChunk + i < k_tiles, source + i * k_tile_stride);
    }
  }

  // Waits until the chunk in the stage has arrived whole.
  __device__ __forceinline__ void wait_loads(int stage, int chunk, const char* base, int* fault, bool& timed_out) {
    const char* const source = base + chunk * (kChunk * k_tile_stride);
    SpinTimeout timeout;
    while (!timed_out) {
      uint32_t missing = 0;
#pragma unroll
      for (int i = 0; i < kChunk; ++i) missing |= missing_elements<T>(states[stage][i]);
      if (!__any_sync(kWholeWarp, missing != 0)) return;
      if (!__all_sync(kWholeWarp, timeout.keeps_spinning(fault))) timed_out = true;
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        reload_if(missing_elements<T>(states[stage][i]) != 0, states[stage][i], source + i * k_tile_stride);
      }
    }
  }

  // Adds a k-tile. KNOWN: whether `k_tile` is known when compiling.
  template <bool KNOWN>
  __device__ __forceinline__ void multiply(int k_tile, const uint4& b, Sums& sums) const {
    if (!(KNOWN && k_tile < kFirstShared) && k_tile >= k_tiles) return;
#pragma unroll
    for (int o = 0; o + 1 < kWhole; o += 2) {
      const int f = KNOWN ? k_tile * kWhole + o : REGISTER_TILES;
      const WeightOperands a =
          f < REGISTER_TILES ? operands_of(weights[f < REGISTER_TILES ? f : 0], weights[f < REGISTER_TILES ? f + 1 : 0])
                             : WeightOperands{*place(k_tile, o), *place(k_tile, o + 1)};
      multiply_k_tile<T, false>(sums.tiles[o / 2], sums.tiles[o / 2], a.first, a.second, b);
    }
    if constexpr (kWhole % 2 == 1) {
      constexpr int kLast = kWhole - 1;
      const bool in_register = KNOWN && k_tile * kWhole + kLast < REGISTER_TILES;
      const uint4 last =
          in_register ? weights[KNOWN && in_register ? k_tile * kWhole + kLast : 0] : *place(k_tile, kLast);
      multiply_row_tile<T, false>(sums.single, sums.single, last, b);
    }
    uint4 last = {0, 0, 0, 0};
    if (lane_id() < kRest * 4 && k_tile < k_tiles) last = rest[k_tile * kResidentWarps * kRest * 4];
    multiply_row_tile<T, false>(sums.rest, sums.rest, last, b);
  }

  // Issues the first loads of the first states; base and reads as for run().
  __device__ __forceinline__ void prefetch(const char* base, bool reads) {
    issue_loads(0, 0, base, reads);
    issue_loads(1, 1, base, reads);
  }

  // The product with the states that prefetch() has issued loads of. `arrived` is called after the first have arrived.
  template <class Arrived>
  __device__ __forceinline__ void run(const char* base, bool reads, int* fault, bool& timed_out, Sums& sums,
                                      const Arrived& arrived) {
    sums = {};
#pragma unroll
    for (int c = 0; c < kKnownChunks; ++c) {
      wait_loads(c % 2, c, base, fault, timed_out);
      if (c == 0) arrived();
#pragma unroll
      for (int i = 0; i < kChunk; ++i) multiply<true>(c * kChunk + i, states[c % 2][i], sums);
      if ((c + 2) * kChunk < k_tiles) issue_loads(c % 2, c + 2, base, reads);
    }
#pragma unroll 1
    for (int c = kKnownChunks; c * kChunk < k_tiles; c += 2) {
#pragma unroll
      for (int stage = 0; stage < 2; ++stage) {
        if ((c + stage) * kChunk >= k_tiles) break;
        wait_loads(stage, c + stage, base, fault, timed_out);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) multiply<false>((c + stage) * kChunk + i, states[stage][i], sums);
        if ((c + stage + 2) * kChunk < k_tiles) issue_loads(stage, c + stage + 2, base, reads);
      }
    }
  }

  static constexpr int kSumFloats = ROWS * kLargeSumColumns;  // of a warp
  static __device__ __forceinline__ int sum_at(int row, int column) { return row * kLargeSumColumns + column; }

  // The warp's sums into `shared`.
  static __device__ __forceinline__ void store(const Sums& sums, float* shared) {
    const int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    unroll<kTiles, 4>([&](int m, int e) {
      shared[sum_at(m * 2 * kTileRows + e / 2 * kTileRows + row, column + e % 2)] = sums.tiles[m][e];
    });
#pragma unroll
    for (int e = 0; e < 2; ++e) {  // transposed
      if (kWhole % 2 == 1) shared[sum_at((kWhole - 1) * kTileRows + column + e, row)] = sums.single[e];
      if (column + e < kRest) shared[sum_at(kWhole * kTileRows + column + e, row)] = sums.rest[e];
    }
  }
};

}  // namespace prnn
