// The forward resident kernel: all timesteps of one layer, the recurrent weights on the chip.
#pragma once

#include "rnn/cuda/resident.cuh"
#include "rnn/cuda/resident_launch.cuh"

namespace prnn {

// sum_over_warps() of sums at a shared address.
template <int FLOATS_PER_WARP>
__device__ __forceinline__ float sum_over_warps(uint32_t address) {
  float value[kResidentWarps];
#pragma unroll
  for (int w = 0; w < kResidentWarps; ++w) {
    asm volatile("ld.shared.f32 %0,[%1];" : "=f"(value[w]) : "r"(address + w * FLOATS_PER_WARP * 4) : "memory");
  }
#pragma unroll
  for (int step = 1; step < kResidentWarps; step *= 2) {
#pragma unroll
    for (int w = 0; w < kResidentWarps; w += 2 * step) value[w] += value[w + step];
  }
  return value[0];
}

// A tile has 8 sequences: warp w finishes sequence w of it. Its lanes are unit * 4 + sub; `sub` is the gate of an LSTM,
// the gate of a GRU (3: the part of the candidate that comes from the input), and the octet of units of an RNN. SINGLE:
// a group has no more than one tile, and the loops over tiles fall away.
template <class T, prnnRNNMode_t MODE, int UNIT_OCTETS, bool SINGLE>
__global__ void __launch_bounds__(kResidentThreads, 1) resident_forward(const __grid_constant__ ForwardParams params) {
  constexpr bool kGated = MODE != PRNN_RNN_TANH;
  constexpr int kGates = gate_count(MODE);
  constexpr int kOctets = UNIT_OCTETS * kGates;
  constexpr int kUnits = UNIT_OCTETS * kOctetRows;
  constexpr int kRounds = lane_rounds(kGated, UNIT_OCTETS);
  constexpr int kWave = SINGLE ? 1 : wave_tiles(kOctets, kRounds);
  constexpr int kPairUnits = pair_units(sizeof(T) == 4);
  constexpr int kStride = kOctetFloats + 1;  // of the octets' sums: the 4 subs of a unit read different banks
  constexpr int kSumFloats = kOctets * kStride;
  constexpr bool kAccurate = sizeof(T) == 4;
  // Registers do not suffice for addresses that are worked out beforehand.
  constexpr bool kTight = kExact<T> || (!SINGLE && (MODE == PRNN_GRU || (kGated && UNIT_OCTETS == 1)));
  // With one tile, what a lane wants after the products is in registers, or its address is, before the states arrive.
  constexpr bool kReady = SINGLE && kGated && sizeof(T) == 2 && UNIT_OCTETS <= 2;
  using Product = ResidentProduct<T, kOctets, kStride, SINGLE, true>;

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const int blocks_per_direction = sizes.blocks * sizes.groups;
  const ForwardDirection& dir = params.direction[blockIdx.x / blocks_per_direction];
  const int group = blockIdx.x % blocks_per_direction / sizes.blocks;
  const int first_unit = blockIdx.x % sizes.blocks * kUnits;
  const int hidden = sizes.hidden, padded = sizes.padded;
  const int group_column = sizes.first_column + group * sizes.columns_per_group;
  const int group_columns = min(sizes.columns_per_group, sizes.first_column + sizes.columns - group_column);
  if (group_columns <= 0) return;

  extern __shared__ uint4 shared[];
  __shared__ float carried[kReady ? 1 : kMaxTiles][kResidentWarps][kUnits];  // c (LSTM), h before rounding (GRU)
  __shared__ float biases[kRounds][32];                                      // of what a lane finishes
  float* const sums = reinterpret_cast<float*>(shared);  // [2][tile of a wave][warps][octets][kStride]

  Product product;
  product.group_columns = &sizes.columns_per_group;
  const T* const weights = static_cast<const T*>(dir.weights);
  product.load_weights(padded / kPairUnits, sums + 2 * kWave * kResidentWarps * kSumFloats, [&](int octet, int pair) {
    const int unit = first_unit + octet / kGates * kOctetRows + lane / 4;
    const int k = pair * kPairUnits + sub * (16 / static_cast<int>(sizeof(T)));
    const int64_t row = int64_t{octet % kGates} * hidden + unit;
    return load_row_fragment(weights, row * hidden + k, unit < hidden ? hidden - k : 0);
  });

  // What this lane finishes: one unit a round; the first is `unit`, the next ones lie 8 further each.
  const int own_octet = kGated ? 0 : sub;
  const int unit = first_unit + own_octet * kOctetRows + lane / 4;
  const bool own_lane = kGated || sub < UNIT_OCTETS;
  const int input_gate = MODE == PRNN_GRU && sub == 3 ? 2 : kGated ? sub : 0;
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const bool exists = own_lane && unit + r * kOctetRows < hidden;
    const int64_t at = int64_t{input_gate} * hidden + unit + r * kOctetRows;
    const float input = exists ? load_float<T>(dir.input_bias, at) : 0;
    const float recurrent = exists ? load_float<T>(dir.recurrent_bias, at) : 0;
    const float sum = MODE == PRNN_GRU && sub == 3   ? input
                      : MODE == PRNN_GRU && sub == 2 ? recurrent
                                                     : input + recurrent;
    if (warp == 0) biases[r][lane] = sum;
  }

