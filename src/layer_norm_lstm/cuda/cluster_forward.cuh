// The forward cluster kernel of the LSTM with layer normalisation. Three exchanges a timestep through distributed
// shared memory: h, as in rnn/cuda/cluster/forward.cuh; the moments of a over all gates; the moments of c'.
#pragma once

#include <type_traits>

#include "layer_norm_lstm/cuda/cluster_common.cuh"

namespace prnn {

template <class T, int HIDDEN, int CLUSTER>
struct LayerNormLstmForwardLayout : LayerNormLstmLayout<T, HIDDEN, CLUSTER> {
  using Base = LayerNormLstmLayout<T, HIDDEN, CLUSTER>;
  static constexpr int kUnits = Base::kUnits, kKTiles = HIDDEN / Base::kTileElements, kSenders = Base::kSenders;
  static constexpr int kParts = kUnits / kTileRows, kShares = Base::kWarps / kParts;  // of rows and of K
  static constexpr int kOwnKTiles = kKTiles / kShares;                                // of a warp
  // Those in registers; the others lie in shared memory.
  static constexpr bool kIsTf32 = sizeof(T) == 4 && !kExact<T>;
  static constexpr int kRegisterQuads = Base::kRegisterQuads + (kIsTf32 ? 8 : 0);
  static constexpr int kRegisterTiles = kOwnKTiles * 4 > kRegisterQuads ? kRegisterQuads / 4 : kOwnKTiles;
  static constexpr int kOtherTiles = kOwnKTiles - kRegisterTiles;
  static constexpr int kColumnFloats = kUnits * 4 + 4;  // 4 off whole lines, against bank conflicts
  static constexpr int kShareFloats = kTileColumns * kColumnFloats;
  static_assert(kOwnKTiles * kShares == kKTiles && kParts * kShares == Base::kWarps, "whole k_tiles and warps");

  struct Shared {
    uint4 states[2][kKTiles][kTileColumns][4];  // m * h of a step, in fragment order
    uint4 weights[Base::kWarps][kOtherTiles > 0 ? kOtherTiles : 1][4][kOtherTiles > 0 ? 32 : 1];
    float sums[2][kShares][kShareFloats];
    float2 moments[2][kTileColumns][kSenders];  // of a and of c': each group's sum, and its squares around its own mean
    float parameters[kLayerNormLstmParameterRows][kUnits];
    uint64_t arrived[2];          // counts the bytes of `states`
    uint64_t moments_arrived[2];  // of `moments`
  };
};

// The moments of elements that SENDERS groups of lanes in a cluster have, UNITS times some number each, from the sums
// that each group sends. The squares around the groups' own means are brought to the common mean, so that a large mean
// costs no digits.
template <int SENDERS, int UNITS>
struct Moments {
  int full_groups;    // groups all of whose units exist
  float rest, share;  // units of the group after them; 1 / H
  float rest_share;   // 1 / rest; 0 where that is 0

  __device__ explicit Moments(int hidden) : full_groups(hidden / UNITS) {
    rest = hidden % UNITS;
    rest_share = rest > 0 ? 1.0f / rest : 0;
    share = 1.0f / hidden;
  }

