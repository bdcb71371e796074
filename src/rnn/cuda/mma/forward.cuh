// The forward mma kernel: all timesteps of one layer, the recurrent weights on the chip.
#pragma once

#include "rnn/cuda/mma/product.cuh"

namespace prnn {

// A tile has 8 sequences: warp w finishes sequence w of it. Its lanes are unit * 4 + sub; `sub` is the gate of an LSTM,
// the gate of a GRU (3: the part of the candidate that comes from the input), and the row tile of units of an RNN.
// SINGLE: a replica has no more than one tile, and the loops over tiles fall away. EXTRAS: with prnnRNNExtras_t::reset
// or prnnRNNMasks_t.
template <class T, prnnRNNMode_t MODE, int UNIT_TILES, bool SINGLE, bool EXTRAS>
__global__ void __launch_bounds__(kResidentThreads, 1) mma_forward(const __grid_constant__ ForwardParams params) {
  constexpr bool kGated = MODE != PRNN_RNN_TANH;
  constexpr int kGates = gate_count(MODE);
  constexpr int kRowTiles = UNIT_TILES * kGates;
  constexpr int kUnits = UNIT_TILES * kTileRows;
  constexpr int kRounds = lane_rounds(kGated, UNIT_TILES);
  constexpr int kWave = SINGLE ? 1 : wave_tiles(kRowTiles, kRounds);
  constexpr int kKTile = k_tile_elements(sizeof(T) == 4);
  constexpr int kStride = kTileFloats + 1;  // of the row tiles' sums: the 4 subs of a unit read different banks
  constexpr int kSumFloats = kRowTiles * kStride;
  constexpr Digits kDigits = digits_of<T>();
  // Too few registers for precomputed addresses.
  constexpr bool kTight = kExact<T> || (!SINGLE && (MODE == PRNN_GRU || (kGated && (EXTRAS || UNIT_TILES == 1))));
  // With one tile, a lane has its operands of the cell, or their addresses, in registers before the states arrive.
  constexpr bool kReady = SINGLE && kGated && sizeof(T) == 2 && UNIT_TILES <= 2;
  using Product = MmaProduct<T, kRowTiles, kStride, SINGLE, true>;

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const BlockPlace place = place_of_block(sizes, kUnits);
  const ForwardDirection& dir = params.direction[place.direction];
  const int replica = place.replica, first_unit = place.first_unit;
  const int replica_column = place.first_column, replica_columns = place.columns;
  const int hidden = sizes.hidden, padded = sizes.padded;
  if (replica_columns <= 0) return;

  extern __shared__ uint4 shared[];
  // A sequence's c (LSTM; sLSTM: c, n and m) or h before rounding (GRU); and then h and its mask, of an LSTM with
  // extras.
  constexpr bool kHasH = kCarriesH<MODE, EXTRAS>;
  using Carry = Carried<MODE>;
  __shared__ Carry carried[kReady || (SINGLE && kHasH) ? 1 : kMaxTiles][kResidentWarps][kHasH ? 3 * kUnits : kUnits];
  __shared__ float biases[kRounds][32];                  // of what a lane finishes
  float* const sums = reinterpret_cast<float*>(shared);  // [2][tile of a wave][warps][row tiles][kStride]

  Product product;
  product.replica_columns = &sizes.columns_per_replica;
  const T* const weights = static_cast<const T*>(dir.weights);
  product.load_weights(padded / kKTile, sums + 2 * kWave * kResidentWarps * kSumFloats, [&](int row_tile, int k_tile) {
    const int unit = first_unit + row_tile / kGates * kTileRows + lane / 4;
    const int k = k_tile * kKTile + sub * (16 / static_cast<int>(sizeof(T)));
    const int64_t row = int64_t{row_tile % kGates} * hidden + unit;
    return load_row_fragment(weights, row * hidden + k, unit < hidden ? hidden - k : 0);
  });

  // This lane finishes one unit a round; the first is `unit`, the next ones lie 8 further each.
  const int own_tile = kGated ? 0 : sub;
  const int unit = first_unit + own_tile * kTileRows + lane / 4;
  const bool own_lane = kGated || sub < UNIT_TILES;
  const int own_gate = input_gate<MODE>(sub);
  const auto exists = [&](int round) { return own_lane && unit + round * kTileRows < hidden; };
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const float bias = load_bias<T, MODE>(dir, hidden, unit + r * kTileRows, sub, exists(r));
    if (warp == 0) biases[r][lane] = bias;
  }