  // Addresses of this lane's first column and unit, so that a timestep adds little to them.
  constexpr int kPairElements = 64 / sizeof(T);
  const int tile_columns = sizes.tile_columns(), tile_elements = tile_columns * padded;
  const int slot_elements = sizes.exchange_columns() * padded;
  T* const exchange = static_cast<T*>(dir.exchange) + int64_t{group * sizes.group_tiles()} * tile_elements;
  product.pair_stride = tile_columns * 64 * kResidentWarps;
  const auto states_of = [&](int of_lane) {
    return reinterpret_cast<const char*>(exchange) + (warp * tile_columns + product.column_of(of_lane)) * 64 +
           of_lane % 4 * 16;
  };
  const char* const states_of_lane = states_of(lane);
  // Element of a tile where unit u of its column c is.
  const auto state_at = [&](int u, int c) {
    return u / kPairElements * (tile_columns * kPairElements) + c * kPairElements + u % kPairElements;
  };
  const int64_t first_row = group_column + warp;
  const auto gates_of = [&](int u) {
    return kGated && dir.gates != nullptr ? static_cast<T*>(dir.gates) + (first_row * hidden + u) * 4 + sub : nullptr;
  };
  const auto cells_of = [&](int u) {
    return static_cast<T*>(dir.cells) + (MODE == PRNN_LSTM ? first_row * hidden + u : 0);
  };
  const auto y_of = [&](int u) { return static_cast<T*>(dir.y) + (first_row * params.y_row + u); };
  T* const gates_of_lane = gates_of(unit);
  T* const cells_of_lane = cells_of(unit);
  T* const y_of_lane = y_of(unit);
  const auto exists = [&](int round) { return own_lane && unit + round * kOctetRows < hidden; };
  const auto input_of = [&](int u) {
    return static_cast<const T*>(dir.xw) + (exists(0) ? int64_t{input_gate} * params.xw_gate + u : 0);
  };
  const T* const input_of_lane = input_of(unit);
  float bias_of_lane[kRounds], carried_by_lane[kRounds];  // kReady
  if constexpr (kReady) {
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRounds; ++r) bias_of_lane[r] = biases[r][lane];
  }
  bool gave_up = false, asked = false;
  int buffer = 0;
  unsigned published = 0;  // the clock's low half

  // The block's units of the initial states of sequences [first, last), which start with step s.
  const auto publish_initial = [&](int s, int first, int last) {
    const T* const hx = static_cast<const T*>(dir.hx);
    const int block_unit = only_here(first_unit), lane_of_warp = only_here(lane);
    for (int n = max(first, group_column) + warp; n < min(last, group_column + group_columns); n += kResidentWarps) {
      const int column = n - group_column;
      const auto value = [&](int u) {
        return hx != nullptr && u < hidden ? load_float<T>(hx, int64_t{n} * hidden + u) : 0.0f;
      };
      T* const tile = exchange + (int64_t{s} * slot_elements + column / kTileColumns * tile_elements);
      for (int i = lane_of_warp * Element<T>::kPerWord; i < kUnits; i += 32 * Element<T>::kPerWord) {
        const int u = block_unit + i;
        publish_word(u < padded, tile + state_at(u, column % kTileColumns), Element<T>::pack(value(u), value(u + 1)));
      }
    }
  };

  Step previous, current, next = step_at(sizes, dir.reverse ? sizes.steps - 1 : 0);
  publish_initial(0, 0, next.batch);