  // {mean, 1 / deviation} of ELEMENTS a unit. At `address`: {sum, squares} of each group.
  template <int ELEMENTS>
  __device__ float2 of(uint32_t address, float epsilon) const {
    float4 pairs[SENDERS / 2];
    float sums[SENDERS / 2];
#pragma unroll
    for (int i = 0; i < SENDERS / 2; ++i) {
      load_shared(address + i * 16, pairs[i]);
      sums[i] = pairs[i].x + pairs[i].z;
    }
    add_all(sums);
    const float mean = sums[0] * (share * (1.0f / ELEMENTS));
    const int full = pin_in_register(full_groups);  // keeps the groups' counts out of the registers of the loop around
    const auto around_mean = [&](int group, float sum, float squares) {
      const float count = group < full ? UNITS : group == full ? rest : 0;
      const float count_share = group < full ? 1.0f / UNITS : group == full ? rest_share : 0;
      const float off = sum - mean * (count * ELEMENTS);
      return squares + off * off * (count_share * (1.0f / ELEMENTS));
    };
#pragma unroll
    for (int i = 0; i < SENDERS / 2; ++i) {
      sums[i] = around_mean(2 * i, pairs[i].x, pairs[i].y) + around_mean(2 * i + 1, pairs[i].z, pairs[i].w);
    }
    add_all(sums);
    return {mean, rsqrtf(sums[0] * (share * (1.0f / ELEMENTS)) + epsilon)};
  }
};

template <class T, int HIDDEN, int CLUSTER>
__global__ void __launch_bounds__((LayerNormLstmForwardLayout<T, HIDDEN, CLUSTER>::kThreads), 1)
    layer_norm_lstm_forward(const __grid_constant__ LayerNormLstmFloats params) {
  if constexpr (!kHasClusters) return;
  using Layout = LayerNormLstmForwardLayout<T, HIDDEN, CLUSTER>;
  constexpr int kUnits = Layout::kUnits, kKTiles = Layout::kKTiles, kTileElements = Layout::kTileElements;
  constexpr int kGroup = Layout::kGroup, kSenders = Layout::kSenders;
  constexpr bool kAccurate = sizeof(T) == 4;

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const LayerNormLstmPlace place = place_in_cluster<CLUSTER>(params);
  const int first_unit = place.rank * kUnits, hidden = Layout::hidden_of(params), steps = params.sizes.steps;
  const bool products = params.products != 0, normalizes = params.normalizes != 0;

  extern __shared__ uint4 dynamic_shared[];
  typename Layout::Shared& shared = *reinterpret_cast<typename Layout::Shared*>(dynamic_shared);
  const auto expect_states = [&](int stage) { expect_bytes(&shared.arrived[stage], place.columns * (kKTiles * 64)); };
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      init_barrier(&shared.arrived[i]);
      init_barrier(&shared.moments_arrived[i]);
    }
    fence_barriers();
    expect_states(0);
  }
  load_parameters<T, kUnits, Layout::kThreads>(params, first_unit, shared.parameters);

  // This warp's weights: its k-tiles are share + kShares i.
  const int part = warp / Layout::kShares, share = warp % Layout::kShares;
  const auto load_weights = [&](int i, int g) {
    const int unit = first_unit + part * kTileRows + lane / 4;
    const int k = (share + Layout::kShares * i) * kTileElements + sub * (kTileElements / 4);
    return factor_of<T>(load_row_fragment(static_cast<const T*>(params.recurrent),
                                          (int64_t{g} * hidden + unit) * hidden + k, unit < hidden ? hidden - k : 0));
  };
#pragma unroll 1
  for (int i = 0; i < Layout::kOtherTiles * 4; ++i) {  // read by this lane alone
    shared.weights[warp][i / 4][i % 4][lane] = load_weights(Layout::kRegisterTiles + i / 4, i % 4);
  }
  uint4 weights[Layout::kRegisterTiles][4];
