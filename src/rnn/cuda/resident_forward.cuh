// The forward resident kernel: all timesteps of one layer, the recurrent weights on the chip.
#pragma once

#include "rnn/cuda/resident.cuh"
#include "rnn/cuda/resident_launch.cuh"

namespace prnn {

// A tile has 8 sequences: warp w finishes sequence w of it. Its lanes are unit * 4 + sub; `sub` is the gate of an LSTM, the
// gate of a GRU (3: the part of the candidate that comes from the input), and the octet of units of an RNN.
template <class T, prnnRNNMode_t MODE, int UNIT_OCTETS>
__global__ void __launch_bounds__(kResidentThreads, 1) resident_forward(const __grid_constant__ ForwardParams params) {
  constexpr bool kGated = MODE != PRNN_RNN_TANH;
  constexpr int kGates = gate_count(MODE);
  constexpr int kOctets = UNIT_OCTETS * kGates;
  constexpr int kUnits = UNIT_OCTETS * kOctetRows;
  constexpr int kRounds = kGated ? UNIT_OCTETS : 1;
  constexpr int kPairUnits = pair_units(sizeof(T) == 4);
  constexpr int kStride = kOctetFloats + 1;  // of the octets' sums: the 4 subs of a unit read different banks
  constexpr int kSumFloats = kOctets * kStride;
  constexpr bool kAccurate = sizeof(T) == 4;
  using Product = ResidentProduct<T, kOctets, kStride>;

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
  __shared__ float carried[kMaxTiles][kResidentWarps][kUnits];  // c (LSTM), h before rounding (GRU)
  float* const sums = reinterpret_cast<float*>(shared);         // [2][warps][octets][kStride]

  Product product;
  const T* const weights = static_cast<const T*>(dir.weights);
  product.load_weights(padded / kPairUnits, sums + 2 * kResidentWarps * kSumFloats, [&](int octet, int pair) {
    const int unit = first_unit + octet % UNIT_OCTETS * kOctetRows + lane / 4;
    const int k = pair * kPairUnits + sub * (16 / static_cast<int>(sizeof(T)));
    const int64_t row = int64_t{octet / UNIT_OCTETS} * hidden + unit;
    return load_row_fragment(weights, row * hidden + k, unit < hidden ? hidden - k : 0);
  });

  // What this lane finishes: one unit a round; the first is `unit`, the next ones lie 8 further each.
  const int own_octet = kGated ? 0 : sub;
  const int own_unit = own_octet * kOctetRows + lane / 4, unit = first_unit + own_unit;
  const bool own_lane = kGated || sub < UNIT_OCTETS;
  const int input_gate = MODE == PRNN_GRU && sub == 3 ? 2 : kGated ? sub : 0;
  float bias[kRounds];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const bool exists = own_lane && unit + r * kOctetRows < hidden;
    const int64_t at = int64_t{input_gate} * hidden + unit + r * kOctetRows;
    const float input = exists ? load_float<T>(dir.input_bias, at) : 0;
    const float recurrent = exists ? load_float<T>(dir.recurrent_bias, at) : 0;
    bias[r] = MODE == PRNN_GRU && sub == 3 ? input : MODE == PRNN_GRU && sub == 2 ? recurrent : input + recurrent;
  }

  T* const exchange = static_cast<T*>(dir.exchange);
  const int lane_bytes = warp * 64 + sub * 16;
  const T* const xw = static_cast<const T*>(dir.xw) + int64_t{input_gate} * params.xw_gate;
  bool gave_up = false;
  int parity = 0;
  long long published = 0;

  // Where this lane finds the states of its column (lane / 4) of a tile, `before` being the step that made them.
  const auto states_at = [&](int tile, const Step& before) {
    const int n = group_column + tile * kTileColumns + lane / 4;
    const T* const row = n < before.batch ? exchange + int64_t{before.row + n} * padded
                                          : static_cast<const T*>(dir.initial) + int64_t{n} * padded;
    return reinterpret_cast<const char*>(row) + lane_bytes;
  };
  const auto reads = [&](int tile, int columns) { return tile * kTileColumns + lane / 4 < columns; };

