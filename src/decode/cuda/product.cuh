// Products of a block's row tiles and columns in shared memory: the warps split K, and their sums meet in shared
// memory; or each warp has row tiles of its own. A column's product does not depend on the other columns or on how many
// there are.
#pragma once

#include "decode/cuda/barrier.cuh"
#include "rnn/cuda/mma/product.cuh"

namespace prnn::decode_cuda {

constexpr int kTileVecs = 64;  // of 16 bytes, of a row tile and a k-tile

constexpr int kPassTiles = 2;  // row tiles that are multiplied at once

// Where a lane's 16 bytes of the first k-tile are, of its column of each column tile: shared addresses.
template <int COLUMN_TILES>
struct LaneColumns {
  uint32_t own[COLUMN_TILES];

  // row(column): of `stride` bytes, behind `rows`; by whole warps.
  template <class Row>
  __device__ __forceinline__ LaneColumns(const void* rows, int stride, const Row& row) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < COLUMN_TILES; ++c)
      own[c] = shared_address(rows) + row(c * kTileColumns + lane / 4) * stride + lane % 4 * 16;
  }
};

// Stores a warp's tile of sums, in the order of the instruction, to [row][column] of `stride` floats a row.
__device__ __forceinline__ void store_tile(float* to, int stride, const float (&sum)[4]) {
  const int lane = threadIdx.x % 32;
  float* const at = to + lane / 4 * stride + lane % 4 * 2;
  at[0] = sum[0];
  at[1] = sum[1];
  at[8 * stride] = sum[2];
  at[8 * stride + 1] = sum[3];
}

// The sums of a pass, which each warp has made over its part of K: float [warp][row][column], in shared memory. A row
// has an odd number of floats: the rows of a column meet no bank twice.
template <int COLUMN_TILES>
struct PassSums {
  static constexpr int kStride = COLUMN_TILES * kTileColumns + 1;
  float* all;

  __device__ __forceinline__ float* of_warp(int warp) const { return all + warp * (kPassTiles * kTileRows * kStride); }
  __device__ __forceinline__ float operator()(int row, int column) const {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += of_warp(w)[row * kStride + column];
    return total;
  }
};

// A matrix's row tiles that a block has: the first of them in shared memory, the others in global memory.
struct BlockTiles {
  Share share;
  int first_piece, k_tiles, resident;
  const uint4* shared;
  const uint4* global;

  __device__ __forceinline__ const uint4* tile(int i) const {
    return (i < resident ? shared : global) + static_cast<int64_t>(i) * k_tiles * kTileVecs;
  }
};
static_assert(sizeof(BlockTiles) <= kBlockTilesBytes);

// Weights of a pass in a warp's registers: of some of its k-tiles, from the first of them on.
template <int K_TILES>
struct PassWeights {
  static constexpr int kKTiles = K_TILES;
  uint4 operands[kKTiles][kPassTiles][2];

  __device__ __forceinline__ void load(const uint4* const (&weights)[kPassTiles], int first, int k_tiles) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kKTiles; ++i) {
      const int k = first + i * kWarps;
      if (k >= k_tiles) continue;
#pragma unroll
      for (int r = 0; r < kPassTiles; ++r) {
        operands[i][r][0] = weights[r][k * kTileVecs + lane];
        operands[i][r][1] = weights[r][k * kTileVecs + 32 + lane];
      }
    }
  }
  // The first of the pass that begins with this row tile of a block; an odd number's last one is taken twice.
  __device__ __forceinline__ void load(const BlockTiles& tiles, int tile) {
    if (tile >= tiles.share.count) return;
    const uint4* const pair[kPassTiles] = {tiles.tile(tile), tiles.tile(min(tile + 1, tiles.share.count - 1))};
    load(pair, threadIdx.x / 32, tiles.k_tiles);
  }
};

// Leaves each warp's sums of kPassTiles x USED tiles in `sums`. `ahead`: the first weights of the pass that begins with
// `tile`. `used`: column tiles that are multiplied if they are fewer than USED, at least the first.
template <class T, int USED, int COLUMN_TILES, class Weights>
__device__ __forceinline__ void multiply_tiles(const BlockTiles& tiles, int tile, Weights& ahead,
                                               const LaneColumns<COLUMN_TILES>& columns, int used,
                                               const PassSums<COLUMN_TILES>& sums) {
  if constexpr (USED > 1) {
    if (used < USED) return multiply_tiles<T, USED - 1>(tiles, tile, ahead, columns, used, sums);
  }
  const int warp = threadIdx.x / 32, k_tiles = tiles.k_tiles;
  const uint4* const weights[kPassTiles] = {tiles.tile(tile), tiles.tile(min(tile + 1, tiles.share.count - 1))};
  float sum[kPassTiles][USED][4] = {};
#pragma unroll 1
  for (int first = warp; first < k_tiles;) {
#pragma unroll
    for (int i = 0; i < Weights::kKTiles; ++i) {
      const int k = first + i * kWarps;
      if (k >= k_tiles) continue;
      uint4 states[USED];
#pragma unroll
      for (int c = 0; c < USED; ++c) states[c] = load_shared(columns.own[c] + k * kKTileBytes);
#pragma unroll
      for (int c = 0; c < USED; ++c) {
#pragma unroll
        for (int r = 0; r < kPassTiles; ++r)
          multiply_k_tile<T, true>(sum[r][c], sum[r][c], ahead.operands[i][r][0], ahead.operands[i][r][1], states[c]);
      }
    }
    first += Weights::kKTiles * kWarps;
    ahead.load(weights, first, k_tiles);
  }
#pragma unroll
  for (int r = 0; r < kPassTiles; ++r) {
#pragma unroll
    for (int c = 0; c < USED; ++c)
      store_tile(sums.of_warp(warp) + r * kTileRows * sums.kStride + c * kTileColumns, sums.kStride, sum[r][c]);
  }
}

