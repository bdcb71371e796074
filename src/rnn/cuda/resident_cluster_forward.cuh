// The forward cluster kernel: all timesteps of a layer whose recurrent weights lie in the registers of one thread-block
// cluster. A step's states are sent into every block's shared memory and counted there; nothing goes through L2.
#pragma once

#include <type_traits>

#include "rnn/cuda/resident_cluster.cuh"

namespace prnn {

// How a block works on its units. PAIRS: of K, all of them.
template <prnnRNNMode_t MODE, int PAIRS, int CLUSTER>
struct ClusterForward {
  static constexpr bool kGated = MODE != PRNN_RNN_TANH;
  static constexpr int kGates = gate_count(MODE);
  static constexpr ClusterForwardSplit kSplit = cluster_forward_split(kGates, PAIRS, CLUSTER);
  static constexpr int kUnits = kSplit.units, kUnitOctets = kSplit.unit_octets, kShares = kSplit.shares;
  static constexpr int kThreads = kSplit.warps * 32;
  static constexpr int kOwnPairs = PAIRS / kShares;     // of a warp
  static constexpr int kOctets = kUnitOctets * kGates;  // of its rows
  static constexpr int kTiles = kOctets / 2;            // of 16 rows
  static constexpr int kSets = kTiles == 1 ? 4 : 2;     // chains of sums, to hide their latency
  static constexpr int kUnitFloats = kGated ? 4 : 1;    // a unit's sums, one beside the other
  static constexpr int kColumnFloats = kSplit.column_floats;
  static constexpr int kShareFloats = kTileColumns * kColumnFloats;
  static_assert(kOwnPairs * kShares == PAIRS && kSplit.parts * kShares == kSplit.warps, "whole pairs and warps");
  static_assert(kUnits * kTileColumns <= kThreads, "a thread for every unit of every sequence");

  struct Shared {
    uint4 states[2][PAIRS][kTileColumns][4];  // h of a step, in fragment order; 16 bits an element
    float sums[2][kShares][kShareFloats];
    uint64_t arrived[2];  // counts the bytes of `states`
  };
  static_assert(sizeof(Shared) == kSplit.shared_bytes, "what the plan says");
};

template <class T, prnnRNNMode_t MODE, int PAIRS, int CLUSTER>
__global__ void __launch_bounds__((ClusterForward<MODE, PAIRS, CLUSTER>::kThreads), 1)
    cluster_forward(const __grid_constant__ ForwardParams params) {
  using Layout = ClusterForward<MODE, PAIRS, CLUSTER>;
  constexpr bool kGated = Layout::kGated;
  constexpr int kUnits = Layout::kUnits, kGates = Layout::kGates, kOwnPairs = Layout::kOwnPairs;
  constexpr int kOctets = Layout::kOctets, kTiles = Layout::kTiles, kSets = Layout::kSets;

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const int rank = static_cast<int>(cluster_rank());
  const ForwardDirection& dir = params.direction[blockIdx.x / (CLUSTER * sizes.groups)];
  const int group = blockIdx.x / CLUSTER % sizes.groups;
  const int first_unit = rank * kUnits, hidden = sizes.hidden;
  const int group_column = sizes.first_column + group * sizes.columns_per_group;
  const int group_columns = min(sizes.columns_per_group, sizes.first_column + sizes.columns - group_column);
  const int steps = steps_of_column(sizes, group_column);
  const auto size_at = [&](int s) { return s < steps ? step_at(sizes, dir.reverse ? steps - 1 - s : s) : Step{0, 0}; };
  const auto columns_of = [&](const Step& step) { return min(group_columns, step.batch - group_column); };

  extern __shared__ uint4 dynamic_shared[];
  typename Layout::Shared& shared = *reinterpret_cast<typename Layout::Shared*>(dynamic_shared);

  Step current, next = size_at(0), following = size_at(1);
  const auto expect_states = [&](int slot, const Step& step) {
    expect_bytes(&shared.arrived[slot], columns_of(step) * (PAIRS * 64));
  };
  if (threadIdx.x == 0) {
    init_barrier(&shared.arrived[0]);
    init_barrier(&shared.arrived[1]);
    fence_barriers();
    expect_states(0, next);
  }

  // This warp's weights: its pairs of K are share + kShares i.
  const int part = warp / Layout::kShares, share = warp % Layout::kShares;
  uint4 weights[kOwnPairs][kOctets];
#pragma unroll
  for (int i = 0; i < kOwnPairs; ++i) {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      const int octet = part * Layout::kUnitOctets + o / kGates, unit = first_unit + octet * kOctetRows + lane / 4;
      const int k = (share + Layout::kShares * i) * 32 + sub * 8;
      const int64_t row = int64_t{o % kGates} * hidden + unit;
      weights[i][o] =
          load_row_fragment(static_cast<const T*>(dir.weights), row * hidden + k, unit < hidden ? hidden - k : 0);
    }
  }

