// The forward grid kernel of the LSTM with layer normalisation. Three exchanges a timestep through L2, of words that
// are their own flags: m * h, as in rnn/cuda/mma/forward.cuh; the moments of a over all gates; the moments of c'.
#pragma once

#include "rnn/cuda/layer_norm/grid_common.cuh"

namespace prnn {

// The moments of what all blocks have, UNITS times ELEMENTS numbers each, from each block's sum and its squares around
// its own mean. Both sides first subtract one of the numbers that they add up: a large mean costs no digits, and the
// sums of the differences and of their squares go over the lanes together.
template <int UNITS, int ELEMENTS, int TILES>
struct GridMoments {
  static constexpr int kLoads = kLayerNormLstmGridBlocks / 64;  // two blocks a lane and load

  const LayerNormLstmGridParams& params;
  const GridPlace& place;

  // Where the blocks' pairs of a column are. kind: 0 of a, 1 of c'.
  __device__ __forceinline__ float* at(int s, int kind, int column) const {
    const int64_t step = int64_t{place.replica} * params.sizes.steps + s;
    return params.moments + ((step * 2 + kind) * params.sizes.columns_per_replica + column) * params.blocks * 2;
  }

  // Sends the block's: of `values`, of the lanes that `counts`.
  template <int ROUNDS>
  __device__ __forceinline__ void publish(int s, int kind, const float (&values)[TILES][ROUNDS], bool counts) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first_unit = pin_in_register(place.block * UNITS),
              units = max(0, min(UNITS, params.sizes.hidden - first_unit));
    const int count = units * ELEMENTS;
    const float share = count > 0 ? 1.0f / count : 0;
    float origin[TILES], sums[2 * TILES];
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      origin[j] = __shfl_sync(kWholeWarp, values[j][0], 0);
      sums[2 * j] = sums[2 * j + 1] = 0;
#pragma unroll
      for (int r = 0; r < ROUNDS; ++r) {
        const bool exists = r * kTileRows + lane / 4 < units;
        const float off = counts && exists ? values[j][r] - origin[j] : 0;
        sums[2 * j] += off;
        sums[2 * j + 1] += off * off;
      }
    }
    sum_over_warp(sums);
    using E = Element<float>;
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      const int column = j * kTileColumns + warp;
      const float sum = sums[2 * j], squares = fmaxf(sums[2 * j + 1] - sum * sum * share, 0);
      publish_words(lane == 0 && column < place.columns, at(s, kind, column) + place.block * 2,
                    E::pack(sum + count * origin[j], 0), E::pack(squares, 0));
    }
  }

  // {mean, 1 / deviation} of the warp's sequence of each tile.
  __device__ __forceinline__ void wait(int s, int kind, bool& timed_out, float2 (&moments)[TILES]) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint4 words[TILES * kLoads];
    const auto address = [&](int i) {
      return at(s, kind, i / kLoads * kTileColumns + warp) + (lane + i % kLoads * 32) * 4;
    };
#pragma unroll
    for (int i = 0; i < TILES * kLoads; ++i) {
      const bool wanted =
          i / kLoads * kTileColumns + warp < place.columns && (lane + i % kLoads * 32) * 2 < params.blocks;
      words[i] = load_or_zeros(wanted, address(i));
    }
    poll_words(words, address, params.timed_out, timed_out);
    const auto number = [](uint32_t word) { return __uint_as_float(word); };
    const int hidden = pin_in_register(params.sizes.hidden);
    const float share = 1.0f / (hidden * ELEMENTS);
    float origin[TILES], sums[2 * TILES];
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      origin[j] = __shfl_sync(kWholeWarp, number(words[j * kLoads].x), 0) * (1.0f / (UNITS * ELEMENTS));
      sums[2 * j] = sums[2 * j + 1] = 0;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const auto add = [&](int block, uint32_t sum, uint32_t squares) {
          const float count = max(0, min(UNITS, hidden - block * UNITS)) * ELEMENTS;
          const float off = number(sum) - origin[j] * count;
          sums[2 * j] += off;
          sums[2 * j + 1] += count > 0 ? number(squares) + off * off / count : 0;
        };
        const uint4& two = words[j * kLoads + i];
        add((lane + i * 32) * 2, two.x, two.y);
        add((lane + i * 32) * 2 + 1, two.z, two.w);
      }
    }
    sum_over_warp(sums);
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      const float off = sums[2 * j] * share;
      moments[j].x = origin[j] + off;
      moments[j].y = rsqrtf(fmaxf(sums[2 * j + 1] * share - off * off, 0) + params.epsilon);
    }
  }
};

