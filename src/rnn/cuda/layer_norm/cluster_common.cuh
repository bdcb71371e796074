// Shared parts of the two cluster kernels of the LSTM with layer normalisation. Lanes in groups have the units of a
// block for one sequence, each in one group or in two; a warp has one group or two, of each column tile.
#pragma once

#include <type_traits>

#include "rnn/cuda/common/activations.cuh"
#include "rnn/cuda/common/dsmem.cuh"
#include "rnn/cuda/common/launch.cuh"
#include "rnn/cuda/common/shared_memory.cuh"
#include "rnn/cuda/common/step_io.cuh"
#include "rnn/cuda/common/weights.cuh"
#include "rnn/cuda/layer_norm/factors.cuh"
#include "rnn/cuda/layer_norm/params.h"
#include "rnn/plan/layer_norm.h"

namespace prnn {

using LayerNormLstmFloats = LayerNormLstmParams<float>;

// The cluster that a block belongs to, and its sequences.
struct LayerNormLstmPlace {
  int rank;  // of the block in its cluster
  int replica;
  int first_column, columns;
};

template <int CLUSTER>
__device__ __forceinline__ LayerNormLstmPlace place_in_cluster(const LayerNormLstmFloats& params) {
  const int replica = blockIdx.x / CLUSTER, first = replica * params.sizes.columns_per_replica;
  return {static_cast<int>(cluster_rank()), replica, first,
          min(params.sizes.columns_per_replica, params.sizes.batch - first)};
}

// The gains and biases of a block's units, from gate_gain to cell_bias: 1 and 0 where nothing is normalised; zeros for
// units that do not exist.
template <class T, int UNITS, int THREADS>
__device__ __forceinline__ void load_parameters(const LayerNormLstmFloats& params, int first_unit,
                                                float (&to)[kLayerNormLstmParameterRows][UNITS]) {
  for (int i = threadIdx.x; i < kLayerNormLstmParameterRows * UNITS; i += THREADS) {
    const int row = i / UNITS, unit = first_unit + i % UNITS, hidden = params.sizes.hidden;
    const void* const from = row < 4   ? params.gate_gain
                             : row < 8 ? params.gate_bias
                             : row < 9 ? params.cell_gain
                                       : params.cell_bias;
    const int64_t at = int64_t{row < 8 ? row % 4 : 0} * hidden + unit;
    const float otherwise = row < 4 || row == 8 ? 1 : 0;
    to[row][i % UNITS] = unit >= hidden ? 0 : from != nullptr ? load_float<T>(from, at) : otherwise;
  }
}

// How both kernels lie on a cluster. HIDDEN: H at most, of which a block has HIDDEN / CLUSTER units. COLUMN_TILES: of 8
// sequences. With two, the kernels need the exchanges of normalisation: these order what is sent after what was read
// before, so that one stage of shared memory is enough.
template <class T, int HIDDEN, int CLUSTER, int COLUMN_TILES>
struct LayerNormLstmLayout {
  static constexpr int kUnits = HIDDEN / CLUSTER;
  static constexpr int kWarps = kUnits > 32 ? 16 : 8, kThreads = kWarps * 32;
  static constexpr int kTileElements = 64 / sizeof(T);  // of a k-tile
  static constexpr int kColumnTiles = COLUMN_TILES;     // and sequences of which a thread finishes a unit
  static constexpr int kColumns = kColumnTiles * kTileColumns;
  static constexpr int kStages = kColumnTiles == 1 ? 2 : 1;
  // uint4 of weights that a thread has registers for.
  static constexpr int kRegisterQuads = kExact<T> ? 24 : kWarps == 16 ? 12 : 32;
  static constexpr int kGroup = kUnits > 32 ? 32 : kUnits;  // lanes
  static constexpr int kGroups = kUnits / kGroup;           // of a block's units
  static constexpr int kSenders = CLUSTER * kGroups;        // of sums over groups
  // Blocks of 16 warps serve H = HIDDEN alone: a number that is known has no registers.
  static constexpr bool kIsWhole = kWarps == 16;
  static __device__ __forceinline__ int hidden_of(const LayerNormLstmFloats& params) {
    return kIsWhole ? HIDDEN : params.sizes.hidden;
  }
  static_assert(2 * kSenders <= kGroup, "lanes for all senders");
  static_assert(kUnits * kTileColumns <= kThreads, "a thread for every unit of every sequence");
};

// An element in a register of its own, without a branch.
template <class T>
__device__ __forceinline__ uint32_t load_bits(const T* from) {
  if constexpr (sizeof(T) == 4) {
    return __float_as_uint(::__ldcs(reinterpret_cast<const float*>(from)));
  } else {
    return load_element(from);
  }
}

template <class T>
__device__ __forceinline__ float value_of_bits(uint32_t bits) {
  if constexpr (sizeof(T) == 4) {
    return __uint_as_float(bits);
  } else {
    return element_value<T>(bits);
  }
}

// Adds the product of TILES times 16 rows with tiles of 8 columns over a k-tile, of factor_of(). weights(m): two row
// tiles' fragments. Floats are split as for Element<float>, and summed by themselves first: the instruction rounds its
// sums towards zero.
template <class T, int COLUMN_TILES, int SETS, int TILES, class Weights>
__device__ __forceinline__ void multiply_k_tile(float (&sum)[COLUMN_TILES][SETS][TILES][4], const Weights& weights,
                                                const uint4 (&b)[COLUMN_TILES]) {
  uint4 low[TILES], high[TILES];
#pragma unroll
  for (int m = 0; m < TILES; ++m) {
    low[m] = weights(m, 0);
    high[m] = weights(m, 1);
  }
  if constexpr (kExact<T>) {
    using E = Element<float>;
    float part[COLUMN_TILES][TILES][4] = {};
    // The product over half of K with words of the weights and of b that `factor` and `of` make.
    const auto multiply = [&](int m, int half, const auto& factor, const auto& of) {
      const uint4 &l = low[m], &h = high[m];
      const uint32_t a[4] = {factor(half == 0 ? l.x : l.z), factor(half == 0 ? h.x : h.z),
                             factor(half == 0 ? l.y : l.w), factor(half == 0 ? h.y : h.w)};
#pragma unroll
      for (int c = 0; c < COLUMN_TILES; ++c) {
        const uint4 words = of(c);
        E::mma_tf32(part[c][m], a[0], a[1], a[2], a[3], half == 0 ? words.x : words.z, half == 0 ? words.y : words.w);
      }
    };
    const auto low_part = [](uint32_t word) { return E::low<2>(word); };
    const auto whole = [](uint32_t word) { return word; };
    uint4 rest[COLUMN_TILES] = {};
    const auto b_of = [&](int c) { return b[c]; };
    const auto rest_of = [&](int c) { return rest[c]; };
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
      multiply(m, 0, low_part, b_of);
      multiply(m, 1, low_part, b_of);
    }
#pragma unroll
    for (int c = 0; c < COLUMN_TILES; ++c) {
      rest[c] = {E::low<1>(b[c].x), E::low<1>(b[c].y), E::low<1>(b[c].z), E::low<1>(b[c].w)};
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int m = 0; m < TILES; ++m) multiply(m, half, whole, rest_of);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int m = 0; m < TILES; ++m) multiply(m, half, whole, b_of);
    }
