// The forward wavefront kernel: all timesteps of several layers of a stack, each layer in blocks of its own that follow
// the layer below as its states arrive.
#pragma once

#include "rnn/cuda/wavefront/product.cuh"

namespace prnn {

// Tiles, warps, lanes and `sub` as in mma_forward; SINGLE as there. EXTRAS: sequences of different lengths, or dropout
// between the layers. PAIRS: SINGLE, with up to half a tile of sequences; see kPairColumns.
template <class T, prnnRNNMode_t MODE, int UNIT_TILES, int K_TILES, bool SINGLE, bool EXTRAS, bool PAIRS>
__global__ void __launch_bounds__(kResidentThreads, 1)
    wavefront_forward(const __grid_constant__ WavefrontForwardParams params) {
  constexpr bool kGated = MODE != PRNN_RNN_TANH;
  constexpr int kUnits = UNIT_TILES * kTileRows;
  constexpr int kRounds = lane_rounds(kGated, UNIT_TILES);
  constexpr int kWave = SINGLE ? 1 : kWavefrontWave;
  constexpr int kKTile = k_tile_elements(false);
  constexpr int kElementBytes = 2;
  static_assert(sizeof(T) == kElementBytes, "the wavefront kernels are of 16-bit types");
  using Rows = WavefrontForwardRows<MODE, UNIT_TILES>;
  using Product = WavefrontProduct<T, Rows, K_TILES>;
  static_assert(SINGLE || !PAIRS, "a pair is a tile");
  constexpr int kPairFirst = (K_TILES + 1) / 2;  // k-tiles of a pair that are multiplied in the step before it
  constexpr int kSumFloats = Product::kSumFloats;

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const BlockPlace place = place_of_block(sizes, kUnits);
  const WavefrontForwardLayer& layer = params.layer[place.direction];
  const ForwardDropout& dropout = params.dropout[place.direction];
  const int first_unit = place.first_unit;
  const int replica_column = place.first_column, replica_columns = place.columns;
  const int hidden = sizes.hidden;
  const bool is_fed = layer.below != nullptr;

  extern __shared__ uint4 shared[];
  __shared__ float carried[SINGLE ? 1 : kMaxTiles][kResidentWarps][kUnits];  // c (LSTM), h before rounding (GRU)
  float* const sums = reinterpret_cast<float*>(shared);  // [2][tile of a wave][warps][row tiles][stride]

  Product product;
  float* const weights = sums + 2 * kWave * kResidentWarps * kSumFloats;
  product.load_weights(hidden / kKTile, weights + (PAIRS ? kPairFloats : 0), [&](int part, int row_tile, int k_tile) {
    const T* const matrix = static_cast<const T*>(part == kOwn ? layer.recurrent : layer.input);
    const int unit = first_unit + Rows::unit_tile(row_tile) * kTileRows + lane / 4;
    const int k = k_tile * kKTile + sub * (16 / kElementBytes);
    const bool wanted = unit < hidden && (part == kOwn || is_fed);
    return load_row_fragment(matrix, (int64_t{Rows::gate(row_tile)} * hidden + unit) * hidden + k,
                             wanted ? hidden - k : 0);
  });

  // This lane finishes one unit a round; the first is `unit`, the next ones lie 8 further each.
  const int own_tile = kGated ? 0 : sub;
  const int unit = first_unit + own_tile * kTileRows + lane / 4;
  const bool own_lane = kGated || sub < UNIT_TILES;
  const int own_gate = input_gate<MODE>(sub);
  float bias[kRounds], carry[kRounds], ahead[kRounds];  // PAIRS: the next step's sums of the neighbour's part
  bool exists[kRounds];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    carry[r] = ahead[r] = 0;
    exists[r] = own_lane && unit + r * kTileRows < hidden;
    bias[r] = load_bias<T, MODE>(layer, hidden, unit + r * kTileRows, sub, exists[r]);
  }