#pragma unroll
  for (int i = 0; i < Layout::kRegisterTiles; ++i) {
#pragma unroll
    for (int g = 0; g < 4; ++g) weights[i][g] = load_weights(i, g);
  }

  // What this thread finishes: one unit of one sequence.
  const int own_unit = threadIdx.x % kUnits, column = threadIdx.x / kUnits;
  const int unit = first_unit + own_unit, n = place.first_column + column;
  const bool finishes = warp * 32 / kUnits < place.columns;  // a warp does or does not
  const bool is_active = column < place.columns, exists = unit < hidden && is_active;
  const int length = is_active ? params.length_of(n) : 0;
  const int64_t state_at = exists ? int64_t{n} * hidden + unit : 0;
  const int group = own_unit / kGroup, of_group = own_unit % kGroup;
  const float units_here = static_cast<float>(max(0, min(kGroup, hidden - first_unit - group * kGroup)));
  const float mean_share = units_here > 0 ? 1.0f / units_here : 0;  // of the group's units
  const Moments<kSenders, kGroup> moments(hidden);
  const float mask = params.recurrent_mask != nullptr && exists ? load_float<T>(params.recurrent_mask, state_at) : 1.0f;
  float before = params.h0 != nullptr && exists ? load_float<T>(params.h0, state_at) : 0;  // h
  float carried = params.c0 != nullptr && exists ? load_float<T>(params.c0, state_at) : 0;

  uint32_t input[4], zone;
  const T* const zones = static_cast<const T*>(params.zoneout_mask != nullptr ? params.zoneout_mask : params.x);
  const auto load_step = [&](int s) {
    const int64_t row = exists && s < steps ? params.row_of(s) + n : 0, u = exists ? unit : 0;
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      input[g] = load_bits(static_cast<const T*>(params.x) + ((row * 4 + g) * hidden + u));
    }
    zone = load_bits(zones + (row * hidden + u));
  };

  const uint32_t arrived = shared_address(&shared.arrived[0]), counted = shared_address(&shared.moments_arrived[0]);
  const uint32_t word_at = shared_address(&shared.states[0][unit / kTileElements][column % kTileColumns][0]) +
                           unit % kTileElements * static_cast<int>(sizeof(T)) / 4 * 4;
  const uint32_t halves = lane % 2 == 0 ? 0x5410 : 0x1054;  // own and other half of a word
  const auto publish = [&](int stage, float h) {
    // A word of 16-bit elements has two units: even lanes send it to the first half of the cluster, odd ones to the
    // other.
    constexpr int kSharing = 4 / sizeof(T);
    uint32_t word = factor_of<T>(Element<T>::pack(h, 0));
    if constexpr (kSharing == 2) word = __byte_perm(word, __shfl_xor_sync(kWholeWarp, word, 1), halves);
    if (!is_active) return;
#pragma unroll
    for (int i = 0; i < CLUSTER / kSharing; ++i) {
      const uint32_t peer = lane % kSharing * (CLUSTER / kSharing) + i;
      send_word(address_in_rank(word_at + stage * static_cast<uint32_t>(sizeof(shared.states[0])), peer),
                address_in_rank(arrived + stage * 8, peer), word);
    }
  };

  // Moments of what the cluster's threads have, in `kind`'s place. No block sends those of the next step before it has
  // all states of that step, which every warp publishes after it has read these: one place is enough.
  bool timed_out = false;
  const uint32_t moments_at = shared_address(&shared.moments[0][column % kTileColumns][0]);
  uint32_t peer_moments = address_in_rank(moments_at + (place.rank * Layout::kGroups + group) * 8, of_group % CLUSTER);
  uint32_t peer_counted = address_in_rank(counted, of_group % CLUSTER);
  pin_in_register(peer_moments);
  pin_in_register(peer_counted);
  const auto exchange_moments = [&](auto kind, int s, const auto& values) {
    constexpr uint32_t kKind = decltype(kind)::value, kOffset = kKind * sizeof(shared.moments[0]);
    constexpr int kElements = std::extent_v<std::remove_reference_t<decltype(values)>>;
    // Around one of the numbers, so that a large mean costs no digits and both sums go over the lanes together.
    const float origin = __shfl_sync(kWholeWarp, values[0], 0, kGroup);
    float sums[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const float off = exists ? values[i] - origin : 0;
      sums[0] += off;
      sums[1] += off * off;
    }
    sum_over_lanes<kGroup>(sums);
    const float sum = sums[0] + units_here * kElements * origin;
    const float squares = fmaxf(sums[1] - sums[0] * sums[0] * (mean_share * (1.0f / kElements)), 0);
    if (is_active && of_group < CLUSTER && !timed_out) {
      send_pair(peer_moments + kOffset, peer_counted + kKind * 8, sum, squares);
    }
    if (threadIdx.x == 0) {
      expect_bytes(&shared.moments_arrived[kKind], place.columns * kSenders * static_cast<int>(sizeof(float2)));
    }
    wait_for_arrival(counted + kKind * 8, s & 1, params.timed_out, timed_out);
    __syncwarp();
    return moments.template of<kElements>(moments_at + kOffset, params.epsilon);
  };

  sync_cluster();  // after it, all barriers are there, and so are the parameters
  if (finishes) {
    publish(0, mask * before);
    load_step(0);
  }

  // Where this lane reads states, writes sums of rows, and reads those of its unit.
  uint32_t states = shared_address(&shared.states[0][share][min(lane / 4, place.columns - 1)][sub]);
  uint32_t sums_out =
      shared_address(&shared.sums[0][share][sub * 2 * Layout::kColumnFloats + (part * kTileRows + lane / 4) * 4]);
  uint32_t sums_in = shared_address(&shared.sums[0][0][column % kTileColumns * Layout::kColumnFloats + own_unit * 4]);
  const uint32_t first_states = shared_address(&shared.states[0][share][0][sub]);
  pin_in_register(states);
  pin_in_register(sums_out);
  uint32_t other_weights = shared_address(&shared.weights[warp][0][0][Layout::kOtherTiles > 0 ? lane : 0]);
  if (Layout::kOtherTiles > 0) pin_in_register(other_weights);
  pin_in_register(sums_in);
  const bool has_column[2] = {sub * 2 < place.columns, sub * 2 + 1 < place.columns};
  const auto parameter = [&](int row) { return shared.parameters[row][own_unit]; };

  // Stages are known when compiling: two steps are one iteration.
  const auto do_step = [&](auto stage_constant, int s) {
    constexpr int kStage = decltype(stage_constant)::value;
    float fed[4];
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      fed[g] = exists ? value_of_bits<T>(input[g]) : 0;
      pin_in_register(fed[g]);
    }
    const float kept = params.zoneout_mask != nullptr ? value_of_bits<T>(zone) : params.zoneout;
    wait_for_arrival(arrived + kStage * 8, s / 2 & 1, params.timed_out, timed_out);
    __syncwarp();
    float sum[2][2][4] = {};
    // multiply(k-tile of this warp, its weights)
    const auto for_all_tiles = [&](const auto& multiply) {
#pragma unroll
      for (int i = 0; i < Layout::kRegisterTiles; ++i) {
        multiply(i, [&](int m, int half) { return weights[i][2 * m + half]; });
      }
#pragma unroll Layout::kWarps == 16 ? 1 : 2
      for (int i = 0; i < Layout::kOtherTiles; ++i) {
        multiply(Layout::kRegisterTiles + i,
                 [&](int m, int half) { return load_shared(other_weights + (i * 4 + 2 * m + half) * 512); });
      }
    };
    const auto state_of = [&](uint32_t first, int i) {
      return first + (kStage * kKTiles + i * Layout::kShares) * (kTileColumns * 64);
    };
    const auto multiply_by_lane = [&](auto columns) {
      float parts[2][2][columns()] = {};
      for_all_tiles(
          [&](int i, const auto& fragment) { multiply_k_tile_by_lane(parts, fragment, state_of(first_states, i)); });
      gather_columns(parts, sum);
    };
    with_few_columns<T>(place.columns, multiply_by_lane, [&] {
      for_all_tiles(
          [&](int i, const auto& fragment) { multiply_k_tile<T>(sum, fragment, load_shared(state_of(states, i))); });
    });
    const auto total = [&](int g, int e) { return sum[0][g / 2][g % 2 * 2 + e] + sum[1][g / 2][g % 2 * 2 + e]; };
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      store_shared(has_column[e],
                   sums_out + kStage * static_cast<uint32_t>(sizeof(shared.sums[0])) + e * Layout::kColumnFloats * 4,
                   float4{total(0, e), total(1, e), total(2, e), total(3, e)});
    }
    __syncthreads();
    if (!finishes) return;
    load_step(s + 1);

    // Sums over the shares of K.
    float4 value[Layout::kShares];
