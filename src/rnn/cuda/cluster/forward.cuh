// The forward cluster kernel: all timesteps of a layer whose recurrent weights lie in the registers of one thread-block
// cluster. A step's states are sent into every block's shared memory and counted there; nothing goes through L2.
#pragma once

#include <type_traits>

#include "rnn/cuda/common/block.cuh"
#include "rnn/cuda/common/dsmem.cuh"
#include "rnn/cuda/common/launch.cuh"
#include "rnn/cuda/common/sequence.cuh"
#include "rnn/cuda/common/shared_memory.cuh"
#include "rnn/cuda/common/unit_io.cuh"
#include "rnn/cuda/common/unroll.cuh"
#include "rnn/cuda/common/weights.cuh"
#include "rnn/plan/cluster.h"

namespace prnn {

// How a block works on its units. K_TILES: of K, all of them.
template <class T, prnnRNNMode_t MODE, int K_TILES, int CLUSTER>
struct ClusterForward {
  static constexpr int kKTile = k_tile_elements(sizeof(T) == 4);
  static constexpr bool kGated = MODE != PRNN_RNN_TANH;
  static constexpr int kGates = gate_count(MODE);
  static constexpr ClusterForwardSplit kSplit = cluster_forward_split(kGates, K_TILES, CLUSTER, kKTile);
  static constexpr int kUnits = kSplit.units, kUnitTiles = kSplit.unit_tiles, kShares = kSplit.shares;
  static constexpr int kThreads = kSplit.warps * 32;
  static constexpr int kOwnKTiles = K_TILES / kShares;   // of a warp
  static constexpr int kRowTiles = kUnitTiles * kGates;  // of its rows
  static constexpr int kTiles = kRowTiles / 2;           // of 16 rows
  static constexpr int kSets = kTiles == 1 ? 4 : 2;      // chains of sums, to hide their latency
  static constexpr int kUnitFloats = kGated ? 4 : 1;     // a unit's sums, one beside the other
  static constexpr int kColumnFloats = kSplit.column_floats;
  static constexpr int kShareFloats = kTileColumns * kColumnFloats;
  static_assert(kOwnKTiles * kShares == K_TILES && kSplit.parts * kShares == kSplit.warps, "whole k_tiles and warps");
  static_assert(kUnits * kTileColumns <= kThreads, "a thread for every unit of every sequence");