  // Where this lane reads and writes in the current step, at the replica's first tile; all move on by a step.
  const int64_t first_row = replica_column + warp;
  const int row_bytes = hidden * kElementBytes;
  const int tile_elements = kTileColumns * hidden;
  const auto states_of_lane = [&](const void* states) {
    const T* const row = static_cast<const T*>(states) + int64_t{replica_column + lane / 4} * hidden;
    return reinterpret_cast<const char*>(row) + warp * 64 + sub * 16;
  };
  const T* input_at = static_cast<const T*>(params.xw) + first_row * params.xw_row + own_gate * params.xw_gate + unit;
  T* gates_at = static_cast<T*>(layer.gates) + (first_row * hidden + unit) * 4 + sub;
  T* cells_at = static_cast<T*>(layer.cells) + first_row * hidden + unit;
  // Publishing, the subs of a unit take a row tile each; words are of two units.
  T* out_at = static_cast<T*>(layer.y) + first_row * hidden + first_unit + sub * kTileRows;
  const bool publishes_tile = sub < UNIT_TILES && first_unit + sub * kTileRows < hidden;
  const bool drops = EXTRAS && dropout.dropped != nullptr;
  T* dropped_at = static_cast<T*>(dropout.dropped) + first_row * hidden + first_unit + sub * kTileRows;
  const uint8_t* kept_at = dropout.kept + (first_row * hidden + first_unit) / 8 + sub;

  // Sequences of this step and of the next one. A replica's first sequence is its longest. Without EXTRAS nothing here
  // changes from step to step: with two registers more, the compiler delays the sums of an LSTM's third round until the
  // activations of the others are done (five layers of 512, N = 8: 1.87 us a step for 1.65).
  const auto columns_of = [&](int batch) {
    return EXTRAS ? min(replica_columns, batch - replica_column) : replica_columns;
  };
  const int steps = EXTRAS ? steps_of_column(sizes, replica_column) : sizes.steps;
  int batch = sizes.batch, next_batch = EXTRAS ? batch_at(sizes, 1) : sizes.batch;
  WavefrontTiles<Product, kWave> walk{product, {}, {}, is_fed};
  walk.own = {states_of_lane(layer.initial), states_of_lane(layer.y), tile_elements * kElementBytes};
  if (is_fed) {
    const char* const below = states_of_lane(layer.below);
    walk.neighbour = {below, below + int64_t{batch} * row_bytes, tile_elements * kElementBytes};
  }
  bool timed_out = false;
  // PAIRS: the states of the pair that begins with timestep `first`, where this lane has any.
  const auto aim_at_pair = [&](int first) {
    const WavefrontPair pair;
    const Step step = step_of_pass(sizes, steps, false, first + pair.step);
    const T* const row = static_cast<const T*>(layer.below) + int64_t{step.row + replica_column + pair.column} * hidden;
    walk.neighbour.next = reinterpret_cast<const char*>(row) + warp * 64 + sub * 16;
    walk.neighbour.next_columns = pair.column < min(replica_columns, step.batch - replica_column) ? 1 : 0;
  };
  if constexpr (PAIRS) {
    walk.parked = reinterpret_cast<float4*>(weights) + threadIdx.x;
    aim_at_pair(0);
    walk.template begin_pairs<K_TILES, kPairFirst>(sizes.timed_out, timed_out);
  }
  int buffer = 0;
  unsigned published = 0;  // the clock's low half