#pragma unroll
    for (int i = 0; i < Layout::kShares; ++i) {
      load_shared(sums_in + (kStage * Layout::kShares + i) * (Layout::kShareFloats * 4), value[i]);
    }
    add_all(value);
    float a[4] = {value[0].x, value[0].y, value[0].z, value[0].w};
#pragma unroll
    for (int g = 0; g < 4; ++g) a[g] = exists ? (products ? a[g] : a[g] + fed[g]) : 0;
    float2 gates = {0, 1};
    if (normalizes) gates = exchange_moments(std::integral_constant<int, 0>(), s, a);
    float gate[4];
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      a[g] = (a[g] - gates.x) * gates.y;
      const float u = parameter(g) * a[g] + parameter(4 + g);
      gate[g] = squash<kAccurate>(products ? u + fed[g] : u, g == 2);
    }
    const float c[1] = {exists ? gate[1] * carried + gate[0] * gate[2] : 0};
    float2 cells = {0, 1};
    if (normalizes) cells = exchange_moments(std::integral_constant<int, 1>(), s, c);
    const float normalized = (c[0] - cells.x) * cells.y;
    const float v = parameter(8) * normalized + parameter(9);
    const bool runs = params.timestep_of(s) < length;
    if (runs) carried = products ? c[0] : v;
    float h = gate[3] * hyperbolic_tangent<kAccurate>(v);
    h = runs ? zone_out(kept, before, h) : before;
    const T stored = Element<T>::from_float(exists ? h : 0);
    before = Element<T>::to_float(stored);
    if (s + 1 < steps && !timed_out) publish(1 - kStage, mask * before);

    // Off the critical path: no block polls these stores.
    if (threadIdx.x == 0 && s + 1 < steps) expect_states(1 - kStage);
    if (!is_active) return;
    const int64_t row = params.row_of(s) + n;
    if (params.stats != nullptr && place.rank == 0 && own_unit == 0) {
      *reinterpret_cast<float4*>(params.stats + row * 4) = {gates.y, cells.x, cells.y, 0};
    }
    if (!exists) return;
    const int64_t at = row * hidden + unit;
    static_cast<T*>(params.y)[at] = stored;
    if (params.gates != nullptr) {
      Four<T> four;
#pragma unroll
      for (int g = 0; g < 4; ++g) four.value[g] = Element<T>::from_float(a[g]);
      static_cast<Four<T>*>(params.gates)[at] = four;
      store_float<T>(params.cells, at, normalized);
    }
    if (s + 1 == steps && params.cy != nullptr) store_float<T>(params.cy, state_at, carried);
  };
#pragma unroll 1
  for (int s = 0; s < steps; s += 2) {
    do_step(std::integral_constant<int, 0>(), s);
    if (s + 1 < steps) do_step(std::integral_constant<int, 1>(), s + 1);
  }
  // No block leaves while others may still write to its shared memory.
  sync_cluster();
}

}  // namespace prnn