  struct Shared {
    uint4 states[2][K_TILES][kTileColumns][4];  // h of a step, in fragment order
    float sums[2][kShares][kShareFloats];
    BarrierPair arrived;  // count the bytes of `states`
  };
  static_assert(sizeof(Shared) == kSplit.shared_bytes, "what the plan says");
};

// EXTRAS: with prnnRNNExtras_t or prnnRNNMasks_t.
template <class T, prnnRNNMode_t MODE, int K_TILES, int CLUSTER, bool EXTRAS>
__global__ void __launch_bounds__((ClusterForward<T, MODE, K_TILES, CLUSTER>::kThreads), 1)
    cluster_forward(const __grid_constant__ ForwardParams params) {
  if constexpr (!kHasClusters) return;
  using Layout = ClusterForward<T, MODE, K_TILES, CLUSTER>;
  constexpr bool kGated = Layout::kGated;
  constexpr Digits kDigits = digits_of<T>();
  constexpr int kUnits = Layout::kUnits, kGates = Layout::kGates, kOwnKTiles = Layout::kOwnKTiles;
  constexpr int kKTile = Layout::kKTile;
  constexpr int kRowTiles = Layout::kRowTiles, kTiles = Layout::kTiles, kSets = Layout::kSets;

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const BlockPlace place = place_of_block(sizes, kUnits);
  const ForwardDirection& dir = params.direction[place.direction];
  const int first_unit = place.first_unit, hidden = sizes.hidden;
  const int replica_column = place.first_column, replica_columns = place.columns;
  const int steps = steps_of_column(sizes, replica_column);
  const auto size_at = [&](int s) { return step_of_pass(sizes, steps, dir.reverse, s); };
  const auto columns_of = [&](const Step& step) { return min(replica_columns, step.batch - replica_column); };

  extern __shared__ uint4 dynamic_shared[];
  typename Layout::Shared& shared = *reinterpret_cast<typename Layout::Shared*>(dynamic_shared);

  Step current, next = size_at(0), following = size_at(1);
  const auto state_bytes = [&](const Step& step) { return columns_of(step) * (K_TILES * 64); };
  shared.arrived.init(state_bytes(next));

  // This warp's weights: its k-tiles are share + kShares i.
  const int part = warp / Layout::kShares, share = warp % Layout::kShares;
  uint4 weights[kOwnKTiles][kRowTiles];
  unroll<kOwnKTiles, kRowTiles>([&](int i, int o) {
    const int row_tile = part * Layout::kUnitTiles + o / kGates, unit = first_unit + row_tile * kTileRows + lane / 4;
    const int k = (share + Layout::kShares * i) * kKTile + sub * (kKTile / 4);
    const int64_t row = int64_t{o % kGates} * hidden + unit;
    weights[i][o] = factors_of<T>(
        load_row_fragment(static_cast<const T*>(dir.weights), row * hidden + k, unit < hidden ? hidden - k : 0));
  });

  // This thread finishes one unit of one sequence.
  const int own_unit = threadIdx.x % kUnits, column = threadIdx.x / kUnits;
  const int unit = first_unit + own_unit, n = replica_column + column;
  const bool exists = unit < hidden && column < replica_columns;
  float bias[4] = {0, 0, 0, 0};  // a GRU's last two: of R h and of W x in its candidate
#pragma unroll
  for (int g = 0; g < (kGated ? 4 : 1); ++g) bias[g] = load_bias<T, MODE>(dir, hidden, unit, g, exists);
  const T* const input_of_thread = static_cast<const T*>(dir.xw) + (exists ? unit : 0);
  uint32_t input[kGates];
  const auto load_input = [&](const Step& step) {
    const int64_t row = column < columns_of(step) ? step.row + n : 0;
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      input[g] = load_element(input_of_thread + row * params.xw_row + (exists ? int64_t{g} * params.xw_gate : 0));
    }
  };

  // Two units are sent at once, in 16 bits a word. Even lanes send to the first half of the cluster, odd ones to the
  // other.
  const int state = first_unit + own_unit;
  const uint32_t own_place =
      shared_address(&shared.states[0][0][0][0]) +
      ((state / kKTile * kTileColumns + column % kTileColumns) * 64 + state % kKTile / 2 * 2 * sizeof(T));
  const auto place_of = [&](int stage, int i) {
    const uint32_t peer = lane % 2 * (CLUSTER / 2) + i;
    return address_in_rank(own_place + stage * static_cast<uint32_t>(sizeof(shared.states[0])), peer);
  };
  const auto count_of = [&](int stage, int i) {
    return address_in_rank(shared.arrived.address(stage), lane % 2 * (CLUSTER / 2) + i);
  };
  constexpr bool kKeepsPlaces = Layout::kThreads <= 256;  // has the registers for it
  uint32_t places[2][CLUSTER / 2], counts[2][CLUSTER / 2];
#pragma unroll
  for (int i = 0; kKeepsPlaces && i < CLUSTER; ++i) {
    pin_in_register(places[i % 2][i / 2] = place_of(i % 2, i / 2));
    pin_in_register(counts[i % 2][i / 2] = count_of(i % 2, i / 2));
  }
  bool timed_out = false;
  uint32_t halves = lane % 2 == 0 ? 0x5410 : 0x1054;  // own and other half of a word
  pin_in_register(halves);
  const float mask = load_mask<T, EXTRAS>(params.masks, place.direction, int64_t{n} * hidden + unit, exists);
  const auto publish = [&](int stage, float h, bool valid) {
    const uint32_t own = Element<T>::factor(Element<T>::pack(h * mask, 0)), other = __shfl_xor_sync(kWholeWarp, own, 1);
    const uint32_t word = __byte_perm(own, other, halves);
    if (!valid) return;
#pragma unroll
    for (int i = 0; i < CLUSTER / 2; ++i) {
      const uint32_t to = kKeepsPlaces ? places[stage][i] : place_of(stage, i);
      const uint32_t count = kKeepsPlaces ? counts[stage][i] : count_of(stage, i);
      if constexpr (sizeof(T) == 4) {
        send_words(to, count, lane % 2 == 0 ? own : other, lane % 2 == 0 ? other : own);
      } else {
        send_word(to, count, word);
      }
    }
  };