// All of a block's rows, in passes of two row tiles; an odd number's last one is multiplied twice. After each pass
// after(first row tile, rows, sums) is called. The block's threads have been together since the columns were written
// and since `sums` was last read. ahead: the first weights; those of a pass
// are loaded before the sums of the pass before are used.
template <class T, int COLUMN_TILES, class Weights, class After>
__device__ __forceinline__ void multiply_rows(const BlockTiles& tiles, Weights& ahead,
                                              const LaneColumns<COLUMN_TILES>& columns, int used, float* sums,
                                              const After& after) {
  const int count = tiles.share.count;
  const PassSums<COLUMN_TILES> of_pass{sums};
#pragma unroll 1
  for (int i = 0; i < count; i += kPassTiles) {
    if (i > 0) sync_threads();
    multiply_tiles<T, COLUMN_TILES>(tiles, i, ahead, columns, used, of_pass);
    sync_threads();
    ahead.load(tiles, i + kPassTiles);
    after(i, min(kPassTiles, count - i) * kTileRows, of_pass);
  }
}

// Adds up the sums of a pass and of the columns that this thread has, i % kThreads being its number, into `results`,
// [row][to] of `stride` floats a row. to: in place of the column; -1: of none.
template <int COLUMN_TILES>
__device__ __forceinline__ void add_up(const PassSums<COLUMN_TILES>& sums, int rows, float* results, int stride,
                                       int to) {
  constexpr int kColumns = COLUMN_TILES * kTileColumns;
  if (to < 0) return;
#pragma unroll 1
  for (int i = threadIdx.x; i < rows * kColumns; i += kThreads)
    results[i / kColumns * stride + to] = sums(i / kColumns, i % kColumns);
}

// All of a block's rows and a column tile, a warp a row tile: no warp waits for another. The sums have the bits of
// multiply_rows(): one for each of the parts of K that its warps have. Column i is stored as column_of(i); -1: not.
template <class T, class ColumnOf>
__device__ __forceinline__ void multiply_rows_apart(const BlockTiles& tiles, uint32_t own_column, float* results,
                                                    int results_stride, const ColumnOf& column_of) {
  const int lane = threadIdx.x % 32, k_tiles = tiles.k_tiles;
  constexpr int kAhead = sizeof(T) == sizeof(float) ? kWarps / 2 : kWarps;  // k-tiles of weights in registers at once
  const int to[2] = {column_of(lane % 4 * 2), column_of(lane % 4 * 2 + 1)};
#pragma unroll 1
  for (int tile = threadIdx.x / 32; tile < tiles.share.count; tile += kWarps) {
    const uint4* const weights = tiles.tile(tile);
    float sums[kWarps][4] = {};
#pragma unroll 1
    for (int first = 0; first < k_tiles; first += kWarps) {
#pragma unroll
      for (int begin = 0; begin < kWarps; begin += kAhead) {
        uint4 operands[kAhead][2];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int k = first + begin + i;
          if (k >= k_tiles) continue;
          operands[i][0] = weights[k * kTileVecs + lane];
          operands[i][1] = weights[k * kTileVecs + 32 + lane];
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int k = first + begin + i;
          if (k >= k_tiles) continue;
          const uint4 states = load_shared(own_column + k * kKTileBytes);
          float (&sum)[4] = sums[begin + i];
          multiply_k_tile<T, true>(sum, sum, operands[i][0], operands[i][1], states);
        }
      }
    }
    float total[4] = {};
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) total[k] += sums[i][k];
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = tile * kTileRows + k / 2 * 8 + lane / 4;
      if (to[k % 2] >= 0) results[row * results_stride + to[k % 2]] = total[k];
    }
  }
}

// Two sums of each row and column, each over half of K, by a warp: of every so many half row tiles one.
template <class T>
__device__ __forceinline__ void multiply_halves(const BlockTiles& tiles, uint32_t own_column, float* results,
                                                int results_stride, int warp, int warps) {
  constexpr int kTogether = 4, kAhead = 2;  // k-tiles: with sums of their own; so many times on their way at once
  const int lane = threadIdx.x % 32, half_k = (tiles.k_tiles + 1) / 2;
#pragma unroll 1
  for (int i = warp; i < 2 * tiles.share.count; i += warps) {
    const uint4* const weights = tiles.tile(i / 2);
    const int end = min(tiles.k_tiles, (i % 2 + 1) * half_k);
    float sums[kTogether][4] = {};
#pragma unroll 1
    for (int first = i % 2 * half_k; first < end; first += kAhead * kTogether) {
      uint4 operands[kAhead * kTogether][2];
#pragma unroll
      for (int j = 0; j < kAhead * kTogether; ++j) {
        const int k = first + j;
        if (k >= end) continue;
        operands[j][0] = weights[k * kTileVecs + lane];
        operands[j][1] = weights[k * kTileVecs + 32 + lane];
      }
#pragma unroll
      for (int j = 0; j < kAhead * kTogether; ++j) {
        const int k = first + j;
        if (k >= end) continue;
        const uint4 states = load_shared(own_column + k * kKTileBytes);
        float (&sum)[4] = sums[j % kTogether];
        multiply_k_tile<T, true>(sum, sum, operands[j][0], operands[j][1], states);
      }
    }
    float total[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) total[k] = (sums[0][k] + sums[1][k]) + (sums[2][k] + sums[3][k]);
    store_tile(results + (i / 2 * kTileRows * 2 + i % 2) * results_stride, 2 * results_stride, total);
  }
}

}  // namespace prnn::decode_cuda
