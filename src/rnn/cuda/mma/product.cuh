// Shared parts of the forward and the backward kernel of the mma engine: weights as matrix-instruction fragments in
// registers and shared memory, states polled from L2 in fragment order, sums over warps and over a cluster.
#pragma once

#include "rnn/cuda/common/block.cuh"
#include "rnn/cuda/common/dsmem.cuh"
#include "rnn/cuda/common/exchange.cuh"
#include "rnn/cuda/common/lanes.cuh"
#include "rnn/cuda/common/launch.cuh"
#include "rnn/cuda/common/sequence.cuh"
#include "rnn/cuda/common/shared_memory.cuh"
#include "rnn/cuda/common/step_io.cuh"
#include "rnn/cuda/common/weights.cuh"
#include "rnn/plan/mma.h"

namespace prnn {

constexpr int kTileFloats = 64;  // 8 rows x 8 columns

// Calls multiply(first, second), which adds the products of the two halves of a k-tile to these sums, and corrects
// for how the instruction rounds. APART: the k-tile's product is made alone and added with float's rounding, to the
// nearest. Else the six instructions of a k-tile round the sum itself, and what that takes on the average is added.
template <class T, bool APART, class Multiply>
__device__ __forceinline__ void add_k_tile(float (&first_sum)[4], float (&second_sum)[4], const Multiply& multiply) {
  if constexpr (kExact<T> && APART) {
    float part[4] = {0, 0, 0, 0};
    multiply(part, part);
#pragma unroll
    for (int i = 0; i < 4; ++i) first_sum[i] += part[i];
  } else {
    multiply(first_sum, second_sum);
    if constexpr (kExact<T>) {
#pragma unroll
      for (int i = 0; i < 4; ++i) first_sum[i] = fmaf(first_sum[i], 1.9e-7f, first_sum[i]);
    }
  }
}

// Adds the product of a k-tile: 16 rows of weights, as two operands of the instruction, and 8 columns of states.
template <class T, bool APART>
__device__ __forceinline__ void multiply_k_tile(float (&first_sum)[4], float (&second_sum)[4], const uint4& first,
                                                const uint4& second, const uint4& states) {
  add_k_tile<T, APART>(first_sum, second_sum, [&](float (&one)[4], float (&other)[4]) {
    Element<T>::mma(one, first.x, first.y, first.z, first.w, states.x, states.y);
    Element<T>::mma(other, second.x, second.y, second.z, second.w, states.z, states.w);
  });
}

// Multiplies a row tile, transposed: as the other operand a row tile alone needs no registers for 8 rows of zeros.
template <class T, bool APART>
__device__ __forceinline__ void multiply_row_tile(float (&first_sum)[4], float (&second_sum)[4], const uint4& weights,
                                                  const uint4& states) {
  add_k_tile<T, APART>(first_sum, second_sum, [&](float (&one)[4], float (&other)[4]) {
    Element<T>::mma_transposed(one, states.x, states.y, weights.x, weights.y);
    Element<T>::mma_transposed(other, states.z, states.w, weights.z, weights.w);
  });
}

// The two operands of a k-tile's instructions, 16 rows each, from two row tiles' fragments.
struct WeightOperands {
  uint4 first, second;
};
__device__ __forceinline__ WeightOperands operands_of(const uint4& low, const uint4& high) {
  return {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
}

// The number of a warp's k-tiles, which are w + 8 i, among `total`.
__device__ __forceinline__ int k_tiles_of_warp(int total) {
  const int warp = threadIdx.x / 32;
  return warp < total ? (total - warp + kResidentWarps - 1) / kResidentWarps : 0;
}

// Where row `row` of a row tile and column `column` are among the row tile's sums.
__device__ __forceinline__ int sum_index(int row, int column) { return column % 2 * 32 + row * 4 + column / 2; }

// ROW_TILES of rows by the warp's k-tiles; k-tile i of warp w is w + 8 i. `Load` is a function (row tile, k-tile) ->
// uint4 that fetches the 16 bytes of this lane: row lane / 4 of the row tile, K elements (lane % 4) * 16 bytes onwards
// of the k-tile. STRIDE: floats between the sums of two row tiles, chosen by the kernel against bank conflicts. K-tiles
// are loaded and multiplied in chunks of kChunkKTiles; two chunks are in flight, each in its stage. APART: see
// add_k_tile().
template <class T, int ROW_TILES, int STRIDE, bool SINGLE, bool APART, int IN_REGISTERS = register_k_tiles(ROW_TILES)>
struct MmaProduct {
  static constexpr int kInRegisters = IN_REGISTERS;
  static constexpr int kTiles = (ROW_TILES + 1) / 2;  // of 16 rows; an odd row tile's has 8
  // Independent chains of sums, to hide their latency.
  static constexpr int kSets = kTiles <= 2 && !kExact<T> ? 2 : 1;
  using Sums = float[kSets][kTiles][4];

  uint4 weights[kInRegisters][ROW_TILES];
  uint4* more_weights;  // shared memory: [k-tile - kInRegisters][row tile][warp][lane]
  int k_tiles, chunks;  // of this warp
  int k_tile_stride;    // bytes from a warp's k-tile of states to its next

  uint4 states[2][kChunkKTiles];

  // Float32, one sequence a replica: FFMA, a row and a part of K a lane. The matrix instructions would leave 7 of 8
  // columns empty and take three products for each: 0.57 to 0.9 of their time was measured. The simt engine serves
  // most such layers; left here are those too large for it, small RNN layers, and few sequences of a replica each.
  static constexpr bool kMayUseFfma = SINGLE && kExact<T> && ROW_TILES < 8;  // eight leave no registers for it
  const int* replica_columns = nullptr;  // where the kernel's parameters say it, which takes no register

  __device__ __forceinline__ bool uses_ffma() const { return kMayUseFfma && *replica_columns == 1; }
  // The column whose states this lane loads.
  __device__ __forceinline__ int column_of(int lane) const { return uses_ffma() ? 0 : lane / 4; }

  template <class Load>
  __device__ __forceinline__ void load_weights(int total_k_tiles, void* shared, const Load& load) {
    const int warp = threadIdx.x / 32;
    k_tiles = k_tiles_of_warp(total_k_tiles);
    chunks = (k_tiles + kChunkKTiles - 1) / kChunkKTiles;
    more_weights = static_cast<uint4*>(shared) + threadIdx.x;
    unroll<kInRegisters, ROW_TILES>(
        [&](int i, int o) { weights[i][o] = i < k_tiles ? load(o, warp + i * kResidentWarps) : uint4{0, 0, 0, 0}; });
    for (int i = kInRegisters; i < k_tiles; ++i) {
      uint4* const to = more_weights + (i - kInRegisters) * ROW_TILES * kResidentThreads;
      for (int o = 0; o + 1 < ROW_TILES; o += 2) {  // in the order of the instruction's operand
        const WeightOperands a =
            operands_of(load(o, warp + i * kResidentWarps), load(o + 1, warp + i * kResidentWarps));
        to[o * kResidentThreads] = a.first;
        to[(o + 1) * kResidentThreads] = a.second;
      }
      if (ROW_TILES % 2 == 1) to[(ROW_TILES - 1) * kResidentThreads] = load(ROW_TILES - 1, warp + i * kResidentWarps);
    }
  }

  // Issues the first loads of the states of a chunk. `base` is where this lane's 16 bytes of the warp's first k-tile
  // are; lanes that are not to read get zeros, and so does a k-tile beyond the last.
  template <int STAGE>
  __device__ __forceinline__ void issue_loads(int chunk, const char* base, bool reads) {
    const char* const source = base + chunk * (kChunkKTiles * k_tile_stride);
#pragma unroll
    for (int i = 0; i < kChunkKTiles; ++i) {
      states[STAGE][i] = load_or_zeros(reads && chunk * kChunkKTiles + i < k_tiles, source + i * k_tile_stride);
    }
  }

  // Waits until the chunk in the stage has arrived whole. `chunk` and `base` are those of issue_loads().
  template <int STAGE>
  __device__ __forceinline__ void wait_loads(int chunk, const char* base, int* fault, bool& timed_out) {
    const char* const source = base + chunk * (kChunkKTiles * k_tile_stride);
    poll_words(states[STAGE], [&](int i) { return source + i * k_tile_stride; }, fault, timed_out);
  }

  // Adds the chunk in the stage. FIRST_K_TILE: of the chunk, where it is known when compiling; -1: `chunk` says.
  template <int STAGE, int FIRST_K_TILE>
  __device__ __forceinline__ void multiply(int chunk, Sums& sums) const {
    if (uses_ffma()) return multiply_ffma<STAGE, FIRST_K_TILE>(chunk, sums);
#pragma unroll
    for (int i = 0; i < kChunkKTiles; ++i) {
      const int known = FIRST_K_TILE < 0 ? kInRegisters : FIRST_K_TILE + i;
      const int k_tile = FIRST_K_TILE < 0 ? chunk * kChunkKTiles + i : FIRST_K_TILE + i;
      if (known >= kInRegisters && k_tile >= k_tiles) continue;  // shared memory has no zeros beyond the last k-tile
      const uint4 b = states[STAGE][i];
      const uint4* const from = more_weights + (k_tile - kInRegisters) * ROW_TILES * kResidentThreads;
#pragma unroll
      for (int o = 0; o + 1 < ROW_TILES; o += 2) {
        const int k = known < kInRegisters ? known : 0;
        const WeightOperands a = known < kInRegisters
                                     ? operands_of(weights[k][o], weights[k][o + 1])
                                     : WeightOperands{from[o * kResidentThreads], from[(o + 1) * kResidentThreads]};
        multiply_k_tile<T, APART>(sums[0][o / 2], sums[kSets - 1][o / 2], a.first, a.second, b);
      }
      if (ROW_TILES % 2 == 1) {
        const uint4 last = known < kInRegisters ? weights[known < kInRegisters ? known : 0][ROW_TILES - 1]
                                                : from[(ROW_TILES - 1) * kResidentThreads];
        multiply_row_tile<T, APART>(sums[0][kTiles - 1], sums[kSets - 1][kTiles - 1], last, b);
      }
    }
  }

  // The warp's sums for one tile into `shared`: row r of row tile o and column c at o * STRIDE + sum_index(r, c).
  __device__ __forceinline__ void store(const Sums& sums, float* shared) const {
    const int lane = threadIdx.x % 32;
    if (uses_ffma()) {
#pragma unroll
      for (int o = 0; o < ROW_TILES; ++o) {
        float sum = 0;
#pragma unroll
        for (int set = 0; set < kSets; ++set) sum += sums[set][o / 2][o % 2 * 2] + sums[set][o / 2][o % 2 * 2 + 1];
        sum += __shfl_xor_sync(kWholeWarp, sum, 1);
        sum += __shfl_xor_sync(kWholeWarp, sum, 2);
        shared[o * STRIDE + lane] = sum;  // row lane / 4, column 0; no thread reads the other columns
      }
      return;
    }
    unroll<ROW_TILES, 2>([&](int o, int e) {
      const int q = o % 2 * 2 + e;
      const float sum = kSets == 2 ? sums[0][o / 2][q] + sums[kSets - 1][o / 2][q] : sums[0][o / 2][q];
      const bool is_transposed = ROW_TILES % 2 == 1 && o == ROW_TILES - 1;
      shared[o * STRIDE + (is_transposed ? sum_index(lane % 4 * 2 + e, lane / 4) : e * 32 + lane)] = sum;
    });
  }

  // Issues the first loads of the first states of a wave of `count` tiles; base and reads as for run().
  template <class Base, class Reads>
  __device__ __forceinline__ void prefetch(const Base& base, const Reads& reads, int count) {
    issue_loads<0>(0, base(0), reads(0));
    if (chunks > 1) {
      issue_loads<1>(1, base(0), reads(0));
    } else if (count > 1) {
      issue_loads<1>(0, base(1), reads(1));
    }
  }

  // The products of a wave of up to WAVE tiles. `base(tile)` and `reads(tile)` are issue_loads()'s arguments for tile 0
  // .. count - 1 of the wave, and, where `follows`, for the first two of the next wave, count and count + 1. The first
  // chunks' loads have been issued, by prefetch() or by the wave before. Returns whether those of the next wave have.
  template <int WAVE, class Base, class Reads>
  __device__ __forceinline__ bool run(int count, bool follows, const Base& base, const Reads& reads, int* fault,
                                      bool& timed_out, float* shared, int tile_floats) {
    if (chunks <= 1) return run_one_chunk<WAVE>(count, follows, base, reads, fault, timed_out, shared, tile_floats);
    const bool prefetches_next = chunks == 2;  // the two stages hold one tile
#pragma unroll 1
    for (int j = 0; j < (WAVE == 1 ? 1 : count); ++j) {
      Sums sums = {};
      const char* const here = base(j);
      const bool goes_on = prefetches_next && (j + 1 < count || follows);
      const char* const ahead = base(j + 1);
      const bool ahead_reads = reads(j + 1);
      wait_loads<0>(0, here, fault, timed_out);
      multiply<0, 0>(0, sums);
      if (goes_on) issue_loads<0>(0, ahead, ahead_reads);
      wait_loads<1>(1, here, fault, timed_out);
      multiply<1, kChunkKTiles>(1, sums);
      if (goes_on) issue_loads<1>(1, ahead, ahead_reads);
      if (!prefetches_next) {
#pragma unroll 1
        for (int chunk = 2; chunk < chunks; chunk += 2) {
          issue_loads<0>(chunk, here, reads(j));
          issue_loads<1>(chunk + 1, here, reads(j));
          wait_loads<0>(chunk, here, fault, timed_out);
          multiply<0, -1>(chunk, sums);
          wait_loads<1>(chunk + 1, here, fault, timed_out);
          multiply<1, -1>(chunk + 1, sums);
        }
        if (j + 1 < count) {
          issue_loads<0>(0, ahead, ahead_reads);
          issue_loads<1>(1, ahead, ahead_reads);
        }
      }
      store(sums, shared + j * tile_floats);
    }
    return prefetches_next && follows;
  }

 private:
  template <int STAGE, int FIRST_K_TILE>
  __device__ __forceinline__ void multiply_ffma(int chunk, Sums& sums) const {
#pragma unroll
    for (int i = 0; i < kChunkKTiles; ++i) {
      const int known = FIRST_K_TILE < 0 ? kInRegisters : FIRST_K_TILE + i;
      const int k_tile = FIRST_K_TILE < 0 ? chunk * kChunkKTiles + i : FIRST_K_TILE + i;
      if (known >= kInRegisters && k_tile >= k_tiles) continue;
      const uint4 b = states[STAGE][i];
      const uint4* const from = more_weights + (k_tile - kInRegisters) * ROW_TILES * kResidentThreads;
#pragma unroll
      for (int o = 0; o < ROW_TILES; o += 2) {
        const bool is_alone = o + 1 == ROW_TILES;
        uint4 low, high;  // of row lane / 4 of two row tiles
        if (known < kInRegisters) {
          low = weights[known < kInRegisters ? known : 0][o];
          high = weights[known < kInRegisters ? known : 0][is_alone ? o : o + 1];
        } else {
          low = from[o * kResidentThreads];
          if (!is_alone) {
            const uint4 first = low, second = from[(o + 1) * kResidentThreads];
            low = {first.x, first.z, second.x, second.z};
            high = {first.y, first.w, second.y, second.w};
          }
        }
        float (&sum)[4] = sums[i % kSets][o / 2];
        add_products(sum[0], sum[1], low, b);
        if (!is_alone) add_products(sum[2], sum[3], high, b);
      }
    }
  }

  static __device__ __forceinline__ void add_products(float& even, float& odd, const uint4& a, const uint4& b) {
    even = fmaf(__uint_as_float(a.x), __uint_as_float(b.x), even);
    odd = fmaf(__uint_as_float(a.y), __uint_as_float(b.y), odd);
    even = fmaf(__uint_as_float(a.z), __uint_as_float(b.z), even);
    odd = fmaf(__uint_as_float(a.w), __uint_as_float(b.w), odd);
  }

  // With one chunk the stages hold two tiles.
  template <int WAVE, class Base, class Reads>
  __device__ __forceinline__ bool run_one_chunk(int count, bool follows, const Base& base, const Reads& reads,
                                                int* fault, bool& timed_out, float* shared, int tile_floats) {
    if (WAVE > 1 && count == 1 && follows) issue_loads<1>(0, base(2), reads(2));
#pragma unroll 1
    for (int j = 0; j < (WAVE == 1 ? 1 : count); j += 2) {
      {
        Sums sums = {};
        wait_loads<0>(0, base(j), fault, timed_out);
        multiply<0, 0>(0, sums);
        const int ahead = WAVE > 1 && j + 2 < count ? j + 2 : count;
        if (ahead < count || follows) issue_loads<0>(0, base(ahead), reads(ahead));
        store(sums, shared + j * tile_floats);
      }
      if (WAVE > 1 && j + 1 < count) {
        Sums sums = {};
        wait_loads<1>(0, base(j + 1), fault, timed_out);
        multiply<1, 0>(0, sums);
        const int ahead = j + 3 < count ? j + 3 : count + 1;
        if (ahead < count || follows) issue_loads<1>(0, base(ahead), reads(ahead));
        store(sums, shared + (j + 1) * tile_floats);
      }
    }
    return follows;
  }
};

// Sum over the warps of element `index` of their sums.
__device__ __forceinline__ float sum_over_warps(const float* sums, int floats_per_warp, int index) {
  float value[kResidentWarps];
#pragma unroll
  for (int w = 0; w < kResidentWarps; ++w) value[w] = sums[w * floats_per_warp + index];
  add_all(value);
  return value[0];
}

// Sums an element at a shared address.
__device__ __forceinline__ float sum_over_warps(uint32_t address, int floats_per_warp) {
  float value[kResidentWarps];
#pragma unroll
  for (int w = 0; w < kResidentWarps; ++w) load_shared(address + w * floats_per_warp * 4, value[w]);
  add_all(value);
  return value[0];
}

// Without add_to(), with which the loop around it is unrolled less and a wavefront kernel spills 4 bytes.
__device__ __forceinline__ float4 sum4_over_warps(const float* sums, int floats_per_warp, int index) {
  float4 total = {0, 0, 0, 0};
#pragma unroll
  for (int w = 0; w < kResidentWarps; ++w) {
    const float4 value = *reinterpret_cast<const float4*>(sums + w * floats_per_warp + index);
    total.x += value.x;
    total.y += value.y;
    total.z += value.z;
    total.w += value.w;
  }
  return total;
}

// Where lane sums of unit `own` of a block lie in [rounds][32]: with gates a round is a row tile, without a sub is.
template <bool GATED>
__device__ __forceinline__ int bias_index(int own, int bias) {
  const int row_tile = own / kTileRows;
  return (GATED ? row_tile * 32 + bias : row_tile) + own % kTileRows * 4;
}

// Every block of a cluster has sums of all the cluster's units, over its own share of K: sends each block the sums of
// its units and waits for its own. `wave_sums`: [WAVE][warps][SUM_FLOATS], of which `count` tiles count. `partial`:
// [ranks][WAVE][OWN_FLOATS], of this block's units. `round`: how many such exchanges there were before.
template <int CLUSTER, int WAVE, int SUM_FLOATS, int OWN_FLOATS>
__device__ __forceinline__ void exchange_partial_sums(const float* wave_sums, int count, float* partial,
                                                      BarrierPair& barriers, int rank, int round, int* fault,
                                                      bool& timed_out) {
  const uint32_t barrier = barriers.address(round & 1);
  barriers.expect(round & 1, CLUSTER * count * OWN_FLOATS * sizeof(float));
  for (int i = threadIdx.x * 4; i < count * SUM_FLOATS; i += kResidentThreads * 4) {
    const int j = i / SUM_FLOATS, index = i % SUM_FLOATS;
    const float4 sum = sum4_over_warps(wave_sums + j * kResidentWarps * SUM_FLOATS, SUM_FLOATS, index);
    const uint32_t owner = index / OWN_FLOATS;
    const float* const place = partial + (rank * WAVE + j) * OWN_FLOATS + index % OWN_FLOATS;
    send_to_rank(address_in_rank(shared_address(place), owner), address_in_rank(barrier, owner), sum);
  }
  barriers.wait(round, fault, timed_out);
}

// Backward, a unit's sum, of tile j of a wave: over the warps, or, in clusters, over the blocks, whose sums
// exchange_partial_sums() has left in `partial`. With gates, the subs of the unit share the work.
template <bool GATED, int CLUSTER, int WAVE, int SUM_FLOATS, int OWN_FLOATS>
__device__ __forceinline__ float sum_of_unit(const float* wave_sums, const float* partial, int j, int index, int sub) {
  const float* const sums = wave_sums + j * kResidentWarps * SUM_FLOATS;
  if constexpr (!GATED) return sum_over_warps(sums, SUM_FLOATS, index);
  if constexpr (CLUSTER > 1) {
    return sum_over_subs(sub < CLUSTER ? partial[(sub * WAVE + j) * OWN_FLOATS + index] : 0);
  } else {
    return sum_over_subs(sums[sub * SUM_FLOATS + index] + sums[(sub + 4) * SUM_FLOATS + index]);
  }
}

}  // namespace prnn