  Carried<MODE> carried{};  // c (LSTM; sLSTM: c, n and m), h before rounding (GRU)
  float carried_h = 0;      // h (LSTM)
  const auto begin = [&](bool starts_anew) {
    return carried_h = begin_sequence<T, MODE>(dir, int64_t{n} * hidden + unit, exists, starts_anew, carried);
  };
  // Whether the sequence starts anew with its next step.
  const auto restarts_next = [&] { return restarts<EXTRAS>(dir, current, next, n); };

  sync_cluster();
  const bool finishes = warp * 32 / kUnits < replica_columns;  // a warp does or does not
  if (finishes) {
    const bool begins = column < columns_of(next);
    publish(0, begins ? begin(restarts_next()) : 0, begins);
    load_input(next);
  }

  // Where this lane reads states, writes sums of rows, and reads those of its unit.
  const uint32_t barrier = shared.arrived.address(0);
  uint32_t states = shared_address(&shared.states[0][share][min(lane / 4, replica_columns - 1)][sub]);
  uint32_t sums_out =
      shared_address(&shared.sums[0][share][sub * 2 * Layout::kColumnFloats +
                                            (part * Layout::kUnitTiles * kTileRows + lane / 4) * Layout::kUnitFloats]);
  uint32_t sums_in = shared_address(
      &shared.sums[0][0][column % kTileColumns * Layout::kColumnFloats + own_unit * Layout::kUnitFloats]);
  pin_in_register(states);
  pin_in_register(sums_out);
  pin_in_register(sums_in);
  const bool has_column[2] = {sub * 2 < replica_columns, sub * 2 + 1 < replica_columns};

  // Stages are known when compiling: two steps are one iteration.
  const auto do_step = [&](auto stage_constant, int s) {
    constexpr int kStage = decltype(stage_constant)::value;
    current = next;
    next = following;
    following = size_at(s + 2);
    const int columns = columns_of(current), next_columns = columns_of(next);
    const bool begins = column >= columns && column < next_columns;
    const bool publishes = column < next_columns && !timed_out;
    const bool is_last_before_reset = restarts_next();

    float fed[kGates];
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      fed[g] = element_value<T>(input[g]) + bias[MODE == PRNN_GRU && g == 2 ? 3 : g];
      pin_in_register(fed[g]);
    }
    if (finishes) load_input(next);

    wait_for_arrival(barrier + kStage * 8, s / 2 & 1, sizes.timed_out, timed_out);
    __syncwarp();

