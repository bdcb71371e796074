// Shared parts of the two grid kernels of the LSTM with layer normalisation. As in the mma engine, a tile has 8
// sequences, warp w finishes sequence w of each, and its lanes are unit * 4 + gate.
#pragma once

#include <type_traits>

#include "rnn/cuda/layer_norm/factors.cuh"
#include "rnn/cuda/layer_norm/params.h"
#include "rnn/cuda/mma/product.cuh"
#include "rnn/plan/layer_norm.h"

namespace prnn {

// A block's place: units of a replica, whose sequences are [first_column, first_column + columns).
struct GridPlace {
  int block, replica;
  int first_column, columns;
};

__device__ __forceinline__ GridPlace place_in_grid(const LayerNormLstmGridParams& params) {
  const int most = params.sizes.columns_per_replica;
  GridPlace place;
  place.block = blockIdx.x % static_cast<unsigned>(params.blocks);
  place.replica = blockIdx.x / static_cast<unsigned>(params.blocks);
  place.first_column = params.first_column + place.replica * most;
  place.columns = min(most, params.columns - place.replica * most);
  return place;
}

// The element of products whose factors are those of factor_of().
template <class T>
struct Factor {};

template <class T>
struct Element<Factor<T>> : Element<T> {
  static __device__ void mma(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                             uint32_t b1) {
    Element<T>::mma_of_factors(sum, a0, a1, a2, a3, b0, b1);
  }
};

template <class T>
using Multiplied = std::conditional_t<kExact<T>, T, Factor<T>>;

// Adds over the warp, in all lanes.
template <int COUNT>
__device__ __forceinline__ void sum_over_warp(float (&values)[COUNT]) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) values[i] += __shfl_xor_sync(kWholeWarp, values[i], step);
  }
}

__device__ __forceinline__ void publish_words(bool valid, void* address, uint32_t first, uint32_t second) {
  asm volatile("{.reg .pred p; setp.ne.u32 p,%3,0; @p st.relaxed.gpu.global.v2.u32 [%0],{%1,%2};}" ::"l"(address),
               "r"(first), "r"(second), "r"(static_cast<uint32_t>(valid))
               : "memory");
}

__device__ __forceinline__ void publish_words(bool valid, void* address, const float (&values)[4]) {
  using E = Element<float>;
  asm volatile("{.reg .pred p; setp.ne.u32 p,%5,0; @p st.relaxed.gpu.global.v4.u32 [%0],{%1,%2,%3,%4};}" ::"l"(address),
               "r"(E::pack(values[0], 0)), "r"(E::pack(values[1], 0)), "r"(E::pack(values[2], 0)),
               "r"(E::pack(values[3], 0)), "r"(static_cast<uint32_t>(valid))
               : "memory");
}

// A number for each lane of a block and each unit that it finishes of a tile, in shared memory for want of registers.
template <int TILES, int ROUNDS>
struct LaneNumbers {
  float values[TILES][ROUNDS][kResidentThreads];

  __device__ __forceinline__ float& at(int tile, int r) { return values[tile][r][threadIdx.x]; }
};

// Gains and biases of what each lane finishes, 1 and 0 where nothing is normalised, with zeros for units that do not
// exist.
template <int ROUNDS>
struct GridParameters {
  float gate_gain[ROUNDS][32], gate_bias[ROUNDS][32], cell_gain[ROUNDS][32], cell_bias[ROUNDS][32];

  // By the first warp; a barrier must follow.
  template <class T>
  __device__ __forceinline__ void load(const LayerNormLstmGridParams& params, int first_unit) {
    const int lane = threadIdx.x, gate = lane % 4;
    if (lane >= 32) return;
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
      const int unit = first_unit + r * kTileRows + lane / 4, hidden = params.sizes.hidden;
      const int64_t of_gate = int64_t{gate} * hidden + unit;
      const auto load = [&](const void* from, int64_t at, float otherwise) {
        return unit >= hidden ? 0 : from != nullptr ? load_float<T>(from, at) : otherwise;
      };
      gate_gain[r][lane] = load(params.gate_gain, of_gate, 1);
      gate_bias[r][lane] = load(params.gate_bias, of_gate, 0);
      cell_gain[r][lane] = load(params.cell_gain, unit, 1);
      cell_bias[r][lane] = load(params.cell_bias, unit, 0);
    }
  }
};

}  // namespace prnn
