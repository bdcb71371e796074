// A product of tiles as one block computes it: its share of the work, slices on their way into shared memory, wgmma,
// and tiles on their way back. joint_tiles.cu has the kernel and what it makes of the sums.
#pragma once

#include "rnnt/cuda/joint_tiles.cuh"

namespace prnn::rnnt_cuda {

enum class Kind { kEmissions, kGradients, kProducts, kWeights };

// left, right: tiles of the factors; for kWeights gradients and activations, whose cells are the inner dimension.
template <class Form>
struct TileProduct {
  Chunk chunk;
  const typename Form::Matrix *left, *right;
  int64_t left_slices, right_slices;             // tiles side by side in a row of tiles; the same but for kWeights
  int64_t out_slices, row_tiles, column_blocks;  // of the product; row_tiles for kWeights alone
  // kEmissions and kGradients
  const float* bias;
  DurationHead<float> head;
  // kEmissions
  const Emission* emissions;
  Arcs<float>* arcs;
  float* normalisers;
  // kGradients
  const CellShares<float>* cells;
  typename Form::Matrix* gradients;
  // kProducts
  typename Form::Product* products;
  // kWeights: sums of `splits` shares of the cells, {splits, row_tiles * 128, column_blocks * 256}, and of their
  // gradients, {splits, row_tiles * 128}
  int64_t splits;
  float *sums, *bias_sums;
};

#if PRNN_HAS_WGMMA

// One block's work in its turn `unit`: a block of the product and a range of its inner dimension in slices.
struct Work {
  int64_t row, column;  // in tiles of rows and blocks of columns
  int64_t begin, end;
  int64_t split;
};

// Units that a block takes one after the other: all columns of a row, of which it keeps sums.
template <Kind kKind, class Form>
__device__ __forceinline__ int64_t work_turns(const TileProduct<Form>& a) {
  return kKind == Kind::kEmissions ? a.column_blocks : 1;
}

template <Kind kKind, class Form>
__device__ __forceinline__ int64_t work_units(const TileProduct<Form>& a, int64_t cells) {
  if (kKind == Kind::kWeights) return a.row_tiles * a.column_blocks * a.splits;
  return (cells + kTileRows - 1) / kTileRows * a.column_blocks;
}

template <Kind kKind, class Form>
__device__ __forceinline__ Work find_work(const TileProduct<Form>& a, int64_t cells, int64_t unit) {
  Work work{unit / a.column_blocks, unit % a.column_blocks, 0, a.left_slices, 0};
  if (kKind == Kind::kWeights) {
    work.split = work.row / a.row_tiles;
    work.row %= a.row_tiles;
    const int64_t slices = (cells + 63) / 64, share = (slices + a.splits - 1) / a.splits;
    work.begin = min(work.split * share, slices);
    work.end = min(work.begin + share, slices);
  }
  return work;
}

// Calls function(unit) for what this block does, `turns` neighbouring units at a time.
template <class Function>
__device__ __forceinline__ void for_units(int64_t units, int64_t turns, Function&& function) {
  for (int64_t first = blockIdx.x * turns; first < units; first += gridDim.x * turns) {
    for (int64_t unit = first; unit < first + turns; ++unit) function(unit);
  }
}

// Fetches a stage: a slice of 64 of the inner dimension.
template <class Form, Kind kKind>
__device__ __forceinline__ void fetch(const TileProduct<Form>& a, const Work& work, int64_t slice, uint32_t stage,
                                      uint32_t barrier) {
  using Ring = TileRing<Form>;
  constexpr int kHalves = Ring::kHalves;
  const char *left = reinterpret_cast<const char*>(a.left), *right = reinterpret_cast<const char*>(a.right);
  barrier_expect(barrier, Ring::kStage);
  if constexpr (kKind == Kind::kWeights) {
    constexpr int kPart = kTile / 2;  // 64 cells
    const int64_t tiles = slice / 2, inside = slice % 2 * kPart;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int64_t tile = tiles * a.left_slices + min(work.row * 2 + j, a.left_slices - 1);
        bulk_load(stage + (h * 2 + j) * kPart, left + (tile * kHalves + h) * kTile + inside, kPart, barrier);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t tile = tiles * a.right_slices + min(work.column * 4 + j, a.right_slices - 1);
        bulk_load(stage + Ring::kLeft + (h * 4 + j) * kPart, right + (tile * kHalves + h) * kTile + inside, kPart,
                  barrier);
      }
    }
  } else {
    bulk_load(stage, left + (work.row * a.left_slices + slice) * Ring::kLeft, Ring::kLeft, barrier);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int64_t tile = (work.column * 2 + j) * a.right_slices + slice;
#pragma unroll
      for (int h = 0; h < kHalves; ++h)
        bulk_load(stage + Ring::kLeft + (h * 2 + j) * kTile, right + (tile * kHalves + h) * kTile, kTile, barrier);
    }
  }
}