  // What this thread finishes: one unit of one sequence.
  const int own_unit = threadIdx.x % kUnits, column = threadIdx.x / kUnits;
  const int unit = first_unit + own_unit, n = group_column + column;
  const bool exists = unit < hidden && column < group_columns;
  float bias[4] = {0, 0, 0, 0};  // a GRU's last two: of R h and of W x in its candidate
#pragma unroll
  for (int g = 0; g < kGates; ++g) {
    if (!exists) continue;
    const float input = load_float<T>(dir.input_bias, int64_t{g} * hidden + unit);
    const float recurrent = load_float<T>(dir.recurrent_bias, int64_t{g} * hidden + unit);
    bias[g] = MODE == PRNN_GRU && g == 2 ? recurrent : input + recurrent;
    if (MODE == PRNN_GRU && g == 2) bias[3] = input;
  }
  const T* const input_of_thread = static_cast<const T*>(dir.xw) + (exists ? unit : 0);
  uint32_t input[kGates];
  const auto load_input = [&](const Step& step) {
    const int64_t row = column < columns_of(step) ? step.row + n : 0;
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      input[g] = load_element(input_of_thread + row * params.xw_row + (exists ? int64_t{g} * params.xw_gate : 0));
    }
  };

  // A word has two units. Even lanes send to the first half of the cluster, odd ones to the other.
  const int state = first_unit + own_unit;
  const uint32_t place = shared_address(&shared.states[0][0][0][0]) +
                         ((state / 32 * kTileColumns + column % kTileColumns) * 64 + state % 32 / 2 * 4);
  const auto place_of = [&](int slot, int i) {
    const uint32_t peer = lane % 2 * (CLUSTER / 2) + i;
    return address_in_rank(place + slot * static_cast<uint32_t>(sizeof(shared.states[0])), peer);
  };
  const auto count_of = [&](int slot, int i) {
    return address_in_rank(shared_address(&shared.arrived[slot]), lane % 2 * (CLUSTER / 2) + i);
  };
  constexpr bool kKeepsPlaces = Layout::kThreads <= 256;  // has the registers for it
  uint32_t places[2][CLUSTER / 2], counts[2][CLUSTER / 2];