  // Addresses of this lane's first column and unit, so that a timestep adds little to them.
  constexpr int kKTileElements = 64 / sizeof(T);
  const int tile_columns = sizes.tile_columns(), tile_elements = tile_columns * padded;
  const int step_elements = sizes.exchange_columns() * padded;
  T* const exchange = static_cast<T*>(dir.exchange) + int64_t{replica * sizes.replica_tiles()} * tile_elements;
  product.k_tile_stride = tile_columns * 64 * kResidentWarps;
  const auto states_of = [&](int of_lane) {
    return reinterpret_cast<const char*>(exchange) + (warp * tile_columns + product.column_of(of_lane)) * 64 +
           of_lane % 4 * 16;
  };
  const char* const states_of_lane = states_of(lane);
  // Element of a tile where unit u of its column c is.
  const auto state_at = [&](int u, int c) {
    return u / kKTileElements * (tile_columns * kKTileElements) + c * kKTileElements + u % kKTileElements;
  };
  const int64_t first_row = replica_column + warp;
  const auto gates_of = [&](int u) {
    return kGated && dir.gates != nullptr ? static_cast<T*>(dir.gates) + (first_row * hidden + u) * 4 + sub : nullptr;
  };
  const auto cells_of = [&](int u) {
    return static_cast<T*>(dir.cells) + (Cell<MODE>::kHasCellState ? first_row * hidden + u : 0);
  };
  const auto y_of = [&](int u) { return static_cast<T*>(dir.y) + (first_row * params.y_row + u); };
  T* const gates_of_lane = gates_of(unit);
  T* const cells_of_lane = cells_of(unit);
  T* const y_of_lane = y_of(unit);
  const auto input_of = [&](int u) {
    return static_cast<const T*>(dir.xw) + (exists(0) ? int64_t{own_gate} * params.xw_gate + u : 0);
  };
  const T* const input_of_lane = input_of(unit);
  float bias_of_lane[kRounds];  // kReady, as the next
  Carry carried_by_lane[kRounds];
  if constexpr (kReady) {
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRounds; ++r) bias_of_lane[r] = biases[r][lane];
  }
  bool timed_out = false, prefetched = false;
  int buffer = 0;
  unsigned published = 0;  // the clock's low half

  // The steps of a pass without step_of_pass(), with which a kernel spilled 12 bytes.
  Step previous, current, next = step_at(sizes, dir.reverse ? sizes.steps - 1 : 0);

  // The block's units of the initial states of sequences [first, last), which start with step s, `next`.
  const auto publish_initial = [&](int s, int first, int last) {
    const T* const hx = static_cast<const T*>(dir.hx);  // loaded here without extras, there with: else kernels spilled
    const int block_unit = pin_in_register(first_unit), lane_of_warp = pin_in_register(lane);
    for (int n = max(first, replica_column) + warp; n < min(last, replica_column + replica_columns);
         n += kResidentWarps) {
      const int column = n - replica_column;
      const bool starts_anew = restarts<EXTRAS>(dir, Step(), next, n);
      const auto value = [&](int u) {
        const int64_t at = int64_t{n} * hidden + u;
        const float mask = load_mask<T, EXTRAS>(params.masks, place.direction, at, u < hidden);
        if constexpr (EXTRAS) return mask * initial_h<T>(dir, at, u < hidden, starts_anew);
        return hx != nullptr && u < hidden ? load_float<T>(hx, at) : 0.0f;
      };
      T* const tile = exchange + (int64_t{s} * step_elements + column / kTileColumns * tile_elements);
      for (int i = lane_of_warp * Element<T>::kPerWord; i < kUnits; i += 32 * Element<T>::kPerWord) {
        const int u = block_unit + i;
        publish_word(u < padded, tile + state_at(u, column % kTileColumns), Element<T>::pack(value(u), value(u + 1)));
      }
    }
  };

  publish_initial(0, 0, next.batch);