// A block has UNIT_TILES times 8 units. TILES: of 8 sequences, at most; with one, the loops over them fall away.
template <class T, int UNIT_TILES, int TILES>
__global__ void __launch_bounds__(kResidentThreads, 1)
    layer_norm_lstm_grid_forward(const __grid_constant__ LayerNormLstmGridParams params) {
  if constexpr (!kHasClusters) return;  // as the backward kernel: GPUs without clusters have no grid
  constexpr int kGates = 4, kRowTiles = UNIT_TILES * kGates, kUnits = UNIT_TILES * kTileRows, kRounds = UNIT_TILES;
  constexpr int kWave = TILES == 1 ? 1 : wave_tiles(kRowTiles, kRounds);
  constexpr int kKTile = k_tile_elements(sizeof(T) == 4);
  constexpr int kStride = kTileFloats + 1, kSumFloats = kRowTiles * kStride;
  constexpr Digits kDigits = digits_of<T>();
  using Product = MmaProduct<Multiplied<T>, kRowTiles, kStride, TILES == 1, true>;

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, gate = lane % 4;
  const GridPlace place = place_in_grid(params);
  const int first_unit = place.block * kUnits, unit = first_unit + lane / 4;
  const int hidden = params.sizes.hidden, padded = params.padded, steps = params.sizes.steps, columns = place.columns;
  const bool products = params.products != 0, normalizes = params.normalizes != 0;
  const auto exists = [&](int r) { return unit + r * kTileRows < hidden; };

  extern __shared__ uint4 shared[];
  __shared__ GridParameters<kRounds> parameters;
  __shared__ LaneNumbers<TILES, kRounds> before, carried;  // h and c after the last step
  __shared__ LaneNumbers<TILES, kRounds> mask, output_gate, kept;
  float* const sums = reinterpret_cast<float*>(shared);  // [2][tile of a wave][warps][row tiles][kStride]
  parameters.template load<T>(params, first_unit);

  Product product;
  product.replica_columns = &params.sizes.columns_per_replica;
  product.load_weights(padded / kKTile, sums + 2 * kWave * kResidentWarps * kSumFloats, [&](int row_tile, int k_tile) {
    const int of_unit = first_unit + row_tile / kGates * kTileRows + lane / 4;
    const int k = k_tile * kKTile + gate * (16 / static_cast<int>(sizeof(T)));
    return factor_of<T>(load_row_fragment(static_cast<const T*>(params.recurrent),
                                          (int64_t{row_tile % kGates} * hidden + of_unit) * hidden + k,
                                          of_unit < hidden ? hidden - k : 0));
  });

  // Where this lane's states are, of a step: by tile, k-tile, column of the tile.
  const int most_columns = params.sizes.columns_per_replica, tile_columns = min(most_columns, kTileColumns);
  const int tile_elements = tile_columns * padded, tiles = (most_columns + kTileColumns - 1) / kTileColumns;
  const int step_elements = tiles * tile_elements;
  T* const states = static_cast<T*>(params.states) + int64_t{place.replica} * steps * step_elements;
  product.k_tile_stride = tile_columns * 64 * kResidentWarps;
  const auto states_of = [&](int of_lane) {
    return reinterpret_cast<const char*>(states) + (warp * tile_columns + product.column_of(of_lane)) * 64 +
           of_lane % 4 * 16;
  };
  constexpr int kKTileElements = 64 / sizeof(T);
  const auto publish = [&](int s, int j, int r) {
    const float h = factor_of<T>(mask.at(j, r) * before.at(j, r));
    const int column = j * kTileColumns + warp, u = first_unit + r * kTileRows;
    T* const row =
        states + (int64_t{s} * step_elements + j * tile_elements +
                  u / kKTileElements * (tile_columns * kKTileElements) + warp * kKTileElements + u % kKTileElements);
    publish_unit_tile(row, lane, h, column < columns && u < padded);
  };

  // The warp's sequence of a tile; where there is none, any.
  const auto sequence = [&](int j) {
    const int column = j * kTileColumns + (TILES == 1 ? warp : pin_in_register(warp));
    return place.first_column + (column < columns ? column : 0);
  };
  __syncthreads();
#pragma unroll
  for (int j = 0; j < TILES; ++j) {
    const int n = sequence(j);
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int64_t at = exists(r) ? int64_t{n} * hidden + unit + r * kTileRows : 0;
      const auto load = [&](const void* from, float otherwise) {
        return from != nullptr && exists(r) ? load_float<T>(from, at) : otherwise;
      };
      before.at(j, r) = load(params.h0, 0);
      carried.at(j, r) = load(params.c0, 0);
      mask.at(j, r) = load(params.recurrent_mask, 1);
      publish(0, j, r);
    }
  }
  unsigned published = clock_low();
  bool timed_out = false;
  int buffer = 0;