#pragma unroll 1
  for (int s = 0; s < sizes.steps; ++s) {
    previous = current;
    current = next;
    next = s + 1 < sizes.steps ? step_at(sizes, dir.reverse ? sizes.steps - 2 - s : s + 1) : Step{0, 0};
    if (next.batch > current.batch) publish_initial(s + 1, current.batch, next.batch);
    const int columns = min(group_columns, current.batch - group_column);
    const int next_columns = min(group_columns, next.batch - group_column);

    for (int wave = 0; wave == 0 || !SINGLE; ++wave) {
      const int first = wave * kWave * kTileColumns;
      if (first >= columns) break;
      const int left = SINGLE ? 1 : (columns - first + kTileColumns - 1) / kTileColumns, count = min(left, kWave);
      // What follows may be asked for ahead: it is of this step, or so old that all blocks must have it by now.
      const bool is_last_wave = left <= kWave, follows = !SINGLE && (!is_last_wave || (wave > 0 && next_columns > 0));

      // Where this lane finds the states of its column (lane / 4) of a tile.
      const auto states_at = [&](int tile) {
        const bool of_next = is_last_wave && tile >= count;
        const int tile_of_group = of_next ? tile - count : wave * kWave + tile;
        const int64_t at = int64_t{s + (of_next ? 1 : 0)} * slot_elements + tile_of_group * tile_elements;
        return (kTight && UNIT_OCTETS == 3 ? states_of(only_here(lane)) : states_of_lane) + at * sizeof(T);
      };
      const auto reads = [&](int tile) {
        const bool of_next = is_last_wave && tile >= count;
        return (of_next ? (tile - count) * kTileColumns : first + tile * kTileColumns) + product.column_of(lane) <
               (of_next ? next_columns : columns);
      };

      // The input products of what this lane finishes: on their way while the states are. No branches, so that nothing
      // waits for them here.
      const T* const input_here = kTight ? input_of(only_here(unit)) : input_of_lane;
      T input[kWave][kRounds];
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
        const int column = first + j * kTileColumns + warp;
        const int row = column < columns ? current.row + group_column + column : 0;
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          input[j][r] = __ldcs(input_here + (int64_t{row} * params.xw_row + (exists(r) ? r * kOctetRows : 0)));
        }
      }

      if (SINGLE) {
        const char* only = states_at(0);
        asm volatile("" : "+l"(only));  // worked out before the pause
        while (clock_low() - published < static_cast<unsigned>(sizes.pause_cycles)) {
        }
        product.ask([&](int) { return only; }, reads, count);
      } else if (!asked) {
        product.ask(states_at, reads, count);
      }

      float* const wave_sums = sums + buffer * kWave * kResidentWarps * kSumFloats;
      buffer ^= 1;
      const int first_sum = (kGated ? input_gate : own_lane ? own_octet : 0) * kStride + sum_index(lane / 4, warp);
      uint32_t sums_of_lane = shared_address(wave_sums + first_sum);
      T* out_of_lane = exchange + (int64_t{s + 1} * slot_elements + state_at(first_unit, warp)) + 2 * lane;
      if constexpr (kReady) asm volatile("" : "+r"(sums_of_lane), "+l"(out_of_lane));  // worked out before the wait
      asked = product.template run<kWave>(count, follows, states_at, reads, sizes.gave_up, gave_up,
                                          wave_sums + warp * kSumFloats, kResidentWarps * kSumFloats);
      __syncthreads();

      // Where a sequence starts, what it carries comes from its initial state.
      if (kGated && group_column + min(columns, first + kWave * kTileColumns) > previous.batch) {
        const T* const initial = static_cast<const T*>(MODE == PRNN_LSTM ? dir.cx : dir.hx);
        const int first_of_lane = only_here(unit);
#pragma unroll
        for (int j = 0; j < kWave; ++j) {
          const int column = first + j * kTileColumns + warp, n = group_column + column;
          if (column >= columns || n < previous.batch) continue;
#pragma unroll
          for (int r = 0; r < kRounds; ++r) {
            const int u = first_of_lane + r * kOctetRows;
            const float value =
                initial != nullptr && u < hidden ? Element<T>::to_float(initial[int64_t{n} * hidden + u]) : 0;
            if constexpr (kReady) {
              carried_by_lane[r] = value;
            } else if (sub == 0) {
              carried[column / kTileColumns][warp][lane / 4 + r * kOctetRows] = value;
            }
          }
        }
        __syncwarp();
      }

      // Step by step over all that the lane finishes, so that the latencies overlap. `value` becomes sum, gate and h;
      // `kept` is what the backward pass wants of the gates.
      float value[kWave][kRounds], kept[kWave][kRounds], cell[kWave][kRounds];
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          // A GRU's lane 3 has no sum of its own and reads lane 2's, which it does not use.
          const int at = first_sum + r * kGates * kStride;
          value[j][r] = 0;
          if constexpr (kReady) {
            value[j][r] = sum_over_warps<kSumFloats>(sums_of_lane + r * kGates * kStride * 4);
          } else if (j < count) {
            value[j][r] = sum_over_warps(wave_sums + j * kResidentWarps * kSumFloats, kSumFloats, at);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          const float x = Element<T>::to_float(input[j][r]), bias = kReady ? bias_of_lane[r] : biases[r][lane];
          if constexpr (MODE == PRNN_LSTM) {
            value[j][r] = squash<kAccurate>(value[j][r] + x + bias, sub == 2);
          } else if constexpr (MODE == PRNN_GRU) {
            // sub 0 and 1: the gates r and z; 2: R h + bR of the candidate; 3: W x + bW of the candidate.
            const float sum = (sub == 3 ? 0 : value[j][r]) + (sub == 2 ? 0 : x) + bias;
            const float gate = sigmoid(sum);
            value[j][r] = sub >= 2 ? sum : gate;
          } else {
            const float sum = value[j][r] + x + bias;
            value[j][r] = sizes.relu ? (sum < 0 ? 0 : sum) : hyperbolic_tangent<kAccurate>(sum);  // NaN stays NaN
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
        const int column = first + j * kTileColumns + warp;
        const int tile = kReady ? 0 : min(column / kTileColumns, kMaxTiles - 1);
        T* const out = exchange + (int64_t{s + 1} * slot_elements + tile * tile_elements);
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          const int u = unit + r * kOctetRows;
          const bool publishes = j < count && column < min(columns, next_columns) && own_lane && u < padded;
          float* const carry =
              kReady ? &carried_by_lane[r] : &carried[tile][warp][kGated ? lane / 4 + r * kOctetRows : 0];
          const float gate = value[j][r];
          float h = gate;
          if constexpr (MODE == PRNN_LSTM) {
            const float i = __shfl_sync(kWholeWarp, gate, 0, 4), f = __shfl_sync(kWholeWarp, gate, 1, 4);
            const float g = __shfl_sync(kWholeWarp, gate, 2, 4), o = __shfl_sync(kWholeWarp, gate, 3, 4);
            const float c = f * *carry + i * g;
            h = o * hyperbolic_tangent<kAccurate>(c);
            if (!kReady) __syncwarp();
            if (kReady || sub == 0) *carry = c;
            cell[j][r] = c;
            kept[j][r] = gate;
          } else if constexpr (MODE == PRNN_GRU) {
            const float reset = __shfl_sync(kWholeWarp, gate, 0, 4), z = __shfl_sync(kWholeWarp, gate, 1, 4);
            const float recurrent = __shfl_sync(kWholeWarp, gate, 2, 4), fed = __shfl_sync(kWholeWarp, gate, 3, 4);
            const float fresh = hyperbolic_tangent<kAccurate>(fed + reset * recurrent);
            h = fresh + z * (*carry - fresh);
            if (!kReady) __syncwarp();
            if (kReady || sub == 0) *carry = h;
            kept[j][r] = sub == 2 ? fresh : sub == 3 ? recurrent : gate;
          }
          value[j][r] = h;
          h = u < hidden ? h : 0;
          if constexpr (kReady) {
            publish_octet(out_of_lane + r * kOctetRows - 2 * lane, lane, h, publishes);  // which adds 2 lane
          } else if constexpr (kGated) {
            publish_octet(out + state_at(first_unit + r * kOctetRows, warp), lane, h, publishes);
          } else {
            publish_four_octets(out + state_at(unit - lane / 4, warp), lane, h, publishes);
          }
        }
      }
      if (SINGLE) published = clock_low();

      // Nobody waits for what follows.
      T* const gates_here = kTight ? gates_of(only_here(unit)) : gates_of_lane;
      T* const cells_here = kTight ? cells_of(only_here(unit)) : cells_of_lane;
      T* const y_here = kTight ? y_of(only_here(unit)) : y_of_lane;
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
        const int column = first + j * kTileColumns + warp, n = group_column + column;
        if (j >= count || column >= columns) continue;
        const int row = current.row + first + j * kTileColumns;  // and first_row, which the lanes' addresses contain
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          if (!exists(r)) continue;
          if (gates_here != nullptr) {
            store_float<T>(gates_here, int64_t{row} * (4 * hidden) + r * 4 * kOctetRows, kept[j][r]);
            if (MODE == PRNN_LSTM && sub == 1) {
              store_float<T>(cells_here, int64_t{row} * hidden + r * kOctetRows, cell[j][r]);
            }
          }
          if (!kGated || sub == 0) {
            store_float<T>(y_here, int64_t{row} * params.y_row + r * kOctetRows, value[j][r]);
          }
          if (n >= next.batch) {  // the sequence ends
            const int64_t at = int64_t{n} * hidden + only_here(unit) + r * kOctetRows;
            if (dir.hy != nullptr && (!kGated || sub == 0)) store_float<T>(dir.hy, at, value[j][r]);
            if (MODE == PRNN_LSTM && sub == 2 && dir.cy != nullptr) store_float<T>(dir.cy, at, cell[j][r]);
          }
        }
      }
    }
  }
}

template <class T, prnnRNNMode_t MODE, int UNIT_OCTETS>
cudaError_t launch_forward(const ResidentShape& shape, const ForwardParams& params, cudaStream_t stream) {
  const bool single = params.sizes.columns_per_group <= kTileColumns;
  return launch_resident(
      single ? resident_forward<T, MODE, UNIT_OCTETS, true> : resident_forward<T, MODE, UNIT_OCTETS, false>, shape,
      params, stream);
}

}  // namespace prnn