    float sum[kSets][kTiles][4] = {};
#pragma unroll
    for (int i = 0; i < kOwnKTiles; ++i) {
      const uint4 b = load_shared(states + (kStage * K_TILES + i * Layout::kShares) * (kTileColumns * 64));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const uint4 low = weights[i][2 * m], high = weights[i][2 * m + 1];
        Element<T>::mma_of_factors(sum[2 * i % kSets][m], low.x, high.x, low.y, high.y, b.x, b.y);
        Element<T>::mma_of_factors(sum[(2 * i + 1) % kSets][m], low.z, high.z, low.w, high.w, b.z, b.w);
      }
    }
    const auto total = [&](int row_tile, int e) {
      const int m = row_tile / 2, q = row_tile % 2 * 2 + e;
      if (kSets == 2 || kOwnKTiles == 1) return sum[0][m][q] + sum[1][m][q];
      return sum[0][m][q] + sum[1][m][q] + (sum[kSets - 2][m][q] + sum[kSets - 1][m][q]);
    };
    unroll<2, Layout::kUnitTiles>([&](int e, int o) {
      constexpr int kFloat = sizeof(float);
      const uint32_t to = sums_out + kStage * static_cast<uint32_t>(sizeof(shared.sums[0])) +
                          (e * Layout::kColumnFloats + o * kTileRows * Layout::kUnitFloats) * kFloat;
      if constexpr (kGated) {
        store_shared(has_column[e], to,
                     float4{total(o * kGates, e), total(o * kGates + 1, e), total(o * kGates + 2, e),
                            kGates == 4 ? total(o * kGates + kGates - 1, e) : 0});
      } else {
        store_shared(has_column[e], to, total(o, e));
      }
    });
    __syncthreads();
    if (!finishes) return;

    // Sums over the shares of K, activations, publishing.
    using Sums = std::conditional_t<kGated, float4, float>;
    Sums value[Layout::kShares];
#pragma unroll
    for (int i = 0; i < Layout::kShares; ++i) {
      load_shared(sums_in + (kStage * Layout::kShares + i) * (Layout::kShareFloats * 4), value[i]);
    }
    add_all(value);
    UnitForwardOf<Carried<MODE>> done;
    if constexpr (kGated) {
      float recurrent[kGates];
#pragma unroll
      for (int g = 0; g < kGates; ++g) {
        recurrent[g] = g == 0 ? value[0].x : g == 1 ? value[0].y : g == 2 ? value[0].z : value[0].w;
        if (MODE == PRNN_GRU && g == 2) recurrent[g] += bias[2];
      }
      done = forward_unit<MODE, kDigits>(recurrent, fed, carried, cell_kind<MODE>(sizes));
      const bool h_stays = kCarriesH<MODE, EXTRAS> && stays(params.masks, fed[kGates - 1]);
      if (h_stays) done.saved[3] = kStayed;
      if constexpr (kZonesOut<MODE, EXTRAS>) {
        zone_out<MODE, EXTRAS>(params.masks, kCarriesH<MODE, EXTRAS> ? carried_h : carried, h_stays, done);
      }
      carried = done.carried;
      carried_h = done.h;
    } else {
      done.h = Cell<MODE>::template activate<kDigits>(value[0] + fed[0], 0, sizes.relu);
    }
    float published = unit < hidden ? done.h : 0;
    if (begins || is_last_before_reset) published = begin(is_last_before_reset);
    publish(1 - kStage, published, publishes);

    // Off the critical path: no block polls these stores.
    if (s + 1 < steps) shared.arrived.expect(1 - kStage, state_bytes(next));
    if (!exists || column >= columns) return;
    const int64_t row = current.row + n;
    store_float<T>(dir.y, row * params.y_row + unit, done.h);
    if (kGated) save_unit<T, MODE>(dir, row * hidden + unit, done);
    if (n >= next.batch) store_final_states<T, MODE>(dir, int64_t{n} * hidden + unit, done.h, done.carried, kWholeUnit);
  };
#pragma unroll 1
  for (int s = 0; s < steps; s += 2) {
    do_step(std::integral_constant<int, 0>(), s);
    if (s + 1 < steps) do_step(std::integral_constant<int, 1>(), s + 1);
  }
  // No block leaves while others may still write to its shared memory.
  sync_cluster();
}

template <class T, prnnRNNMode_t MODE, int K_TILES, int CLUSTER>
cudaError_t launch_cluster_forward(const ResidentShape&, const ForwardParams& params, cudaStream_t stream) {
  using Layout = ClusterForward<T, MODE, K_TILES, CLUSTER>;
  const auto kernel = params.has_extras() ? cluster_forward<T, MODE, K_TILES, CLUSTER, true>
                                          : cluster_forward<T, MODE, K_TILES, CLUSTER, false>;
  return launch_cluster(kernel, CLUSTER, Layout::kThreads, sizeof(typename Layout::Shared), params, stream);
}

}  // namespace prnn
