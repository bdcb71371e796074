// Products of a block's row tiles and columns in shared memory: the warps split K, and their sums meet in shared
// memory; or each warp has row tiles of its own. A column's product does not depend on the other columns or on how many
// there are.
#pragma once

#include "decode/cuda/search_plan.h"
#include "rnn/cuda/mma/product.cuh"

namespace prnn::decode_cuda {

constexpr int kTileVecs = 64;  // of 16 bytes, of a row tile and a k-tile

constexpr int kPassTiles = 2;  // row tiles that are multiplied at once

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

// Leaves each warp's sums of kPassTiles x COLUMN_TILES tiles in `sums`. `weights`: of the row tiles, shared or global
// memory. `columns`: shared address of column 0; of one column tile those after `last_column` are that one again.
template <class T, int COLUMN_TILES>
__device__ __forceinline__ void multiply_tiles(const uint4* const (&weights)[kPassTiles], int k_tiles, uint32_t columns,
                                               int last_column, int stride, const PassSums<COLUMN_TILES>& sums) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr int kAhead = 3;  // a warp's k-tiles of weights that are on their way at once
  float sum[kPassTiles][COLUMN_TILES][4] = {};
  const uint32_t own_column = columns + min(lane / 4, last_column) * stride + lane % 4 * 16;
#pragma unroll 1
  for (int first = warp; first < k_tiles; first += kAhead * kWarps) {
    uint4 operands[kAhead][kPassTiles][2];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int k = first + i * kWarps;
      if (k >= k_tiles) continue;
#pragma unroll
      for (int r = 0; r < kPassTiles; ++r) {
        operands[i][r][0] = weights[r][k * kTileVecs + lane];
        operands[i][r][1] = weights[r][k * kTileVecs + 32 + lane];
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int k = first + i * kWarps;
      if (k >= k_tiles) continue;
#pragma unroll
      for (int c = 0; c < COLUMN_TILES; ++c) {
        const uint4 states = load_shared(own_column + c * kTileColumns * stride + k * kKTileBytes);
#pragma unroll
        for (int r = 0; r < kPassTiles; ++r)
          multiply_k_tile<T, true>(sum[r][c], sum[r][c], operands[i][r][0], operands[i][r][1], states);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kPassTiles; ++r) {
#pragma unroll
    for (int c = 0; c < COLUMN_TILES; ++c)
      store_tile(sums.of_warp(warp) + r * kTileRows * sums.kStride + c * kTileColumns, sums.kStride, sum[r][c]);
  }
}

// A matrix's row tiles that a block has: the first of them in shared memory, the others in global memory.
struct BlockTiles {
  Share share;
  int k_tiles, resident;
  const uint4* shared;
  const uint4* global;

  __device__ __forceinline__ const uint4* tile(int i) const {
    return (i < resident ? shared : global) + static_cast<int64_t>(i) * k_tiles * kTileVecs;
  }
};
static_assert(sizeof(BlockTiles) <= kBlockTilesBytes);

// All of a block's rows, in passes of two row tiles; an odd number's last one is multiplied twice. After each pass
// after(first row tile, rows, sums) is called. The block's threads have been together since the columns were written
// and since `sums` was last read.
template <class T, int COLUMN_TILES, class After>
__device__ __forceinline__ void multiply_rows(const BlockTiles& tiles, uint32_t columns, int last_column, int stride,
                                              float* sums, const After& after) {
  const int count = tiles.share.count;
  const PassSums<COLUMN_TILES> of_pass{sums};
#pragma unroll 1
  for (int i = 0; i < count; i += kPassTiles) {
    if (i > 0) __syncthreads();
    const uint4* const pair[kPassTiles] = {tiles.tile(i), tiles.tile(min(i + 1, count - 1))};
    multiply_tiles<T, COLUMN_TILES>(pair, tiles.k_tiles, columns, last_column, stride, of_pass);
    __syncthreads();
    after(i, min(kPassTiles, count - i) * kTileRows, of_pass);
  }
}

// Adds up the sums of a pass into `results`, [row][column] of `stride` floats a row.
template <int COLUMN_TILES>
__device__ __forceinline__ void add_up(const PassSums<COLUMN_TILES>& sums, int rows, float* results, int stride) {
  constexpr int kColumns = COLUMN_TILES * kTileColumns;
#pragma unroll 1
  for (int i = threadIdx.x; i < rows * kColumns; i += kThreads)
    results[i / kColumns * stride + i % kColumns] = sums(i / kColumns, i % kColumns);
}

// All of a block's rows, a warp a row tile: no warp waits for another. The sums have the bits of multiply_rows(): one
// for each of the parts of K that its warps have.
template <class T, int COLUMN_TILES>
__device__ __forceinline__ void multiply_rows_apart(const BlockTiles& tiles, uint32_t columns, int last_column,
                                                    int stride, float* results, int results_stride) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, k_tiles = tiles.k_tiles;
  constexpr int kAhead = sizeof(T) == sizeof(float) ? kWarps / 2 : kWarps;  // k-tiles of weights in registers at once
  const uint32_t own_column = columns + min(lane / 4, last_column) * stride + lane % 4 * 16;
#pragma unroll 1
  for (int tile = warp; tile < tiles.share.count; tile += kWarps) {
    const uint4* const weights = tiles.tile(tile);
    float sums[kWarps][COLUMN_TILES][4] = {};
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
#pragma unroll
          for (int c = 0; c < COLUMN_TILES; ++c) {
            const uint4 states = load_shared(own_column + c * kTileColumns * stride + k * kKTileBytes);
            float (&sum)[4] = sums[begin + i][c];
            multiply_k_tile<T, true>(sum, sum, operands[i][0], operands[i][1], states);
          }
        }
      }
    }
#pragma unroll
    for (int c = 0; c < COLUMN_TILES; ++c) {
      float total[4] = {};
#pragma unroll
      for (int i = 0; i < kWarps; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) total[k] += sums[i][c][k];
      }
      store_tile(results + tile * kTileRows * results_stride + c * kTileColumns, results_stride, total);
    }
  }
}

}  // namespace prnn::decode_cuda
