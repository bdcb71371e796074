// The backward cluster kernel of the LSTM with layer normalisation: as rnn/cuda/cluster/backward.cuh, and one more
// exchange a timestep, of the sums that both normalisations' gradients are made of.
//
// The gradients of LN(a) depend on those of LN(c'), but linearly, so that all go at once. With dc' = d - r (s1 + LN(c')
// s2), where d = r w + (the gradient carried from the step after), w = cellGain dv, r the reciprocal of the deviation
// of c', s1 and s2 the means of w and w LN(c'), and du_k = dc' k for the gates i, f, g, the sums of gateGain du and of
// gateGain du LN(a) are sums of K1 d and K2 d, less r times those of K1, K1 LN(c'), K2 and K2 LN(c') times s1 and s2,
// with K1 the sum over the gates of gateGain k, K2 that of gateGain k LN(a).
#pragma once

#include <type_traits>

#include "rnn/cuda/cluster/backward.cuh"
#include "rnn/cuda/cluster/backward_weights.cuh"
#include "rnn/cuda/layer_norm/cluster_common.cuh"

namespace prnn {

template <class T, int HIDDEN, int CLUSTER, int COLUMN_TILES>
struct LayerNormLstmBackwardLayout : LayerNormLstmLayout<T, HIDDEN, CLUSTER, COLUMN_TILES> {
  using Base = LayerNormLstmLayout<T, HIDDEN, CLUSTER, COLUMN_TILES>;
  static constexpr int kUnits = Base::kUnits, kGates = 4, kSenders = Base::kSenders;
  static constexpr int kRows = HIDDEN;                              // of R', all units
  static constexpr int kTiles = HIDDEN / 16 / Base::kWarps;         // of 16 rows, of a warp
  static constexpr int kKTiles = 4 * kUnits / Base::kTileElements;  // of the block's gates
  // Units of one block that a warp has sums of.
  static constexpr int kBundle = kUnits < kTiles * 16 ? kUnits : kTiles * 16, kBundleTiles = kBundle / 16;
  static constexpr int kBundles = kTiles / kBundleTiles;
  static constexpr int kColumns = Base::kColumns;
  static constexpr int kSumColumns = layer_norm_lstm_cluster_columns(kUnits);  // of a column tile
  static constexpr int kLaneUnits = kBundle / 8;                           // of a bundle: what a lane has of a sequence
  static constexpr int kSets = kTiles >= 4 || Base::kWarps == 16 ? 1 : 2;  // chains of sums, to hide their latency
  // The operands in registers; the others lie in shared memory.
  static constexpr int kQuads = kTiles * kKTiles * 2;
  static constexpr int kRegisterTiles = kQuads > Base::kRegisterQuads ? Base::kRegisterQuads / (2 * kTiles) : kKTiles;
  static constexpr int kOtherTiles = kKTiles - kRegisterTiles;
  static_assert(kBundles * kBundleTiles == kTiles, "whole bundles");

  struct Shared {
    float sums[Base::kStages][CLUSTER][kColumns][kUnits];  // of each block's gates
    uint4 gradients[Base::kStages][kKTiles][kColumns][4];  // of this block's gates, in fragment order
    uint4 weights[Base::kWarps][kOtherTiles > 0 ? kOtherTiles : 1][kTiles][2][kOtherTiles > 0 ? 32 : 1];
    // Each group's sums: two stages of what forward kept, then those with gradients.
    float4 means[2 + Base::kStages][kColumns][kSenders];
    float parameters[kLayerNormLstmParameterRows][kUnits];
    float parameter_sums[kLayerNormLstmParameterRows][kSumColumns][kUnits];  // of all column tiles
    uint64_t arrived[2];                                                     // counts the bytes of `sums`
    uint64_t means_arrived[2];                                               // of `means`
  };
};

// A fragment of a warp's weights of 32 bits, laid out as by load_backward_weights().
template <class T, class Layout>
__device__ __forceinline__ uint4 load_backward_fragment(const T* matrix, int hidden, int first_unit, int m, int i,
                                                        int half) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int bundle = warp * Layout::kBundles + m / Layout::kBundleTiles, e = m % Layout::kBundleTiles * 2 + half;
  const int row = bundle * Layout::kBundle + lane / 4 * Layout::kLaneUnits + e;
  uint32_t words[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int k = i * Layout::kTileElements + lane % 4 * 4 + j;
    const int gate = k / Layout::kUnits, unit = first_unit + k % Layout::kUnits;
    const bool exists = unit < hidden && row < hidden;
    words[j] =
        exists ? __float_as_uint(factor_of<T>(load_float<T>(matrix, (int64_t{gate} * hidden + unit) * hidden + row)))
               : 0;
  }
  return {words[0], words[1], words[2], words[3]};
}