#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const auto row_of = [&](int j) { return params.row_of(s) + sequence(j); };
    T input[TILES][kRounds];
    const int input_unit = pin_in_register(unit);
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const int u = exists(r) ? input_unit + r * kTileRows : 0;
        input[j][r] = __ldcs(static_cast<const T*>(params.x) + ((row_of(j) * 4 + gate) * hidden + u));
      }
    }

    float a[TILES][kRounds];
    wait_poll_delay(published, params.poll_delay_cycles);
#pragma unroll
    for (int first = 0; first < TILES; first += kWave) {
      const int count = min(kWave, tiles - first);
      if (first > 0 && count <= 0) continue;
      const auto states_at = [&](int tile) {
        return states_of(TILES == 1 ? lane : pin_in_register(lane)) +
               (int64_t{s} * step_elements + (first + tile) * tile_elements) * static_cast<int>(sizeof(T));
      };
      const auto reads = [&](int tile) { return (first + tile) * kTileColumns + product.column_of(lane) < columns; };
      product.prefetch(states_at, reads, count);
      float* const wave_sums = sums + buffer * kWave * kResidentWarps * kSumFloats;
      buffer ^= 1;
      product.template run<kWave>(count, false, states_at, reads, params.timed_out, timed_out,
                                  wave_sums + warp * kSumFloats, kResidentWarps * kSumFloats);
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          a[first + j][r] = j < count ? sum_over_warps(wave_sums + j * kResidentWarps * kSumFloats, kSumFloats,
                                                       (r * kGates + gate) * kStride + sum_index(lane / 4, warp))
                                      : 0;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const bool is_active = exists(r) && j * kTileColumns + warp < columns;
        a[j][r] = is_active ? (products ? a[j][r] : a[j][r] + Element<T>::to_float(input[j][r])) : 0;
      }
    }

    float2 moments[TILES];
#pragma unroll
    for (int j = 0; j < TILES; ++j) moments[j] = {0, 1};
    if (normalizes) {
      const GridMoments<kUnits, kGates, TILES> of_gates{params, place};
      of_gates.publish(s, 0, a, true);
      wait_poll_delay(clock_low(), params.moments_delay_cycles);
      of_gates.wait(s, 0, timed_out, moments);
    }
    float c[TILES][kRounds];
    const bool stores_stats = params.stats != nullptr && place.block == 0 && lane == 0;
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      if (stores_stats && j * kTileColumns + warp < columns) params.stats[row_of(j) * 4] = moments[j].y;
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        a[j][r] = (a[j][r] - moments[j].x) * moments[j].y;
        const float u = parameters.gate_gain[r][lane] * a[j][r] + parameters.gate_bias[r][lane];
        const float own = squash<kDigits>(products ? u + Element<T>::to_float(input[j][r]) : u, gate == 2);
        float value[kGates];