#pragma unroll
    for (int c = 0; c < COLUMN_TILES; ++c) {
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
#pragma unroll
        for (int q = 0; q < 4; ++q) sum[c][0][m][q] += part[c][m][q];
      }
    }
  } else {
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
      const uint4 &l = low[m], &h = high[m];
#pragma unroll
      for (int c = 0; c < COLUMN_TILES; ++c) {
        Element<T>::mma_of_factors(sum[c][0][m], l.x, h.x, l.y, h.y, b[c].x, b[c].y);
        Element<T>::mma_of_factors(sum[c][SETS - 1][m], l.z, h.z, l.w, h.w, b[c].z, b[c].w);
      }
    }
  }
}

// Multiplies floats and few columns, on the multiply-add units: each lane has rows of `weights` by itself, of which
// the lanes of a row multiply a quarter of K each. `column`: address of this lane's elements of the first one.
template <int TILES, int COLUMNS, class Weights>
__device__ __forceinline__ void multiply_k_tile_by_lane(float (&sum)[TILES][2][COLUMNS], const Weights& weights,
                                                        uint32_t column) {
  float4 x[COLUMNS];
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) load_shared(column + c * 64, x[c]);
#pragma unroll
  for (int m = 0; m < TILES; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 w = weights(m, half);
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        float& to = sum[m][half][c];
        to = fmaf(__uint_as_float(w.x), x[c].x, to);
        to = fmaf(__uint_as_float(w.y), x[c].y, to);
        to = fmaf(__uint_as_float(w.z), x[c].z, to);
        to = fmaf(__uint_as_float(w.w), x[c].w, to);
      }
    }
  }
}

// Adds what the lanes of a row have, and leaves it where the matrix instruction would: two columns a lane.
template <int SETS, int TILES, int COLUMNS>
__device__ __forceinline__ void gather_columns(const float (&parts)[TILES][2][COLUMNS], float (&sum)[SETS][TILES][4]) {
  const bool is_odd = threadIdx.x % 2 != 0;  // has columns 2 and 3
  const auto from_lane = [](float value, int distance) { return __shfl_xor_sync(kWholeWarp, value, distance); };
#pragma unroll
  for (int m = 0; m < TILES; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int e = 0; e < (COLUMNS < 2 ? COLUMNS : 2); ++e) {
        float value = parts[m][half][e];
        if constexpr (COLUMNS == 4) {
          const float other = parts[m][half][2 + e];
          value = (is_odd ? other : value) + from_lane(is_odd ? value : other, 1);
        } else {
          value += from_lane(value, 1);
        }
        sum[0][m][half * 2 + e] = value + from_lane(value, 2);
      }
    }
  }
}

// Calls few(1, 2 or 4, a constant) for floats of so many columns at most, otherwise().
template <class T, int COLUMN_TILES, class Few, class Otherwise>
__device__ __forceinline__ void with_few_columns(int columns, const Few& few, const Otherwise& otherwise) {
  using std::integral_constant;
  constexpr bool kHasFew = kExact<T> && COLUMN_TILES == 1;
  if (!kHasFew || columns > 4) {
    otherwise();
  } else if constexpr (kHasFew) {
    if (columns == 1) {
      few(integral_constant<int, 1>());
    } else if (columns == 2) {
      few(integral_constant<int, 2>());
    } else {
      few(integral_constant<int, 4>());
    }
  }
}

// Sums over the lanes of a group, in all of them.
template <int LANES, int COUNT>
__device__ __forceinline__ void sum_over_lanes(float (&values)[COUNT]) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) values[i] += __shfl_xor_sync(kWholeWarp, values[i], step);
  }
}

__device__ __forceinline__ void load_shared(uint32_t address, float2& v) {
  asm volatile("ld.shared.v2.f32 {%0,%1},[%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
}

// Sends two floats to a block of the cluster; the barrier there counts them.
__device__ __forceinline__ void send_pair(uint32_t address, uint32_t barrier, float first, float second) {
#if PRNN_HAS_CLUSTERS
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0],{%1,%2},[%3];" ::"r"(address),
               "f"(first), "f"(second), "r"(barrier)
               : "memory");
#endif
}

}  // namespace prnn