// A unit's LN(a) that forward kept, as it is loaded.
template <class T>
using KeptGates = std::conditional_t<sizeof(T) == 4, uint4, uint2>;

template <class T>
__device__ __forceinline__ void unpack_gates(const KeptGates<T>& kept, bool exists, float (&to)[4]) {
  uint32_t words[4];
  if constexpr (sizeof(T) == 4) {
    words[0] = kept.x, words[1] = kept.y, words[2] = kept.z, words[3] = kept.w;
  } else {
    words[0] = kept.x, words[1] = kept.x >> 16, words[2] = kept.y, words[3] = kept.y >> 16;
  }
#pragma unroll
  for (int g = 0; g < 4; ++g) to[g] = exists ? value_of_bits<T>(words[g]) : 0;
}

template <class T, int HIDDEN, int CLUSTER, int COLUMN_TILES>
__global__ void __launch_bounds__((LayerNormLstmBackwardLayout<T, HIDDEN, CLUSTER, COLUMN_TILES>::kThreads), 1)
    layer_norm_lstm_backward(const __grid_constant__ LayerNormLstmFloats params) {
  if constexpr (!kHasClusters) return;
  using Layout = LayerNormLstmBackwardLayout<T, HIDDEN, CLUSTER, COLUMN_TILES>;
  constexpr int kUnits = Layout::kUnits, kKTiles = Layout::kKTiles, kTiles = Layout::kTiles, kSets = Layout::kSets;
  constexpr int kParameters = kLayerNormLstmParameterRows, kGroup = Layout::kGroup, kSenders = Layout::kSenders;
  constexpr Digits kDigits = digits_of<T>();
  constexpr int kStates = COLUMN_TILES, kColumns = Layout::kColumns;
  // With two column tiles, there are registers for the sums of fewer row tiles, and none for a step's c to be kept
  // until the next step.
  constexpr int kPassTiles = COLUMN_TILES > 1 ? Layout::kBundleTiles : kTiles;
  constexpr bool kReloads = COLUMN_TILES > 1;
  constexpr bool kStoresEarly =  // no registers to wait for the product
      kExact<T> || Layout::kWarps == 16 || COLUMN_TILES > 1;

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const LayerNormLstmPlace place = place_in_cluster<CLUSTER>(params);
  const int first_unit = place.rank * kUnits, hidden = Layout::hidden_of(params), steps = params.sizes.steps;
  const bool products = params.products != 0, normalizes = params.normalizes != 0;

  extern __shared__ uint4 dynamic_shared[];
  typename Layout::Shared& shared = *reinterpret_cast<typename Layout::Shared*>(dynamic_shared);
  for (int i = threadIdx.x; i < Layout::kStages * kKTiles * kColumns * 4; i += Layout::kThreads) {
    (&shared.gradients[0][0][0][0])[i] = {0, 0, 0, 0};  // K beyond the last gate
  }
  for (int i = threadIdx.x; i < kParameters * Layout::kSumColumns * kUnits; i += Layout::kThreads) {
    (&shared.parameter_sums[0][0][0])[i] = 0;
  }
  load_parameters<T, kUnits, Layout::kThreads>(params, first_unit, shared.parameters);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      init_barrier(&shared.arrived[i]);
      init_barrier(&shared.means_arrived[i]);
    }
    fence_barriers();
  }

  uint4 weights[kTiles][Layout::kRegisterTiles][2];
  if constexpr (sizeof(T) == 4) {
    const auto load_weights = [&](int m, int i, int half) {
      return load_backward_fragment<T, Layout>(static_cast<const T*>(params.recurrent), hidden, first_unit, m, i, half);
    };
#pragma unroll 1
    for (int j = 0; j < Layout::kOtherTiles * kTiles * 2; ++j) {  // read by this lane alone
      const int i = j / (kTiles * 2), m = j / 2 % kTiles;
      shared.weights[warp][i][m][j % 2][lane] = load_weights(m, Layout::kRegisterTiles + i, j % 2);
    }
#pragma unroll
    for (int i = 0; i < Layout::kRegisterTiles; ++i) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        weights[m][i][0] = load_weights(m, i, 0);
        weights[m][i][1] = load_weights(m, i, 1);
      }
    }
  } else {
    static_assert(32 * Layout::kRows * sizeof(T) <= sizeof(shared.sums), "the rows of a k_tile take the sums' place");
    const T* const recurrent = static_cast<const T*>(params.recurrent);
#pragma unroll 1
    for (int i = 0; i < Layout::kOtherTiles; ++i) {  // read by this lane alone
      uint4 tile[kTiles][1][2];
      load_backward_weights<T, Layout>(recurrent, hidden, first_unit, &shared.sums, tile, Layout::kRegisterTiles + i);
#pragma unroll
      for (int j = 0; j < 2 * kTiles; ++j) shared.weights[warp][i][j / 2][j % 2][lane] = tile[j / 2][0][j % 2];
    }
    load_backward_weights<T, Layout>(recurrent, hidden, first_unit, &shared.sums, weights);
  }

  // This thread finishes one unit of a sequence of each column tile.
  const int own_unit = threadIdx.x % kUnits, column = threadIdx.x / kUnits;
  const int unit = first_unit + own_unit;
  const bool finishes = warp * 32 / kUnits < place.columns;  // a warp does or does not
  const float cell_share = 1.0f / hidden, gate_share = 0.25f / hidden;
  const auto sequence = [&](int i) { return place.first_column + column + i * kTileColumns; };
  bool is_active[kStates] = {}, exists[kStates] = {};
  const auto load_state = [&](int i, const void* from, float otherwise) {
    return from != nullptr && exists[i] ? load_float<T>(from, int64_t{sequence(i)} * hidden + unit) : otherwise;
  };
  int length[kStates];
  float mask[kStates], dc[kStates];
  float direct[kStates];  // the gradient of h that went past the matrix