  // The input products of what this lane finishes in a tile. Without branches, so that nothing waits for them here.
  const auto load_input = [&](T(&input)[kRounds], const Step& step, int tile, int columns) {
    const int column = tile * kTileColumns + warp;
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const bool wanted = own_lane && column < columns && unit + r * kOctetRows < hidden;
      const int row = wanted ? step.row + group_column + column : 0;
      input[r] = __ldcs(xw + (int64_t{row} * params.xw_row + (wanted ? unit + r * kOctetRows : 0)));
    }
  };

  // What a lane stores of a tile, after the next tile's states have been asked for: nobody waits for it.
  struct Finished {
    bool any = false, is_last = false;
    int row = 0, n = 0;
    float h[kRounds], c[kRounds], gate[kRounds];
  } finished;
  const auto store_finished = [&] {
    if (!finished.any) return;
    finished.any = false;
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int u = unit + r * kOctetRows;
      if (!own_lane || u >= hidden) continue;
      const int64_t at = int64_t{finished.row} * hidden + u, state_index = int64_t{finished.n} * hidden + u;
      if (kGated && dir.gates != nullptr) {
        store_float<T>(dir.gates, at * 4 + sub, finished.gate[r]);
        if (MODE == PRNN_LSTM && sub == 1) store_float<T>(dir.cells, at, finished.c[r]);
      }
      if (!kGated || sub == 0) {
        if (dir.y != nullptr) store_float<T>(dir.y, int64_t{finished.row} * params.y_row + u, finished.h[r]);
        if (finished.is_last && dir.hy != nullptr) store_float<T>(dir.hy, state_index, finished.h[r]);
      }
      if (MODE == PRNN_LSTM && sub == 2 && finished.is_last && dir.cy != nullptr) {
        store_float<T>(dir.cy, state_index, finished.c[r]);
      }
    }
  };

  Step previous, current, next = step_at(sizes, dir.reverse ? sizes.steps - 1 : 0);
  bool asked_for = false;  // begin_loading has been called for the coming tile
  T input[kRounds], next_input[kRounds];
  load_input(next_input, next, 0, min(group_columns, next.batch - group_column));

  for (int s = 0; s < sizes.steps; ++s) {
    previous = current;
    current = next;
    next = s + 1 < sizes.steps ? step_at(sizes, dir.reverse ? sizes.steps - 2 - s : s + 1) : Step{0, 0};
    const int columns = min(group_columns, current.batch - group_column);
    const int next_columns = min(group_columns, next.batch - group_column);
    if (columns <= 0) load_input(next_input, next, 0, next_columns);

    for (int tile = 0; tile * kTileColumns < columns; ++tile) {
      const bool is_last_tile = (tile + 1) * kTileColumns >= columns;
      const char* const states = states_at(tile, previous);
      const bool lane_reads = reads(tile, columns);
      if (!asked_for) {
        if (group_columns <= kTileColumns && sizes.pause_cycles > 0) {
          while (clock64() - published < sizes.pause_cycles) {
          }
        }
        product.begin_loading(0, states, lane_reads);
      }
      store_finished();
#pragma unroll
      for (int r = 0; r < kRounds; ++r) input[r] = next_input[r];
      load_input(next_input, is_last_tile ? next : current, is_last_tile ? 0 : tile + 1,
                 is_last_tile ? next_columns : columns);

      float* const tile_sums = sums + parity * kResidentWarps * kSumFloats;
      product.run(states, lane_reads, sizes.gave_up, gave_up, tile_sums + warp * kSumFloats);
      __syncthreads();

      // The next tile's states are old enough to be there, unless it is this very one.
      asked_for = product.pairs <= kPairsInFlight && (!is_last_tile || (tile > 0 && next_columns > 0));
      if (asked_for) {
        product.begin_loading(0, is_last_tile ? states_at(0, current) : states_at(tile + 1, previous),
                              is_last_tile ? reads(0, next_columns) : reads(tile + 1, columns));
      }

      parity ^= 1;
      const int column = tile * kTileColumns + warp, n = group_column + column;
      if (column >= columns) continue;
      const bool is_first = n >= previous.batch;
      const int row = current.row + n;
      finished.any = true;
      finished.is_last = n >= next.batch;
      finished.row = row;
      finished.n = n;
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const int u = unit + r * kOctetRows;
        const bool exists = own_lane && u < hidden;
        const int64_t state_index = int64_t{n} * hidden + u;
        // A GRU's lane 3 has no sum of its own and reads lane 2's, which it does not use.
        const int octet = kGated ? input_gate * UNIT_OCTETS + r : own_lane ? own_octet : 0;
        float value = sum_over_warps(tile_sums, kSumFloats, octet * kStride + sum_index(lane / 4, warp));
        const float x = Element<T>::to_float(input[r]);
        float* const carry = &carried[tile][warp][kGated ? lane / 4 + r * kOctetRows : 0];
        T* const out = exchange + int64_t{row} * padded + u - lane / 4;

        float h;
        if constexpr (MODE == PRNN_LSTM) {
          value = squash<kAccurate>(value + x + bias[r], sub == 2);
          const float i = __shfl_sync(kWholeWarp, value, 0, 4), f = __shfl_sync(kWholeWarp, value, 1, 4);
          const float g = __shfl_sync(kWholeWarp, value, 2, 4), o = __shfl_sync(kWholeWarp, value, 3, 4);
          float c = *carry;
          if (is_first) c = exists && dir.cx != nullptr ? load_float<T>(dir.cx, state_index) : 0;
          c = f * c + i * g;
          h = o * hyperbolic_tangent<kAccurate>(c);
          publish_octet(out, lane, u < hidden ? h : 0, u < padded);
          if (sub == 0) *carry = c;
          finished.c[r] = c;
          finished.gate[r] = value;
        } else if constexpr (MODE == PRNN_GRU) {
          // sub 0 and 1: the gates r and z; 2: R h + bR of the candidate; 3: W x + bW of the candidate.
          const float sum = (sub == 3 ? 0 : value) + (sub == 2 ? 0 : x) + bias[r];
          value = sub >= 2 ? sum : sigmoid(sum);
          const float r_gate = __shfl_sync(kWholeWarp, value, 0, 4), z = __shfl_sync(kWholeWarp, value, 1, 4);
          const float recurrent = __shfl_sync(kWholeWarp, value, 2, 4), fed = __shfl_sync(kWholeWarp, value, 3, 4);
          float before = *carry;
          if (is_first) before = exists && dir.hx != nullptr ? load_float<T>(dir.hx, state_index) : 0;
          const float fresh = hyperbolic_tangent<kAccurate>(fed + r_gate * recurrent);
          h = fresh + z * (before - fresh);
          publish_octet(out, lane, u < hidden ? h : 0, u < padded);
          if (sub == 0) *carry = h;
          finished.gate[r] = sub == 2 ? fresh : sub == 3 ? recurrent : value;
        } else {
          value += x + bias[r];
          h = sizes.relu ? (value < 0 ? 0 : value) : hyperbolic_tangent<kAccurate>(value);  // NaN stays NaN
          publish_four_octets(out, lane, u < hidden ? h : 0, own_lane && u < padded);
        }
        finished.h[r] = h;
      }
      published = clock64();
    }
  }
  store_finished();
}

template <class T, prnnRNNMode_t MODE, int UNIT_OCTETS>
cudaError_t launch_forward(const ResidentShape& shape, const ForwardParams& params, cudaStream_t stream) {
  return launch_resident(resident_forward<T, MODE, UNIT_OCTETS>, shape, params, stream);
}

}  // namespace prnn