#pragma unroll
  for (int i = 0; kKeepsPlaces && i < CLUSTER; ++i) {
    keep(places[i % 2][i / 2] = place_of(i % 2, i / 2));
    keep(counts[i % 2][i / 2] = count_of(i % 2, i / 2));
  }
  bool gave_up = false;
  uint32_t halves = lane % 2 == 0 ? 0x5410 : 0x1054;  // own and other half of a word
  keep(halves);
  const auto publish = [&](int slot, float h, bool valid) {
    const uint32_t own = Element<T>::pack(h, 0), other = __shfl_xor_sync(kWholeWarp, own, 1);
    const uint32_t word = __byte_perm(own, other, halves);
    if (!valid) return;
#pragma unroll
    for (int i = 0; i < CLUSTER / 2; ++i) {
      if constexpr (kKeepsPlaces) {
        send_word(places[slot][i], counts[slot][i], word);
      } else {
        send_word(place_of(slot, i), count_of(slot, i), word);
      }
    }
  };

  float carried = 0;  // c (LSTM), h before rounding (GRU)
  const auto begin_sequence = [&] {
    const int64_t at = int64_t{n} * hidden + unit;
    const float h = exists && dir.hx != nullptr ? load_float<T>(dir.hx, at) : 0;
    if (MODE == PRNN_GRU) carried = h;
    if (MODE == PRNN_LSTM) carried = exists && dir.cx != nullptr ? load_float<T>(dir.cx, at) : 0;
    return h;
  };

  sync_cluster();
  const bool finishes = warp * 32 / kUnits < group_columns;  // a warp does or does not
  if (finishes) {
    const bool begins = column < columns_of(next);
    publish(0, begins ? begin_sequence() : 0, begins);
    load_input(next);
  }

  // Where this lane reads states, writes sums of rows, and reads those of its unit.
  const uint32_t barrier = shared_address(&shared.arrived[0]);
  uint32_t states = shared_address(&shared.states[0][share][min(lane / 4, group_columns - 1)][sub]);
  uint32_t sums_out = shared_address(
      &shared.sums[0][share][sub * 2 * Layout::kColumnFloats +
                             (part * Layout::kUnitOctets * kOctetRows + lane / 4) * Layout::kUnitFloats]);
  uint32_t sums_in = shared_address(
      &shared.sums[0][0][column % kTileColumns * Layout::kColumnFloats + own_unit * Layout::kUnitFloats]);
  keep(states);
  keep(sums_out);
  keep(sums_in);
  const bool has_column[2] = {sub * 2 < group_columns, sub * 2 + 1 < group_columns};

  // Slots are known when compiling: two steps are one iteration.
  const auto do_step = [&](auto slot_constant, int s) {
    constexpr int kSlot = decltype(slot_constant)::value;
    current = next;
    next = following;
    following = size_at(s + 2);
    const int columns = columns_of(current), next_columns = columns_of(next);
    const bool begins = column >= columns && column < next_columns;
    const bool publishes = column < next_columns && !gave_up;

    float fed[kGates];
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      fed[g] = element_value<T>(input[g]) + bias[MODE == PRNN_GRU && g == 2 ? 3 : g];
      keep(fed[g]);
    }
    if (finishes) load_input(next);

    wait_for_arrival(barrier + kSlot * 8, s / 2 & 1, sizes.gave_up, gave_up);
    __syncwarp();

    float sum[kSets][kTiles][4] = {};
#pragma unroll
    for (int i = 0; i < kOwnPairs; ++i) {
      const uint4 b = load_shared(states + (kSlot * PAIRS + i * Layout::kShares) * (kTileColumns * 64));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const uint4 low = weights[i][2 * m], high = weights[i][2 * m + 1];
        Element<T>::mma(sum[2 * i % kSets][m], low.x, high.x, low.y, high.y, b.x, b.y);
        Element<T>::mma(sum[(2 * i + 1) % kSets][m], low.z, high.z, low.w, high.w, b.z, b.w);
      }
    }
    const auto total = [&](int octet, int e) {
      const int m = octet / 2, q = octet % 2 * 2 + e;
      if (kSets == 2 || kOwnPairs == 1) return sum[0][m][q] + sum[1][m][q];
      return sum[0][m][q] + sum[1][m][q] + (sum[kSets - 2][m][q] + sum[kSets - 1][m][q]);
    };
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int o = 0; o < Layout::kUnitOctets; ++o) {
        constexpr int kFloat = sizeof(float);
        const uint32_t to = sums_out + kSlot * static_cast<uint32_t>(sizeof(shared.sums[0])) +
                            (e * Layout::kColumnFloats + o * kOctetRows * Layout::kUnitFloats) * kFloat;
        if constexpr (kGated) {
          store_shared(has_column[e], to,
                       float4{total(o * kGates, e), total(o * kGates + 1, e), total(o * kGates + 2, e),
                              kGates == 4 ? total(o * kGates + kGates - 1, e) : 0});
        } else {
          store_shared(has_column[e], to, total(o, e));
        }
      }
    }
    __syncthreads();
    if (!finishes) return;

    // Sums over the shares of K, activations, publishing.
    using Sums = std::conditional_t<kGated, float4, float>;
    Sums value[Layout::kShares];