#pragma unroll
  for (int i = 0; i < kStates; ++i) {
    is_active[i] = column + i * kTileColumns < place.columns;
    exists[i] = unit < hidden && is_active[i];
    length[i] = is_active[i] ? params.length_of(sequence(i)) : 0;
    mask[i] = load_state(i, params.recurrent_mask, 1);
    dc[i] = load_state(i, params.dcy, 0);
    direct[i] = 0;
  }
  const auto parameter = [&](int row) { return shared.parameters[row][own_unit]; };

  // The values that the forward pass left of a step, and the next step's c: a step's c is the one before of the step
  // after.
  uint32_t dy[kStates], zone[kStates], input[kStates][4], cell[kStates], cell_before[kStates];
  KeptGates<T> gates[kStates];
  float4 stats[kStates], stats_before[kStates];
  const T* const zones = static_cast<const T*>(params.zoneout_mask != nullptr ? params.zoneout_mask : params.dy);
  const auto row_of = [&](int i, int s) {  // s: of the recurrence
    return is_active[i] ? params.row_of(max(s, 0)) + sequence(i) : 0;
  };
  const auto load_cell = [&](int i, int s) {
    cell_before[i] = load_bits(static_cast<const T*>(params.cells) + (row_of(i, s) * hidden + (exists[i] ? unit : 0)));
    stats_before[i] = __ldcs(reinterpret_cast<const float4*>(params.stats) + row_of(i, s));
  };
  const auto load_step = [&](int s) {
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      const int64_t row = row_of(i, s), u = exists[i] ? unit : 0, at = row * hidden + u;
      dy[i] = load_bits(static_cast<const T*>(params.dy) + at);
      zone[i] = load_bits(zones + at);
      gates[i] = __ldcs(reinterpret_cast<const KeptGates<T>*>(static_cast<const T*>(params.gates) + at * 4));
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        input[i][g] = load_bits(static_cast<const T*>(params.x) + ((row * 4 + g) * hidden + u));
      }
      if (kReloads) load_cell(i, s);
      cell[i] = cell_before[i];
      stats[i] = stats_before[i];
      load_cell(i, s - 1);
    }
  };
  // Where this thread reads the sums of its unit and puts its gates' gradients, where its warp reads the latter, and
  // where in every block its sums go.
  const uint32_t arrived = shared_address(&shared.arrived[0]), counted = shared_address(&shared.means_arrived[0]);
  uint32_t sums_in = shared_address(&shared.sums[0][0][column % kTileColumns][own_unit]);
  const uint32_t first_gradients = shared_address(&shared.gradients[0][0][0][sub]);
  uint32_t gradients_in[COLUMN_TILES];