// Enqueues the products of a stage; with kColumn also the left factor's with ones, which are sums over cells.
template <class Form, bool kTransposed, bool kColumn>
__device__ __forceinline__ void multiply(float (&sums)[kSums], float (&column)[4], uint32_t ones, uint32_t stage,
                                         int group, bool adds) {
  using Ring = TileRing<Form>;
  constexpr const typename Form::Matrix* kType = nullptr;
  constexpr int kPart = kTile / 2, kStep = kTransposed ? 2048 : 32;
  constexpr int kLeftHalf = kTile, kRightHalf = 2 * kTile;
  constexpr int kAcross = kTransposed ? kPart : 16;
  const uint32_t left = stage + group * kPart, right = stage + Ring::kLeft;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint64_t a = tile_descriptor(left + k * kStep, kAcross), b = tile_descriptor(right + k * kStep, kAcross);
    wgmma<kTransposed>(kType, sums, a, b, adds || k > 0);
    if constexpr (Ring::kHalves == 2) {
      wgmma<kTransposed>(kType, sums, tile_descriptor(left + kLeftHalf + k * kStep, kAcross), b, 1);
      wgmma<kTransposed>(kType, sums, a, tile_descriptor(right + kRightHalf + k * kStep, kAcross), 1);
    }
    if constexpr (kColumn) {
      wgmma<kTransposed>(kType, column, a, tile_descriptor(ones), adds || k > 0);
      if constexpr (Ring::kHalves == 2)
        wgmma<kTransposed>(kType, column, tile_descriptor(left + kLeftHalf + k * kStep, kAcross), tile_descriptor(ones),
                           1);
    }
  }
}

template <class Form, bool kTransposed, bool kColumn>
__device__ __forceinline__ void multiply_slices(float (&sums)[kSums], float (&column)[4], const Work& work,
                                                uint32_t ring, uint32_t full, uint32_t empty, int group, int& turn) {
  using Ring = TileRing<Form>;
  const bool tells = threadIdx.x % 32 == 0;
  for (int64_t slice = work.begin; slice < work.end; ++slice, ++turn) {
    const int stage = turn % Ring::kStages;
    barrier_wait(full + stage * 8, turn / Ring::kStages & 1);
    wgmma_fence();
    multiply<Form, kTransposed, kColumn>(sums, column, ring + Ring::kStaging, ring + stage * Ring::kStage, group,
                                         slice > work.begin);
    wgmma_commit();
    if (slice > work.begin) {
      wgmma_wait<1>();
      if (tells) barrier_arrive(empty + (turn - 1) % Ring::kStages * 8);
    }
  }
  wgmma_wait<0>();
  if (tells) barrier_arrive(empty + (turn - 1) % Ring::kStages * 8);
}

// Writes a warpgroup's half of tiles: staged in shared memory, then stored as a whole. The sums of a thread are those
// of rows `row` and `row` + 8 of the warpgroup, in pairs of columns 8 j + pair.
struct Staging {
  uint32_t buffers;
  int group, row, pair;
  unsigned stored = 0;

  __device__ __forceinline__ bool first() const { return threadIdx.x % kGroupThreads == 0; }
  // The next buffer, free.
  template <int kPending>
  __device__ __forceinline__ uint32_t next() {
    if (first()) bulk_wait<kPending>();
    sync_group(group);
    return buffers + stored++ % 2 * (kTile / 2);
  }
  __device__ __forceinline__ void store(void* to, uint32_t from) const {
    if (first()) bulk_store(to, from, kTile / 2);
  }
  // Before stores: what was written is seen by them.
  __device__ __forceinline__ void written() const {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    sync_group(group);
  }
  __device__ __forceinline__ uint32_t place(uint32_t buffer, int more_rows, int byte) const {
    return buffer + (row + more_rows) * kTileBytes + ((byte / 16) ^ (row % 8)) * 16 + byte % 16;
  }
};

__device__ __forceinline__ void put(uint32_t address, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void put(uint32_t address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ uint32_t packed(const __half*, float x, float y) {
  const __half2 pair = __floats2half2_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ uint32_t packed(const __nv_bfloat16*, float x, float y) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
// The difference that rounding to halves leaves of a pair.
__device__ __forceinline__ uint32_t packed_rest(uint32_t upper, float x, float y) {
  const float2 taken = __half22float2(*reinterpret_cast<const __half2*>(&upper));
  return packed(static_cast<const __half*>(nullptr), x - taken.x, y - taken.y);
}

#endif

}  // namespace prnn::rnnt_cuda