#pragma unroll
    for (int i = 0; i < Layout::kShares; ++i) {
      load_shared(sums_in + (kSlot * Layout::kShares + i) * (Layout::kShareFloats * 4), value[i]);
    }
    add_all(value);
    float h, kept[4];
    if constexpr (MODE == PRNN_LSTM) {
      kept[0] = squash<false>(value[0].x + fed[0], false);
      kept[1] = squash<false>(value[0].y + fed[1], false);
      kept[2] = squash<false>(value[0].z + fed[2], true);
      kept[3] = squash<false>(value[0].w + fed[3], false);
      carried = kept[1] * carried + kept[0] * kept[2];
      h = kept[3] * hyperbolic_tangent<false>(carried);
    } else if constexpr (MODE == PRNN_GRU) {
      kept[0] = sigmoid(value[0].x + fed[0]);
      kept[1] = sigmoid(value[0].y + fed[1]);
      kept[3] = value[0].z + bias[2];
      kept[2] = hyperbolic_tangent<false>(fed[2] + kept[0] * kept[3]);
      carried = h = kept[2] + kept[1] * (carried - kept[2]);
    } else {
      const float x = value[0] + fed[0];
      h = sizes.relu ? (x < 0 ? 0 : x) : hyperbolic_tangent<false>(x);  // NaN stays NaN
    }
    const float cell = carried;
    float published = unit < hidden ? h : 0;
    if (begins) published = begin_sequence();
    publish(1 - kSlot, published, publishes);

    // Nobody waits for what follows.
    if (threadIdx.x == 0 && s + 1 < steps) expect_states(1 - kSlot, next);
    if (!exists || column >= columns) return;
    const int64_t row = current.row + n;
    store_float<T>(dir.y, row * params.y_row + unit, h);
    if (kGated && dir.gates != nullptr) {
      Four<T> four;
#pragma unroll
      for (int g = 0; g < 4; ++g) four.value[g] = Element<T>::from_float(kept[g]);
      static_cast<Four<T>*>(dir.gates)[row * hidden + unit] = four;
      if (MODE == PRNN_LSTM) store_float<T>(dir.cells, row * hidden + unit, cell);
    }
    if (n >= next.batch) {  // the sequence ends
      const int64_t at = int64_t{n} * hidden + unit;
      if (dir.hy != nullptr) store_float<T>(dir.hy, at, h);
      if (MODE == PRNN_LSTM && dir.cy != nullptr) store_float<T>(dir.cy, at, cell);
    }
  };
#pragma unroll 1
  for (int s = 0; s < steps; s += 2) {
    do_step(std::integral_constant<int, 0>(), s);
    if (s + 1 < steps) do_step(std::integral_constant<int, 1>(), s + 1);
  }
  // No block leaves while others may still write to its shared memory.
  sync_cluster();
}

template <class T, prnnRNNMode_t MODE, int PAIRS, int CLUSTER>
cudaError_t launch_cluster_forward(const ForwardParams& params, cudaStream_t stream) {
  using Layout = ClusterForward<MODE, PAIRS, CLUSTER>;
  return launch_cluster(cluster_forward<T, MODE, PAIRS, CLUSTER>, CLUSTER, Layout::kThreads,
                        sizeof(typename Layout::Shared), params, stream);
}

}  // namespace prnn