#pragma unroll
  for (int c = 0; c < COLUMN_TILES; ++c) {
    gradients_in[c] = first_gradients + min(c * kTileColumns + lane / 4, place.columns - 1) * 64;
    if (kStates == 1) pin_in_register(gradients_in[c]);
  }
  uint32_t gradients_out[4];
#pragma unroll
  for (int g = 0; g < 4; ++g) {
    // Whole k-tiles of a gate: one address for all of them, and offsets that are known.
    constexpr bool kWhole = kUnits % Layout::kTileElements == 0;
    const int k = (kWhole ? 0 : g * kUnits) + own_unit, tiles = kWhole ? g * kUnits / Layout::kTileElements : 0;
    gradients_out[g] = shared_address(&shared.gradients[0][k / Layout::kTileElements][column % kTileColumns][0]) +
                       k % Layout::kTileElements * static_cast<int>(sizeof(T)) +
                       tiles * static_cast<int>(sizeof(shared.gradients[0][0]));
  }
  uint32_t sums_out[Layout::kBundles], counts[Layout::kBundles];
#pragma unroll
  for (int i = 0; i < Layout::kBundles; ++i) {
    const int bundle_unit = (warp * Layout::kBundles + i) * Layout::kBundle;
    const uint32_t owner = bundle_unit / kUnits;
    const int of_owner = bundle_unit % kUnits + lane / 4 * Layout::kLaneUnits;
    sums_out[i] = address_in_rank(shared_address(&shared.sums[0][place.rank][sub * 2][of_owner]), owner);
    counts[i] = address_in_rank(arrived, owner);
    pin_in_register(sums_out[i]);
    pin_in_register(counts[i]);
  }
  pin_in_register(sums_in);
  uint32_t other_weights = shared_address(&shared.weights[warp][0][0][0][Layout::kOtherTiles > 0 ? lane : 0]);
  if (Layout::kOtherTiles > 0) pin_in_register(other_weights);

  // A group's sums of 4 values, which lane `rank` of it sends to block `rank`. Two stages: a block sends the first
  // ones of a step while others may still read those of the step before, but no earlier ones.
  const int of_group = own_unit % kGroup, sender = place.rank * Layout::kGroups + own_unit / kGroup;
  const uint32_t peer = of_group % CLUSTER;
  uint32_t peer_means = address_in_rank(shared_address(&shared.means[0][column % kTileColumns][sender]), peer);
  uint32_t peer_counted = address_in_rank(counted, peer);
  pin_in_register(peer_means);
  pin_in_register(peer_counted);
  constexpr uint32_t kMeansBytes = sizeof(shared.means[0]), kTileMeans = kTileColumns * sizeof(shared.means[0][0]);
  const auto means_place = [](int stage, int part) { return part == 0 ? stage : 2 + stage % Layout::kStages; };
  bool timed_out = false;
  const auto send_means = [&](int stage, int part, float (&values)[4 * kStates]) {
    sum_over_lanes<kGroup>(values);
    if (Layout::kStages == 1) __syncwarp();  // receivers then know that all lanes have read what they are sent next
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      if (is_active[i] && of_group < CLUSTER && !timed_out) {
        send_to_rank(peer_means + means_place(stage, part) * kMeansBytes + i * kTileMeans, peer_counted + stage * 8,
                     {values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3]});
      }
    }
  };
  // Lanes of even multiples of kSenders add the first sums of all groups, those of odd ones the others.
  const int part_of_lane = of_group / kSenders % 2;
  uint32_t means_in[2];