  // A lane's values of a wave for the backward pass: stored after the loads of the next wave's states are issued, off
  // the critical path.
  struct Finished {
    int count = 0, first_tile = 0, columns = 0;
    T *gates = nullptr, *cells = nullptr;  // undefined, nvcc 13.0 takes those of the step in progress
    float c[kWave][kRounds], gate[kWave][kRounds];
  } finished;
  const auto store_finished = [&] {
    if constexpr (kGated) {
      if (layer.gates == nullptr) return;
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
        const int tile = SINGLE ? 0 : finished.first_tile + j;
        if (j >= finished.count || tile * kTileColumns + warp >= (EXTRAS ? finished.columns : replica_columns))
          continue;
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          const int at = tile * tile_elements + r * kTileRows;
          if (exists[r]) store_float<T>(finished.gates, at * 4, finished.gate[j][r]);
          if (MODE == PRNN_LSTM && exists[r] && sub == 1) store_float<T>(finished.cells, at, finished.c[j][r]);
        }
      }
    }
  };

  for (int t = 0; t < steps; ++t) {
    const int batch_after = EXTRAS ? batch_at(sizes, t + 2) : sizes.batch;
    const bool is_second = PAIRS && t % 2 != 0;  // of a pair's timesteps
    const int columns = columns_of(batch), next_columns = columns_of(next_batch);
    const int tiles = SINGLE ? 1 : (columns + kTileColumns - 1) / kTileColumns;
    if (!SINGLE) walk.tiles = tiles;
    walk.own.columns = walk.neighbour.columns = columns;
    walk.own.next_columns = walk.neighbour.next_columns = next_columns;
    if constexpr (PAIRS) aim_at_pair(is_second ? t + 1 : t + 2);
    for (int first_tile = 0; first_tile < tiles; first_tile += kWave) {
      const int count = SINGLE ? 1 : min(kWave, tiles - first_tile), first = first_tile * kTileColumns;
      if (!SINGLE) walk.begin_wave(first_tile, published, sizes);
      store_finished();

      // The input products of what this lane finishes: on their way while the states are.
      uint32_t input[kWave][kRounds];
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
        const int column = first + j * kTileColumns;
        const bool wanted = !is_fed && column + warp < columns;
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          input[j][r] = load_element(wanted && exists[r], input_at + (column * params.xw_row + r * kTileRows));
        }
      }
      uint32_t kept[kWave];
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
        const int column = first + j * kTileColumns;
        const bool wanted = drops && publishes_tile && column + warp < columns;
        kept[j] = EXTRAS ? load_kept<1>(wanted, kept_at + column * (hidden / 8)) : 0;
      }

      float* const wave_sums = sums + buffer * kWave * kResidentWarps * kSumFloats;
      buffer ^= 1;
      if constexpr (PAIRS) {
        walk.template run_pairs<K_TILES, (K_TILES + 1) / 2, kPairFirst>(
            is_second, t + 1 < steps, published, sizes.poll_delay_cycles, sizes.timed_out, timed_out,
            wave_sums + warp * kSumFloats, NoMask());
      } else if constexpr (SINGLE) {
        walk.template run_single<K_TILES, (K_TILES + 1) / 2>(t + 1 < steps, published, sizes.poll_delay_cycles,
                                                             sizes.timed_out, timed_out, wave_sums + warp * kSumFloats,
                                                             NoMask());
      } else {
        walk.run(first_tile, count, t + 1 < steps, sizes.timed_out, timed_out, wave_sums + warp * kSumFloats,
                 kResidentWarps * kSumFloats, NoMask());
      }
      __syncthreads();

      if (kGated && t == 0) {  // what is carried comes from the initial state
#pragma unroll
        for (int j = 0; j < kWave; ++j) {
          const int column = first + j * kTileColumns + warp;
          if (column >= columns) continue;
#pragma unroll
          for (int r = 0; r < kRounds; ++r) {
            const int64_t at = int64_t{replica_column + column} * hidden + unit + r * kTileRows;
            const float value = initial_carried<T, MODE>(layer, at, exists[r]);
            if constexpr (SINGLE) {
              carry[r] = value;
            } else if (sub == 0) {
              carried[first_tile + j][warp][lane / 4 + r * kTileRows] = value;
            }
          }
        }
        if constexpr (!SINGLE) __syncwarp();
      }

      // Step by step over all that the lane finishes, so that the latencies overlap.
      float value[kWave][kRounds];
      const int sum_of_lane = (kGated ? sub : own_lane ? own_tile : 0) * Rows::kStride + sum_index(lane / 4, warp);
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          value[j][r] = sum_over_warps(wave_sums + j * kResidentWarps * kSumFloats, kSumFloats,
                                       sum_of_lane + r * 4 * Rows::kStride);
          if (PAIRS && is_second) value[j][r] += ahead[r];
        }
      }
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          const float x = element_value<T>(input[j][r]);
          value[j][r] = lane_gate<MODE, digits_of<T>(), true>(value[j][r], x, bias[r], sub, sizes.relu);
        }
      }

      float h[kWave][kRounds];
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
        const int tile = SINGLE ? 0 : min(first_tile + j, kMaxTiles - 1);
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          h[j][r] = value[j][r];
          if constexpr (kGated) {
            float* const stage = &carried[tile][warp][lane / 4 + r * kTileRows];
            const LaneForward done = lanes_forward<MODE, digits_of<T>()>(value[j][r], SINGLE ? carry[r] : *stage, sub);
            h[j][r] = done.h;
            finished.gate[j][r] = done.saved;
            finished.c[j][r] = done.carried;
            if constexpr (SINGLE) {
              carry[r] = done.carried;
            } else {
              __syncwarp();
              if (sub == 0) *stage = done.carried;
            }
          }
        }
      }
      const auto publish = [&](T* at, const auto& value) {
#pragma unroll
        for (int j = 0; j < kWave; ++j) {
          float own = h[j][0];
#pragma unroll
          for (int r = 1; r < kRounds; ++r) own = sub == r ? h[j][r] : own;
          publish_gate_tiles(at + (first_tile + j) * tile_elements, lane, value(j, own),
                             publishes_tile && j < count && first + j * kTileColumns + warp < columns);
        }
      };
      publish(out_at, [](int, float state) { return state; });
      published = clock_low();
      if (drops) {
        publish(dropped_at, [&](int j, float state) {
          return dropped_state<T>(state, (kept[j] >> (lane / 4) & 1) != 0, params.dropout_scale);
        });
      }
      if (PAIRS && !is_second && warp < kPairColumns) {
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          ahead[r] = sum_over_warps(wave_sums, kSumFloats, sum_of_lane + kPairSums + r * 4 * Rows::kStride);
        }
      }
      finished.count = count;
      finished.first_tile = first_tile;
      finished.columns = columns;
      finished.gates = gates_at;
      finished.cells = cells_at;

      if (EXTRAS ? next_columns < columns : t + 1 == steps) {  // the last states of sequences that end here
#pragma unroll
        for (int j = 0; j < kWave; ++j) {
          const int column = first + j * kTileColumns + warp;
          if ((EXTRAS && column < next_columns) || column >= columns) continue;
#pragma unroll
          for (int r = 0; r < kRounds; ++r) {
            const int64_t at = int64_t{replica_column + column} * hidden + unit + r * kTileRows;
            if (!exists[r]) continue;
            store_final_states<T, MODE>(layer, at, h[j][r], finished.c[j][r], kGated ? sub : 0);
          }
        }
      }
    }
    walk.own.advance(walk.own.next + int64_t{batch} * row_bytes);
    if (!PAIRS) walk.neighbour.advance(walk.neighbour.next + int64_t{next_batch} * row_bytes);
    const int64_t step_elements = int64_t{batch} * hidden;
    input_at += int64_t{batch} * params.xw_row;
    gates_at += step_elements * 4;
    cells_at += step_elements;
    out_at += step_elements;
    dropped_at += step_elements;
    kept_at += step_elements / 8;
    if constexpr (EXTRAS) {
      batch = next_batch;
      next_batch = batch_after;
    }
  }
  store_finished();
}

template <class T, prnnRNNMode_t MODE, int UNIT_TILES, int CLUSTER, int K_TILES>
cudaError_t launch_wavefront_mma_forward(const ResidentShape& shape, const WavefrontForwardParams& params,
                                         cudaStream_t stream) {
  const auto launch = [&](auto extras) {
    constexpr WavefrontKernel kKernel = {UNIT_TILES, CLUSTER, K_TILES};
    constexpr bool kAlwaysSingle = has_one_tile(MODE, kKernel, false), kHasPairs = has_pairs(MODE, kKernel, 1);
    return launch_wavefront<kAlwaysSingle, kHasPairs>(shape, params, stream, [](auto single, auto pairs) {
      return wavefront_forward<T, MODE, UNIT_TILES, K_TILES, decltype(single)::value, decltype(extras)::value,
                               decltype(pairs)::value>;
    });
  };
  return params.has_extras() ? launch(std::true_type()) : launch(std::false_type());
}

}  // namespace prnn