#pragma unroll 1
  for (int s = 0; s < sizes.steps; ++s) {
    previous = current;
    current = next;
    next = s + 1 < sizes.steps ? step_at(sizes, dir.reverse ? sizes.steps - 2 - s : s + 1) : Step{0, 0};
    if (next.batch > current.batch) publish_initial(s + 1, current.batch, next.batch);
    const int columns = min(replica_columns, current.batch - replica_column);
    const int next_columns = min(replica_columns, next.batch - replica_column);

    for (int wave = 0; wave == 0 || !SINGLE; ++wave) {
      const int first = wave * kWave * kTileColumns;
      if (first >= columns) break;
      const int left = SINGLE ? 1 : (columns - first + kTileColumns - 1) / kTileColumns, count = min(left, kWave);
      // The next wave's loads may be issued ahead: its states are of this step, or every block has published them.
      const bool is_last_wave = left <= kWave, follows = !SINGLE && (!is_last_wave || (wave > 0 && next_columns > 0));

      // Where this lane finds the states of its column (lane / 4) of a tile.
      const auto states_at = [&](int tile) {
        const bool of_next = is_last_wave && tile >= count;
        const int tile_of_replica = of_next ? tile - count : wave * kWave + tile;
        const int64_t at = int64_t{s + (of_next ? 1 : 0)} * step_elements + tile_of_replica * tile_elements;
        return (kTight && UNIT_TILES == 3 ? states_of(pin_in_register(lane)) : states_of_lane) + at * sizeof(T);
      };
      const auto reads = [&](int tile) {
        const bool of_next = is_last_wave && tile >= count;
        return (of_next ? (tile - count) * kTileColumns : first + tile * kTileColumns) + product.column_of(lane) <
               (of_next ? next_columns : columns);
      };

      // The input products of this lane's units: in flight while the states are. Without branches, so that no load
      // waits for another.
      const T* const input_here = kTight ? input_of(pin_in_register(unit)) : input_of_lane;
      T input[kWave][kRounds];
      unroll<kWave, kRounds>([&](int j, int r) {
        const int column = first + j * kTileColumns + warp;
        const int row = column < columns ? current.row + replica_column + column : 0;
        input[j][r] = __ldcs(input_here + (int64_t{row} * params.xw_row + (exists(r) ? r * kTileRows : 0)));
      });
      bool restarts_next[kWave];  // whether the sequence starts anew with its next step
      for (int j = 0; EXTRAS && j < kWave; ++j) {
        restarts_next[j] = restarts<EXTRAS>(dir, current, next, replica_column + first + j * kTileColumns + warp);
      }

      if (SINGLE) {
        const char* only = states_at(0);
        asm volatile("" : "+l"(only));  // computed before the delay
        wait_poll_delay(published, sizes.poll_delay_cycles);
        product.prefetch([&](int) { return only; }, reads, count);
      } else if (!prefetched) {
        product.prefetch(states_at, reads, count);
      }

      float* const wave_sums = sums + buffer * kWave * kResidentWarps * kSumFloats;
      buffer ^= 1;
      const int first_sum = (kGated ? own_gate : own_lane ? own_tile : 0) * kStride + sum_index(lane / 4, warp);
      uint32_t sums_of_lane = shared_address(wave_sums + first_sum);
      T* out_of_lane = exchange + (int64_t{s + 1} * step_elements + state_at(first_unit, warp)) + 2 * lane;
      if constexpr (kReady) asm volatile("" : "+r"(sums_of_lane), "+l"(out_of_lane));  // computed before the wait
      prefetched = product.template run<kWave>(count, follows, states_at, reads, sizes.timed_out, timed_out,
                                               wave_sums + warp * kSumFloats, kResidentWarps * kSumFloats);
      __syncthreads();

      // Where a sequence starts, what it carries comes from its initial state.
      if (kGated && replica_column + min(columns, first + kWave * kTileColumns) > previous.batch) {
        const int first_of_lane = pin_in_register(unit);
#pragma unroll
        for (int j = 0; j < kWave; ++j) {
          const int column = first + j * kTileColumns + warp, n = replica_column + column;
          if (column >= columns || n < previous.batch) continue;
#pragma unroll
          for (int r = 0; r < kRounds; ++r) {
            const int u = first_of_lane + r * kTileRows;
            const bool starts_anew = restarts<EXTRAS>(dir, previous, current, n);
            const Carry value = initial_carried<T, MODE>(dir, int64_t{n} * hidden + u, u < hidden, starts_anew);
            Carry* const carry = &carried[SINGLE ? 0 : column / kTileColumns][warp][lane / 4 + r * kTileRows];
            if constexpr (kHasH) {
              const int64_t at = int64_t{n} * hidden + u;
              if (sub == 0) carry[kUnits] = initial_h<T>(dir, at, u < hidden, starts_anew);
              if (sub == 0) carry[2 * kUnits] = load_mask<T, EXTRAS>(params.masks, place.direction, at, u < hidden);
            }
            if constexpr (kReady) {
              carried_by_lane[r] = value;
            } else if (sub == 0) {
              *carry = value;
            }
          }
        }
        __syncwarp();
      }

      constexpr bool kAlwaysMasks = !SINGLE && sizeof(T) == 4;  // with a branch, a kernel spilled
      const bool zones_out = kAlwaysMasks || params.masks.zones_out();
      // Step by step over all that the lane finishes, so that the latencies overlap. `value` becomes sum and gate.
      float value[kWave][kRounds];
      LaneForwardOf<Carry> done[kWave][kRounds];
      unroll<kWave, kRounds>([&](int j, int r) {
        // A GRU's lane 3 has no sum of its own and reads lane 2's, which it does not use.
        const int at = first_sum + r * kGates * kStride;
        value[j][r] = 0;
        if constexpr (kReady) {
          value[j][r] = sum_over_warps(sums_of_lane + r * kGates * kStride * 4, kSumFloats);
        } else if (j < count) {
          value[j][r] = sum_over_warps(wave_sums + j * kResidentWarps * kSumFloats, kSumFloats, at);
        }
      });
      unroll<kWave, kRounds>([&](int j, int r) {
        const float x = Element<T>::to_float(input[j][r]), bias = kReady ? bias_of_lane[r] : biases[r][lane];
        value[j][r] = lane_gate<MODE, kDigits>(value[j][r], x, bias, sub, cell_kind<MODE>(sizes));
        value[j][r] = mark_gate<MODE, EXTRAS>(params.masks, value[j][r], x, sub);
      });
      unroll<kWave, kRounds>([&](int j, int r) {
        const int column = first + j * kTileColumns + warp;
        const int tile = SINGLE && (kReady || kHasH) ? 0 : min(column / kTileColumns, kMaxTiles - 1);
        T* const out = exchange + (int64_t{s + 1} * step_elements + tile * tile_elements);
        const int u = unit + r * kTileRows;
        const bool publishes = j < count && column < min(columns, next_columns) && own_lane && u < padded;
        Carry* const in_shared = &carried[tile][warp][kGated ? lane / 4 + r * kTileRows : 0];
        Carry* const carry = kReady ? &carried_by_lane[r] : in_shared;
        if constexpr (kGated) {
          done[j][r] = lanes_forward<MODE, kDigits>(value[j][r], *carry, sub, cell_kind<MODE>(sizes));
          if constexpr (kZonesOut<MODE, EXTRAS>) {
            if (!kHasH || zones_out) {
              zone_out<MODE, EXTRAS>(params.masks, kHasH ? in_shared[kUnits] : *carry, done[j][r]);
            }
          }
          if (!kReady || kHasH) __syncwarp();
          if (!EXTRAS && (kReady || sub == 0)) *carry = done[j][r].carried;  // else below: kernels without spilled
        } else {
          done[j][r].h = value[j][r];
        }
        float h = u < hidden ? done[j][r].h : 0;
        Carry next_carried = kGated ? done[j][r].carried : Carry{};
        if (EXTRAS && restarts_next[j]) {
          // Which factors are pinned: with the other ones, a kernel of either kind spilled 4 bytes.
          const int64_t at = kExact<T> || kHasH
                                 ? int64_t{replica_column + column} * hidden + pin_in_register(u)
                                 : int64_t{pin_in_register(replica_column) + column} * pin_in_register(hidden) + u;
          h = begin_sequence<T, MODE>(dir, at, publishes && u < hidden, true, next_carried);
        }
        if (EXTRAS && kGated && (kReady || sub == 0)) *carry = next_carried;
        if constexpr (kHasH) {
          if (zones_out && sub == 0) in_shared[kUnits] = h;
          if (kAlwaysMasks || params.masks.recurrent[0] != nullptr) h *= in_shared[2 * kUnits];
        } else if constexpr (EXTRAS) {
          const int64_t at = int64_t{replica_column + column} * hidden + pin_in_register(u);
          h *= load_mask<T, EXTRAS>(params.masks, place.direction, at, publishes && u < hidden);
        }
        if constexpr (kReady) {
          publish_unit_tile(out_of_lane + r * kTileRows - 2 * lane, lane, h, publishes);  // which adds 2 lane
        } else if constexpr (kGated) {
          publish_unit_tile(out + state_at(first_unit + r * kTileRows, warp), lane, h, publishes);
        } else {
          publish_gate_tiles(out + state_at(unit - lane / 4, warp), lane, h, publishes);
        }
      });
      if (SINGLE) published = clock_low();

      // Off the critical path: no block polls these stores.
      T* const gates_here = kTight ? gates_of(pin_in_register(unit)) : gates_of_lane;
      T* const cells_here = kTight ? cells_of(pin_in_register(unit)) : cells_of_lane;
      T* const y_here = kTight ? y_of(pin_in_register(unit)) : y_of_lane;
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
        const int column = first + j * kTileColumns + warp, n = replica_column + column;
        if (j >= count || column >= columns) continue;
        const int row = current.row + first + j * kTileColumns;  // and first_row, which the lanes' addresses contain
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          if (!exists(r)) continue;
          if (gates_here != nullptr) {
            store_float<T>(gates_here, int64_t{row} * (4 * hidden) + r * 4 * kTileRows, done[j][r].saved);
            if constexpr (Cell<MODE>::kHasCellState) {
              const int64_t at = int64_t{row} * hidden + r * kTileRows;
              if (sub == 1) store_float<T>(cells_here, at, Cell<MODE>::in_cells(done[j][r].carried));
            }
          }
          if (!kGated || sub == 0) {
            store_float<T>(y_here, int64_t{row} * params.y_row + r * kTileRows, done[j][r].h);
          }
          if (n >= next.batch) {  // the sequence ends
            const int64_t at = int64_t{n} * hidden + pin_in_register(unit) + r * kTileRows;
            store_final_states<T, MODE>(dir, at, done[j][r].h, done[j][r].carried, kGated ? sub : 0);
          }
        }
      }
    }
  }
}

template <class T, prnnRNNMode_t MODE, int UNIT_TILES, bool EXTRAS>
cudaError_t launch_mma_forward_with(const ResidentShape& shape, const ForwardParams& params, cudaStream_t stream) {
  const bool single = params.sizes.columns_per_replica <= kTileColumns;
  return launch_resident(
      single ? mma_forward<T, MODE, UNIT_TILES, true, EXTRAS> : mma_forward<T, MODE, UNIT_TILES, false, EXTRAS>, shape,
      params, stream);
}

template <class T, prnnRNNMode_t MODE, int UNIT_TILES>
cudaError_t launch_mma_forward(const ResidentShape& shape, const ForwardParams& params, cudaStream_t stream) {
  return launch_mma_forward_with<T, MODE, UNIT_TILES, false>(shape, params, stream);
}

template <class T, prnnRNNMode_t MODE, int UNIT_TILES>
cudaError_t launch_mma_extras_forward(const ResidentShape& shape, const ForwardParams& params, cudaStream_t stream) {
  return launch_mma_forward_with<T, MODE, UNIT_TILES, true>(shape, params, stream);
}

}  // namespace prnn