#pragma unroll
  for (int stage = 0; stage < 2; ++stage) {
    means_in[stage] =
        shared_address(&shared.means[means_place(stage, part_of_lane)][column % kTileColumns][of_group % kSenders]);
  }

  if (finishes) {
#pragma unroll
    for (int i = 0; i < kStates && !kReloads; ++i) load_cell(i, steps - 1);
    load_step(steps - 1);
  }
  sync_cluster();  // after it, all barriers are there, and so are the parameters

  const auto add_parts = [&](int stage, int s, float (&result)[kStates]) {
    wait_for_arrival(arrived + stage * 8, (s - 1) / 2 & 1, params.timed_out, timed_out);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      float parts[CLUSTER];
#pragma unroll
      for (int p = 0; p < CLUSTER; ++p) {
        load_shared(sums_in + ((stage % Layout::kStages * CLUSTER + p) * kColumns + i * kTileColumns) * (kUnits * 4),
                    parts[p]);
      }
      add_all(parts);
      result[i] = parts[0];
    }
  };

  // Stages are known when compiling: two steps are one iteration. `s` counts from the last timestep.
  const auto do_step = [&](auto stage_constant, int s) {
    constexpr int kStage = decltype(stage_constant)::value, kPlace = kStage % Layout::kStages;
    const int step = steps - 1 - s;
    const auto runs = [&](int i) { return exists[i] && params.timestep_of(step) < length[i]; };
    float du[kStates][4] = {}, da[kStates][4] = {};
    float normalized[kStates][4], cell_value[kStates], of_v[kStates];
    if (finishes) {
      // All that does not need dh.
      float of_gate[kStates][3], of_o[kStates], of_h[kStates], forget[kStates], kept[kStates], added[kStates];
      float deviation[kStates], cell_deviation[kStates], k1[kStates], k2[kStates], first[4 * kStates];
      const float cell_gain = parameter(8);
#pragma unroll
      for (int n = 0; n < kStates; ++n) {
        unpack_gates<T>(gates[n], runs(n), normalized[n]);
        float value[4];
#pragma unroll
        for (int g = 0; g < 4; ++g) {
          const float sum = parameter(g) * normalized[n][g] + parameter(4 + g);
          value[g] = squash<kDigits>(products ? sum + value_of_bits<T>(input[n][g]) : sum, g == 2);
        }
        cell_value[n] = runs(n) ? value_of_bits<T>(cell[n]) : 0;
        deviation[n] = stats[n].x, cell_deviation[n] = stats[n].z;
        const float squashed = hyperbolic_tangent<kDigits>(cell_gain * cell_value[n] + parameter(9));
        const float kept_cell = value_of_bits<T>(cell_before[n]);
        const float c_before = params.is_first(step, length[n]) ? load_state(n, params.c0, 0)
                               : products                       ? stats_before[n].y + kept_cell / stats_before[n].z
                                                                : cell_gain * kept_cell + parameter(9);
        added[n] = value_of_bits<T>(dy[n]);
        kept[n] = params.zoneout_mask != nullptr ? value_of_bits<T>(zone[n]) : params.zoneout;
        const float i = value[0], f = value[1], candidate = value[2], o = value[3];
        of_gate[n][0] = candidate * i * (1 - i), of_gate[n][1] = c_before * f * (1 - f);
        of_gate[n][2] = i * (1 - candidate * candidate);
        of_o[n] = squashed * o * (1 - o), of_h[n] = o * (1 - squashed * squashed), forget[n] = f;
        k1[n] = k2[n] = 0;
#pragma unroll
        for (int g = 0; g < 3; ++g) {
          const float scaled = runs(n) ? parameter(g) * of_gate[n][g] : 0;
          k1[n] += scaled;
          k2[n] += scaled * normalized[n][g];
        }
        const float of_step[4] = {k1[n], k1[n] * cell_value[n], k2[n], k2[n] * cell_value[n]};
#pragma unroll
        for (int j = 0; j < 4; ++j) first[4 * n + j] = of_step[j];
      }
      if (normalizes) {
        send_means(kStage, 0, first);
        if (threadIdx.x == 0) expect_bytes(&shared.means_arrived[kStage], place.columns * kSenders * 32);
      }

      float dh[kStates] = {}, through[kStates], d[kStates], second[4 * kStates], sums[kStates][8] = {};
      if (s > 0) add_parts(kStage, s, dh);
#pragma unroll
      for (int n = 0; n < kStates; ++n) {
        dh[n] = dh[n] * mask[n] + direct[n] + added[n];
        direct[n] = runs(n) ? kept[n] * dh[n] : dh[n];
        through[n] = dh[n] - direct[n];
        of_v[n] = runs(n) ? through[n] * of_h[n] + (products ? 0 : dc[n]) : 0;
        const float w = cell_gain * of_v[n], through_o = runs(n) ? parameter(3) * of_o[n] * through[n] : 0;
        d[n] = cell_deviation[n] * w + (products ? dc[n] : 0);
        const float of_step[4] = {w, w * cell_value[n], k1[n] * d[n] + through_o,
                                  k2[n] * d[n] + through_o * normalized[n][3]};
#pragma unroll
        for (int j = 0; j < 4; ++j) second[4 * n + j] = of_step[j];
      }
      if (normalizes) {
        send_means(kStage, 1, second);
        wait_for_arrival(counted + kStage * 8, s / 2 & 1, params.timed_out, timed_out);
        __syncwarp();

        float mine[4 * kStates];
#pragma unroll
        for (int n = 0; n < kStates; ++n) {
          float4 loaded;
          load_shared(means_in[kStage] + n * kTileMeans, loaded);
          mine[4 * n] = loaded.x, mine[4 * n + 1] = loaded.y, mine[4 * n + 2] = loaded.z, mine[4 * n + 3] = loaded.w;
        }
        sum_over_lanes<kSenders>(mine);
#pragma unroll
        for (int n = 0; n < kStates; ++n) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float own = mine[4 * n + j], other = __shfl_xor_sync(kWholeWarp, own, kSenders);
            sums[n][j] = part_of_lane == 0 ? own : other;
            sums[n][4 + j] = part_of_lane == 0 ? other : own;
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kStates; ++n) {
        const float s1 = sums[n][4] * cell_share, s2 = sums[n][5] * cell_share, reciprocal = cell_deviation[n];
        const float mean = (sums[n][6] - reciprocal * (s1 * sums[n][0] + s2 * sums[n][1])) * gate_share;
        const float dot = (sums[n][7] - reciprocal * (s1 * sums[n][2] + s2 * sums[n][3])) * gate_share;
        const float of_c = d[n] - reciprocal * (s1 + cell_value[n] * s2);
#pragma unroll
        for (int g = 0; g < 3; ++g) du[n][g] = of_c * of_gate[n][g];
        du[n][3] = through[n] * of_o[n];
        if (runs(n)) dc[n] = of_c * forget[n];
#pragma unroll
        for (int g = 0; g < 4; ++g) {
          du[n][g] = runs(n) ? du[n][g] : 0;
          da[n][g] = runs(n) ? deviation[n] * (parameter(g) * du[n][g] - mean - normalized[n][g] * dot) : 0;
          const uint32_t to =
              gradients_out[g] + kPlace * static_cast<uint32_t>(sizeof(shared.gradients[0])) + n * (kTileColumns * 64);
          if constexpr (sizeof(T) == 4) {
            store_shared(true, to, factor_of<T>(da[n][g]));
          } else {
            store_shared_half(to, Element<T>::pack(da[n][g], 0));
          }
        }
      }
      if (step > 0) load_step(step - 1);
    }
    // Off the critical path unless `kStoresEarly`, since no block polls these stores.
    const auto store_outputs = [&] {
      if (unit >= hidden || !is_active[0]) return;
      const auto add_to_sums = [&](int row, const auto& value) {
        float sum = 0;
#pragma unroll
        for (int n = 0; n < kStates; ++n) sum += value(n);
        shared.parameter_sums[row][column][own_unit] += sum;
      };
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        add_to_sums(g, [&](int n) { return du[n][g] * normalized[n][g]; });
        add_to_sums(4 + g, [&](int n) { return du[n][g]; });
      }
      add_to_sums(8, [&](int n) { return of_v[n] * cell_value[n]; });
      add_to_sums(9, [&](int n) { return of_v[n]; });
#pragma unroll
      for (int n = 0; n < kStates; ++n) {
        if (!is_active[n]) return;
        const int64_t at = (params.row_of(step) + sequence(n)) * 4 * hidden + unit;
#pragma unroll
        for (int g = 0; g < 4; ++g) {
          store_float<T>(params.da, at + int64_t{g} * hidden, da[n][g]);
          if (products) store_float<T>(params.dx, at + int64_t{g} * hidden, du[n][g]);
        }
      }
    };
    if (kStoresEarly) store_outputs();
    __syncthreads();

    if (step > 0 || params.dh0 != nullptr) {
#pragma unroll
      for (int pass = 0; pass < kTiles / kPassTiles; ++pass) {
        float sum[COLUMN_TILES][kSets][kPassTiles][4] = {};
        // multiply(k-tile, its weights)
        const auto for_all_tiles = [&](const auto& multiply) {
#pragma unroll
          for (int i = 0; i < Layout::kRegisterTiles; ++i) {
            multiply(i, [&](int m, int half) { return weights[pass * kPassTiles + m][i][half]; });
          }
#pragma unroll 1
          for (int i = 0; i < Layout::kOtherTiles; ++i) {
            multiply(Layout::kRegisterTiles + i, [&](int m, int half) {
              return load_shared(other_weights + ((i * kTiles + pass * kPassTiles + m) * 2 + half) * 512);
            });
          }
        };
        const auto gradient_of = [&](uint32_t first, int i) {
          return first + (kPlace * kKTiles + i) * (kColumns * 64);
        };
        const auto multiply_by_lane = [&](auto columns) {
          float parts[kPassTiles][2][columns()] = {};
          for_all_tiles([&](int i, const auto& fragment) {
            multiply_k_tile_by_lane(parts, fragment, gradient_of(first_gradients, i));
          });
          gather_columns(parts, sum[0]);
        };
        with_few_columns<T, COLUMN_TILES>(place.columns, multiply_by_lane, [&] {
          for_all_tiles([&](int i, const auto& fragment) {
            uint4 b[COLUMN_TILES];
#pragma unroll
            for (int c = 0; c < COLUMN_TILES; ++c) b[c] = load_shared(gradient_of(gradients_in[c], i));
            multiply_k_tile<T>(sum, fragment, b);
          });
        });
        if (Layout::kStages == 1) __syncwarp();  // as in send_means()
#pragma unroll
        for (int c = 0; c < COLUMN_TILES; ++c) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            if (c * kTileColumns + sub * 2 + e >= place.columns || timed_out) continue;
#pragma unroll
            for (int i = 0; i < kPassTiles / Layout::kBundleTiles; ++i) {
              const int bundle = pass * (kPassTiles / Layout::kBundleTiles) + i;
              float part[Layout::kLaneUnits];
#pragma unroll
              for (int j = 0; j < Layout::kLaneUnits; ++j) {
                const int m = i * Layout::kBundleTiles + j / 2, q = j % 2 * 2 + e;
                part[j] = kSets == 1 ? sum[c][0][m][q] : sum[c][0][m][q] + sum[c][kSets - 1][m][q];
              }
              constexpr int kOther = 1 - kStage;
              constexpr int kFirst = kOther % Layout::kStages * CLUSTER * kColumns;
              send_sums(sums_out[bundle] + (kFirst + c * kTileColumns + e) * (kUnits * 4), counts[bundle] + kOther * 8,
                        part);
            }
          }
        }
      }
      if (threadIdx.x == 0) {
        expect_bytes(&shared.arrived[1 - kStage], place.columns * (CLUSTER * kUnits * static_cast<int>(sizeof(float))));
      }
    }

    if (!kStoresEarly) store_outputs();
  };