#pragma unroll
        for (int g = 0; g < kGates; ++g) value[g] = __shfl_sync(kWholeWarp, own, g, 4);
        c[j][r] =
            exists(r) && j * kTileColumns + warp < columns ? value[1] * carried.at(j, r) + value[0] * value[2] : 0;
        output_gate.at(j, r) = value[3];
      }
    }

    const GridMoments<kUnits, 1, TILES> of_cells{params, place};
    if (normalizes) of_cells.publish(s, 1, c, gate == 0);
    const unsigned sent = clock_low();
    const int kept_unit = pin_in_register(unit);
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const int64_t at = row_of(j) * hidden + (exists(r) ? kept_unit + r * kTileRows : 0);
        kept.at(j, r) = params.zoneout_mask != nullptr ? load_float<T>(params.zoneout_mask, at) : params.zoneout;
        // LN(a), while the moments are on their way.
        const bool is_active = exists(r) && j * kTileColumns + warp < columns;
        if (is_active && params.gates != nullptr) store_float<T>(params.gates, at * 4 + gate, a[j][r]);
      }
    }
    if (normalizes) {
      wait_poll_delay(sent, params.moments_delay_cycles);
      of_cells.wait(s, 1, timed_out, moments);
    }
    float normalized[TILES][kRounds];
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      const bool runs = params.timestep_of(s) < params.length_of(sequence(j));
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        normalized[j][r] = (c[j][r] - moments[j].x) * moments[j].y;
        const float v = parameters.cell_gain[r][lane] * normalized[j][r] + parameters.cell_bias[r][lane];
        if (runs) carried.at(j, r) = products ? c[j][r] : v;
        float h = output_gate.at(j, r) * hyperbolic_tangent<kDigits>(v);
        h = runs ? zone_out(kept.at(j, r), before.at(j, r), h) : before.at(j, r);
        before.at(j, r) = Element<T>::to_float(Element<T>::from_float(exists(r) ? h : 0));
        if (s + 1 < steps) publish(s + 1, j, r);
      }
    }
    published = clock_low();

    // Off the critical path: no block polls these stores.
    const int own_unit = pin_in_register(unit);
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      if (j * kTileColumns + warp >= columns) continue;
      const int64_t row = row_of(j);
      if (stores_stats) {
        params.stats[row * 4 + 1] = moments[j].x;
        params.stats[row * 4 + 2] = moments[j].y;
      }
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        if (!exists(r)) continue;
        const int64_t at = row * hidden + own_unit + r * kTileRows;
        if (gate == 0) store_float<T>(params.y, at, before.at(j, r));
        if (gate == 1 && params.cells != nullptr) store_float<T>(params.cells, at, normalized[j][r]);
        if (gate == 2 && s + 1 == steps && params.cy != nullptr) {
          const int64_t n = sequence(j);
          store_float<T>(params.cy, n * hidden + own_unit + r * kTileRows, carried.at(j, r));
        }
      }
    }
  }
}

template <class T, prnnRNNMode_t, int UNIT_TILES>
cudaError_t launch_norm_grid_forward(const ResidentShape& shape, const LayerNormLstmGridParams& params,
                                     cudaStream_t stream) {
  constexpr int kTiles = layer_norm_lstm_grid_forward_tiles(sizeof(T) == 4, UNIT_TILES);
  const auto kernel = params.sizes.columns_per_replica <= kTileColumns
                          ? layer_norm_lstm_grid_forward<T, UNIT_TILES, 1>
                          : layer_norm_lstm_grid_forward<T, UNIT_TILES, kTiles>;
  return launch_resident(kernel, shape, params, stream);
}

}  // namespace prnn
