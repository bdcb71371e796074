// The second product of a step of a layer with a projection. A block has the columns that belong to its own units: it
// multiplies them with its own vector as soon as it has that, for all P rows, and leaves the partial sums to the blocks
// that add up the rows. Words of sums say by their lowest bit of which step they are.
#pragma once

#include "rnn/cuda/mma/product.cuh"
#include "rnn/plan/projected.h"

namespace prnn {

// [P, K_TILES k-tiles] of weights times the block's own vector. A pair is two row tiles, 16 rows; pair i of warp w is
// w + 8 i. REGISTER_PAIRS of them are in registers, the others in shared memory.
template <class T, int K_TILES, int REGISTER_PAIRS>
struct OwnColumnsProduct {
  static constexpr int kPairVectors = 2 * K_TILES * kResidentThreads;  // of 16 bytes in shared memory

  uint4 weights[REGISTER_PAIRS > 0 ? REGISTER_PAIRS : 1][K_TILES][2];
  const uint4* more_weights;
  int pairs;  // of this warp

  // `load` as for MmaProduct::load_weights().
  template <class Load>
  __device__ __forceinline__ void load_weights(int total_pairs, void* shared, const Load& load) {
    const int warp = threadIdx.x / 32;
    pairs = k_tiles_of_warp(total_pairs);
    const auto operands = [&](int i, int k) {
      const int row_tile = 2 * (warp + i * kResidentWarps);
      return operands_of(load(row_tile, k), load(row_tile + 1, k));
    };
    unroll<REGISTER_PAIRS, K_TILES>([&](int i, int k) {
      const WeightOperands a = i < pairs ? operands(i, k) : WeightOperands{};
      weights[i][k][0] = a.first;
      weights[i][k][1] = a.second;
    });
    uint4* const more = static_cast<uint4*>(shared) + threadIdx.x;
    for (int i = REGISTER_PAIRS; i < pairs; ++i) {
      for (int k = 0; k < K_TILES; ++k) {
        const WeightOperands a = operands(i, k);
        uint4* const to = more + (i - REGISTER_PAIRS) * kPairVectors + 2 * k * kResidentThreads;
        to[0] = a.first;
        to[kResidentThreads] = a.second;
      }
    }
    more_weights = more;
  }

  // `own`: the block's vectors, as a fragment of each k-tile. Calls publish(pair, sums) for each pair of this warp.
  template <class Publish>
  __device__ __forceinline__ void run(const uint4 (&own)[K_TILES], const Publish& publish) const {
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < REGISTER_PAIRS; ++i) {
      if (i >= pairs) break;
      float sums[4] = {0, 0, 0, 0};
#pragma unroll
      for (int k = 0; k < K_TILES; ++k) {
        multiply_k_tile<T, true>(sums, sums, weights[i][k][0], weights[i][k][1], own[k]);
      }
      publish(warp + i * kResidentWarps, sums);
    }
    const uint4* from = more_weights;
#pragma unroll 1
    for (int i = REGISTER_PAIRS; i < pairs; ++i, from += kPairVectors) {
      float sums[4] = {0, 0, 0, 0};
#pragma unroll
      for (int k = 0; k < K_TILES; ++k) {
        multiply_k_tile<T, true>(sums, sums, from[2 * k * kResidentThreads], from[(2 * k + 1) * kResidentThreads],
                                 own[k]);
      }
      publish(warp + i * kResidentWarps, sums);
    }
  }
};

// The partial sums of a tile of sequences in memory, [row tile][block][64 floats]: by pair of columns, row, column of
// the pair. All of a launch's steps share them: a block stores those of a step when it has the rows that were added up
// from the step before, all of them, so those have been read.
struct PartialSums {
  float* of_tile;
  int blocks;
  int column_pairs;  // that are exchanged: 1, 2 or 4
  uint32_t bit;      // lowest, of the step's words

  static __device__ __forceinline__ int pairs_of(int columns) { return columns <= 2 ? 1 : columns <= 4 ? 2 : 4; }

