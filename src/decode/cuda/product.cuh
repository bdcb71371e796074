// Products of a block's row tiles and columns in shared memory: the warps split K, and their sums meet in shared
// memory. A column's product does not depend on the other columns or on how many there are.
#pragma once

#include "decode/cuda/search_plan.h"
#include "rnn/cuda/mma/product.cuh"

namespace prnn::decode_cuda {

constexpr int kTileVecs = 64;  // of 16 bytes, of a row tile and a k-tile

constexpr int kPassTiles = 2;  // row tiles that are multiplied at once

// Leaves each warp's sums of kPassTiles x COLUMN_TILES tiles in `sums`, [tile][warp][lane]. `weights`: of the row
// tiles, shared or global memory. `columns`: shared address of column 0; of one column tile those after `last_column`
// are that one again.
template <class T, int COLUMN_TILES>
__device__ __forceinline__ void multiply_tiles(const uint4* const (&weights)[kPassTiles], int k_tiles, uint32_t columns,
                                               int last_column, int stride, float4* sums) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr int kAhead = 4;  // a warp's k-tiles of weights that are on their way at once
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
      sums[((r * COLUMN_TILES + c) * kWarps + warp) * 32 + lane] = {sum[r][c][0], sum[r][c][1], sum[r][c][2],
                                                                    sum[r][c][3]};
  }
}

// Adds them up, into [row][column] of `stride` floats a row.
template <int COLUMN_TILES>
__device__ __forceinline__ void add_up_tiles(const float4* sums, float* results, int stride) {
#pragma unroll 1
  for (int i = threadIdx.x; i < kPassTiles * COLUMN_TILES * 32; i += kThreads) {
    const int tile = i / 32, lane = i % 32;
    float4 total = {0, 0, 0, 0};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) add_to(total, sums[(tile * kWarps + w) * 32 + lane]);
    float* const to = results + (tile / COLUMN_TILES * kTileRows + lane / 4) * stride +
                      tile % COLUMN_TILES * kTileColumns + lane % 4 * 2;
    to[0] = total.x;
    to[1] = total.y;
    to[8 * stride] = total.z;
    to[8 * stride + 1] = total.w;
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

// All of a block's rows, in passes of two row tiles; an odd number's last one is multiplied twice. After each pass its
// results lie at `results` and after(first row tile, rows) is called; KEEPS: those of all passes lie one after the
// other. The block's threads are together afterwards, and before where the columns were written.
template <class T, int COLUMN_TILES, bool KEEPS, class After>
__device__ __forceinline__ void multiply_rows(const BlockTiles& tiles, uint32_t columns, int last_column, int stride,
                                              float4* sums, float* results, int results_stride, const After& after) {
  const int count = tiles.share.count;
#pragma unroll 1
  for (int i = 0; i < count; i += kPassTiles) {
    const uint4* const pair[kPassTiles] = {tiles.tile(i), tiles.tile(min(i + 1, count - 1))};
    multiply_tiles<T, COLUMN_TILES>(pair, tiles.k_tiles, columns, last_column, stride, sums);
    __syncthreads();
    add_up_tiles<COLUMN_TILES>(sums, KEEPS ? results + i * kTileRows * results_stride : results, results_stride);
    __syncthreads();
    after(i, min(kPassTiles, count - i) * kTileRows);
  }
}

}  // namespace prnn::decode_cuda