#pragma unroll 1
  for (int s = 0; s < steps; s += 2) {
    do_step(std::integral_constant<int, 0>(), s);
    if (s + 1 < steps) do_step(std::integral_constant<int, 1>(), s + 1);
  }

  // The initial states. `finishes` once more where the loop has no registers to keep it.
  if (Layout::kWarps == 16 ? pin_in_register(warp) * 32 / kUnits < place.columns : finishes) {
    float dh[kStates] = {};
    if (params.dh0 != nullptr) add_parts(steps % 2, steps, dh);
#pragma unroll
    for (int n = 0; n < kStates; ++n) {
      if (!exists[n]) continue;
      if (params.dh0 != nullptr)
        store_float<T>(params.dh0, int64_t{sequence(n)} * hidden + unit, dh[n] * mask[n] + direct[n]);
      if (params.dc0 != nullptr) store_float<T>(params.dc0, int64_t{sequence(n)} * hidden + unit, dc[n]);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kParameters * kUnits; i += Layout::kThreads) {
    const int row = i / kUnits, own = i % kUnits;
    if (first_unit + own >= hidden) continue;
    float sum = 0;
    for (int c = 0; c < Layout::kSumColumns; ++c) sum += shared.parameter_sums[row][c][own];
    params.sums[(int64_t{place.replica} * kParameters + row) * hidden + first_unit + own] = sum;
  }
  // No block leaves while others may still write to its shared memory.
  sync_cluster();
}

template <class T, prnnRNNMode_t, int EIGHTS, int CLUSTER, int TILES>
cudaError_t launch_norm_cluster_backward(const ResidentShape&, const LayerNormLstmGridParams& params,
                                         cudaStream_t stream) {
  using Layout = LayerNormLstmBackwardLayout<T, 8 * EIGHTS, CLUSTER, TILES>;
  return launch_cluster(layer_norm_lstm_backward<T, 8 * EIGHTS, CLUSTER, TILES>, CLUSTER, Layout::kThreads,
                        sizeof(typename Layout::Shared), static_cast<const LayerNormLstmFloats&>(params), stream);
}

}  // namespace prnn