  // The sums of a pair of row tiles, as the matrix instruction leaves them.
  __device__ __forceinline__ void publish(int pair, const float (&sums)[4]) const {
    const int lane = threadIdx.x % 32;
    float* const to = of_tile + (int64_t{2 * pair} * blocks + blockIdx.x) * kTileFloats + lane % 4 * 16 + lane / 4 * 2;
    const bool valid = lane % 4 < column_pairs;
    publish_two(valid, to, sums[0], sums[1]);
    publish_two(valid, to + int64_t{blocks} * kTileFloats, sums[2], sums[3]);
  }

  // Adds up a row tile over the blocks: `of_warps` [warps][64], the warps' sums in the order of the words. A barrier
  // must follow.
  __device__ __forceinline__ void add_up(int row_tile, float* of_warps, int* fault, bool& timed_out) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int lanes = 4 * column_pairs, blocks_a_load = 32 / lanes;  // of a block; a load of a warp
    const int first = warp * blocks_a_load + lane / lanes, stride = kResidentWarps * blocks_a_load;
    const float* const from = of_tile + (int64_t{row_tile} * blocks + first) * kTileFloats + lane % lanes * 4;
    uint4 words[kPartialLoads];
    const auto load = [&](int i) {
      return load_or_zeros(first + i * stride < blocks, from + i * stride * kTileFloats);
    };
#pragma unroll
    for (int i = 0; i < kPartialLoads; ++i) words[i] = load(i);
    SpinTimeout timeout;
    while (!timed_out) {
      uint32_t missing = 0;
#pragma unroll
      for (int i = 0; i < kPartialLoads; ++i) missing |= first + i * stride < blocks ? differs(words[i]) : 0;
      if (!__any_sync(kWholeWarp, missing & 1)) break;
      if (!__all_sync(kWholeWarp, timeout.keeps_spinning(fault))) timed_out = true;
#pragma unroll
      for (int i = 0; i < kPartialLoads; ++i) {
        if (differs(words[i]) & 1) words[i] = load(i);
      }
    }
    float4 total = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kPartialLoads; ++i) {
      add_to(total, {__uint_as_float(words[i].x), __uint_as_float(words[i].y), __uint_as_float(words[i].z),
                     __uint_as_float(words[i].w)});
    }
    for (int beside = lanes; beside < 32; beside *= 2) {
      add_to(total, {__shfl_xor_sync(kWholeWarp, total.x, beside), __shfl_xor_sync(kWholeWarp, total.y, beside),
                     __shfl_xor_sync(kWholeWarp, total.z, beside), __shfl_xor_sync(kWholeWarp, total.w, beside)});
    }
    if (lane < lanes) reinterpret_cast<float4*>(of_warps)[warp * (kTileFloats / 4) + lane] = total;
  }

 private:
  __device__ __forceinline__ uint32_t differs(const uint4& v) const {
    return (v.x ^ bit) | (v.y ^ bit) | (v.z ^ bit) | (v.w ^ bit);
  }
  __device__ __forceinline__ void publish_two(bool valid, float* to, float first, float second) const {
    asm volatile("{.reg .pred p; setp.ne.u32 p,%3,0; @p st.relaxed.gpu.global.v2.u32 [%0],{%1,%2};}" ::"l"(to),
                 "r"((__float_as_uint(first) & ~1u) | bit), "r"((__float_as_uint(second) & ~1u) | bit),
                 "r"(static_cast<uint32_t>(valid))
                 : "memory");
  }
};

// The sum of two neighbouring rows and a column that PartialSums::add_up() left, over all warps.
__device__ __forceinline__ float2 sum_of_rows(const float* of_warps, int row, int column) {
  const float* const from = of_warps + column / 2 * 16 + row * 2 + column % 2;
  return {sum_over_warps(from, kTileFloats, 0), sum_over_warps(from, kTileFloats, 2)};
}

// This lane's fragment of a k-tile of the block's own vectors, [k-tile][column][64 bytes].
template <int K_TILES>
__device__ __forceinline__ void load_own(const uint4* own, uint4 (&fragments)[K_TILES]) {
#pragma unroll
  for (int k = 0; k < K_TILES; ++k) fragments[k] = own[k * 32 + threadIdx.x % 32];
}

// Where element k of a column of them is.
template <class T>
__device__ __forceinline__ T* own_element(uint4* own, int k, int column) {
  constexpr int kElements = 64 / sizeof(T);
  return reinterpret_cast<T*>(own) + k / kElements * (kTileColumns * kElements) + column * kElements + k % kElements;
}

}  // namespace prnn
