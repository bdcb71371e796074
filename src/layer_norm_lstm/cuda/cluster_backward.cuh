// The backward cluster kernel of the LSTM with layer normalisation: as rnn/cuda/cluster/backward.cuh, and one more
// exchange a timestep, of the sums that both normalisations' gradients are made of.
//
// Those of LN(a) depend on those of LN(c'), but linearly, so that all go at once. With dc' = d - r (s1 + LN(c') s2),
// where d = r w + (the gradient carried from the step after), w = cellGain dv, r the reciprocal of the deviation of c',
// s1 and s2 the means of w and w LN(c'), and du_k = dc' k for the gates i, f, g, the sums of gateGain du and of
// gateGain du LN(a) are sums of K1 d and K2 d, less r times those of K1, K1 LN(c'), K2 and K2 LN(c') times s1 and s2,
// with K1 the sum over the gates of gateGain k, K2 that of gateGain k LN(a).
#pragma once

#include <type_traits>

#include "layer_norm_lstm/cuda/cluster_common.cuh"
#include "rnn/cuda/cluster/backward.cuh"
#include "rnn/cuda/cluster/backward_weights.cuh"

namespace prnn {

template <class T, int HIDDEN, int CLUSTER>
struct LayerNormLstmBackwardLayout : LayerNormLstmLayout<T, HIDDEN, CLUSTER> {
  using Base = LayerNormLstmLayout<T, HIDDEN, CLUSTER>;
  static constexpr int kUnits = Base::kUnits, kGates = 4, kSenders = Base::kSenders;
  static constexpr int kRows = HIDDEN;                              // of R', all units
  static constexpr int kTiles = HIDDEN / 16 / Base::kWarps;         // of 16 rows, of a warp
  static constexpr int kKTiles = 4 * kUnits / Base::kTileElements;  // of the block's gates
  // Units of one block that a warp has sums of.
  static constexpr int kBundle = kUnits < kTiles * 16 ? kUnits : kTiles * 16, kBundleTiles = kBundle / 16;
  static constexpr int kBundles = kTiles / kBundleTiles;
  static constexpr int kColumns = layer_norm_lstm_cluster_columns(kUnits);
  static constexpr int kLaneUnits = kBundle / 8;                           // of a bundle: what a lane has of a sequence
  static constexpr int kSets = kTiles >= 4 || Base::kWarps == 16 ? 1 : 2;  // chains of sums, to hide their latency
  // Those in registers; the others lie in shared memory.
  static constexpr int kQuads = kTiles * kKTiles * 2;
  static constexpr int kRegisterTiles = kQuads > Base::kRegisterQuads ? Base::kRegisterQuads / (2 * kTiles) : kKTiles;
  static constexpr int kOtherTiles = kKTiles - kRegisterTiles;
  static_assert(kBundles * kBundleTiles == kTiles, "whole bundles");

  struct Shared {
    float sums[2][CLUSTER][kTileColumns][kUnits];  // of each block's gates
    uint4 gradients[2][kKTiles][kTileColumns][4];  // of this block's gates, in fragment order
    uint4 weights[Base::kWarps][kOtherTiles > 0 ? kOtherTiles : 1][kTiles][2][kOtherTiles > 0 ? 32 : 1];
    float4 means[2][2][kTileColumns][kSenders];  // each group's sums: of what forward kept; with gradients
    float parameters[kLayerNormLstmParameterRows][kUnits];
    float parameter_sums[kLayerNormLstmParameterRows][kColumns][kUnits];
    uint64_t arrived[2];        // counts the bytes of `sums`
    uint64_t means_arrived[2];  // of `means`
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

// What forward kept of a unit's LN(a), as it is loaded.
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

template <class T, int HIDDEN, int CLUSTER>
__global__ void __launch_bounds__((LayerNormLstmBackwardLayout<T, HIDDEN, CLUSTER>::kThreads), 1)
    layer_norm_lstm_backward(const __grid_constant__ LayerNormLstmFloats params) {
  if constexpr (!kHasClusters) return;
  using Layout = LayerNormLstmBackwardLayout<T, HIDDEN, CLUSTER>;
  constexpr int kUnits = Layout::kUnits, kKTiles = Layout::kKTiles, kTiles = Layout::kTiles, kSets = Layout::kSets;
  constexpr int kParameters = kLayerNormLstmParameterRows, kGroup = Layout::kGroup, kSenders = Layout::kSenders;
  constexpr bool kAccurate = sizeof(T) == 4;
  constexpr bool kStoresEarly = kExact<T> || Layout::kWarps == 16;  // no registers to wait for the product

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const LayerNormLstmPlace place = place_in_cluster<CLUSTER>(params);
  const int first_unit = place.rank * kUnits, hidden = Layout::hidden_of(params), steps = params.sizes.steps;
  const bool products = params.products != 0, normalizes = params.normalizes != 0;

  extern __shared__ uint4 dynamic_shared[];
  typename Layout::Shared& shared = *reinterpret_cast<typename Layout::Shared*>(dynamic_shared);
  for (int i = threadIdx.x; i < 2 * kKTiles * kTileColumns * 4; i += Layout::kThreads) {
    (&shared.gradients[0][0][0][0])[i] = {0, 0, 0, 0};  // K beyond the last gate
  }
  for (int i = threadIdx.x; i < kParameters * Layout::kColumns * kUnits; i += Layout::kThreads) {
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

  // What this thread finishes: one unit of one sequence.
  const int own_unit = threadIdx.x % kUnits, column = threadIdx.x / kUnits;
  const int unit = first_unit + own_unit, n = place.first_column + column;
  const bool finishes = warp * 32 / kUnits < place.columns;  // a warp does or does not
  const bool is_active = column < place.columns, exists = unit < hidden && is_active;
  const int length = is_active ? params.length_of(n) : 0;
  const int64_t state_at = exists ? int64_t{n} * hidden + unit : 0;
  const float mask = params.recurrent_mask != nullptr && exists ? load_float<T>(params.recurrent_mask, state_at) : 1.0f;
  const float cell_share = 1.0f / hidden, gate_share = 0.25f / hidden;
  float dc = params.dcy != nullptr && exists ? load_float<T>(params.dcy, state_at) : 0;
  float direct = 0;  // the gradient of h that went past the matrix
  const auto parameter = [&](int row) { return shared.parameters[row][own_unit]; };

  // What the forward pass left of a step, and the next step's c: a step's c is the one before of the step after.
  uint32_t dy, zone, input[4], cell, cell_before;
  KeptGates<T> gates;
  float4 stats, stats_before;
  const T* const zones = static_cast<const T*>(params.zoneout_mask != nullptr ? params.zoneout_mask : params.dy);
  const auto row_of = [&](int s) { return is_active ? params.row_of(max(s, 0)) + n : 0; };  // s: of the recurrence
  const auto load_cell = [&](int s) {
    cell_before = load_bits(static_cast<const T*>(params.cells) + (row_of(s) * hidden + (exists ? unit : 0)));
    stats_before = __ldcs(reinterpret_cast<const float4*>(params.stats) + row_of(s));
  };
  const auto load_step = [&](int s) {
    const int64_t row = row_of(s), u = exists ? unit : 0, at = row * hidden + u;
    dy = load_bits(static_cast<const T*>(params.dy) + at);
    zone = load_bits(zones + at);
    gates = __ldcs(reinterpret_cast<const KeptGates<T>*>(static_cast<const T*>(params.gates) + at * 4));
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      input[g] = load_bits(static_cast<const T*>(params.x) + ((row * 4 + g) * hidden + u));
    }
    cell = cell_before;
    stats = stats_before;
    load_cell(s - 1);
  };
  const float initial_cell = params.c0 != nullptr && exists ? load_float<T>(params.c0, state_at) : 0;

  // Where this thread reads the sums of its unit and puts its gates' gradients, where its warp reads the latter, and
  // where in every block its sums go.
  const uint32_t arrived = shared_address(&shared.arrived[0]), counted = shared_address(&shared.means_arrived[0]);
  uint32_t sums_in = shared_address(&shared.sums[0][0][column % kTileColumns][own_unit]);
  uint32_t gradients_in = shared_address(&shared.gradients[0][0][min(lane / 4, place.columns - 1)][sub]);
  const uint32_t first_gradients = shared_address(&shared.gradients[0][0][0][sub]);
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
  pin_in_register(gradients_in);
  uint32_t other_weights = shared_address(&shared.weights[warp][0][0][0][Layout::kOtherTiles > 0 ? lane : 0]);
  if (Layout::kOtherTiles > 0) pin_in_register(other_weights);

  // A group's sums of 4 values, which lane `rank` of it sends to block `rank`. Two stages: a block sends the first
  // ones of a step while others may still read those of the step before, but no earlier ones.
  const int of_group = own_unit % kGroup, sender = place.rank * Layout::kGroups + own_unit / kGroup;
  const uint32_t peer = of_group % CLUSTER;
  uint32_t peer_means = address_in_rank(shared_address(&shared.means[0][0][column % kTileColumns][sender]), peer);
  uint32_t peer_counted = address_in_rank(counted, peer);
  pin_in_register(peer_means);
  pin_in_register(peer_counted);
  constexpr uint32_t kStageBytes = sizeof(shared.means[0]), kPartBytes = sizeof(shared.means[0][0]);
  bool timed_out = false;
  const auto send_means = [&](uint32_t stage, uint32_t part, float (&values)[4]) {
    sum_over_lanes<kGroup>(values);
    if (is_active && of_group < CLUSTER && !timed_out) {
      send_to_rank(peer_means + stage * kStageBytes + part * kPartBytes, peer_counted + stage * 8,
                   {values[0], values[1], values[2], values[3]});
    }
  };
  // Lanes of even multiples of kSenders add the first sums of all groups, those of odd ones the others.
  const int part_of_lane = of_group / kSenders % 2;
  const uint32_t means_in = shared_address(&shared.means[0][part_of_lane][column % kTileColumns][of_group % kSenders]);

  if (finishes) {
    load_cell(steps - 1);
    load_step(steps - 1);
  }
  sync_cluster();  // after it, all barriers are there, and so are the parameters

  const auto add_parts = [&](int stage, int s) {
    wait_for_arrival(arrived + stage * 8, (s - 1) / 2 & 1, params.timed_out, timed_out);
    __syncwarp();
    float parts[CLUSTER];
#pragma unroll
    for (int i = 0; i < CLUSTER; ++i) {
      load_shared(sums_in + (stage * CLUSTER + i) * (kTileColumns * kUnits * 4), parts[i]);
    }
    add_all(parts);
    return parts[0];
  };

  // Stages are known when compiling: two steps are one iteration. `s` counts from the last timestep.
  const auto do_step = [&](auto stage_constant, int s) {
    constexpr int kStage = decltype(stage_constant)::value;
    const int step = steps - 1 - s;
    const bool runs = exists && params.timestep_of(step) < length;
    float du[4] = {0, 0, 0, 0}, da[4] = {0, 0, 0, 0};
    float normalized[4], cell_value = 0, of_v = 0;
    if (finishes) {
      // All that does not need dh.
      unpack_gates<T>(gates, runs, normalized);
      float value[4];
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        const float sum = parameter(g) * normalized[g] + parameter(4 + g);
        value[g] = squash<kAccurate>(products ? sum + value_of_bits<T>(input[g]) : sum, g == 2);
      }
      cell_value = runs ? value_of_bits<T>(cell) : 0;
      const float deviation = stats.x, cell_deviation = stats.z, cell_gain = parameter(8);
      const float squashed = hyperbolic_tangent<kAccurate>(cell_gain * cell_value + parameter(9));
      const float kept = value_of_bits<T>(cell_before);
      const float c_before = params.is_first(step, length) ? initial_cell
                             : products                    ? stats_before.y + kept / stats_before.z
                                                           : cell_gain * kept + parameter(9);
      const float added = value_of_bits<T>(dy);
      const float zoneout = params.zoneout_mask != nullptr ? value_of_bits<T>(zone) : params.zoneout;
      const float i = value[0], f = value[1], candidate = value[2], o = value[3];
      const float of_gate[3] = {candidate * i * (1 - i), c_before * f * (1 - f), i * (1 - candidate * candidate)};
      const float of_o = squashed * o * (1 - o), of_h = o * (1 - squashed * squashed);
      float k1 = 0, k2 = 0;
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        const float scaled = runs ? parameter(g) * of_gate[g] : 0;
        k1 += scaled;
        k2 += scaled * normalized[g];
      }
      if (normalizes) {
        float first[4] = {k1, k1 * cell_value, k2, k2 * cell_value};
        send_means(kStage, 0, first);
        if (threadIdx.x == 0) expect_bytes(&shared.means_arrived[kStage], place.columns * kSenders * 32);
      }

      const float dh = (s > 0 ? add_parts(kStage, s) * mask : 0) + direct + added;
      direct = runs ? zoneout * dh : dh;
      const float through = dh - direct;
      of_v = runs ? through * of_h + (products ? 0 : dc) : 0;
      const float w = cell_gain * of_v, through_o = runs ? parameter(3) * of_o * through : 0;
      const float d = cell_deviation * w + (products ? dc : 0);
      float sums[8] = {};
      if (normalizes) {
        float second[4] = {w, w * cell_value, k1 * d + through_o, k2 * d + through_o * normalized[3]};
        send_means(kStage, 1, second);
        wait_for_arrival(counted + kStage * 8, s / 2 & 1, params.timed_out, timed_out);
        __syncwarp();

        float4 loaded;
        load_shared(means_in + kStage * kStageBytes, loaded);
        float mine[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
        sum_over_lanes<kSenders>(mine);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float other = __shfl_xor_sync(kWholeWarp, mine[j], kSenders);
          sums[j] = part_of_lane == 0 ? mine[j] : other;
          sums[4 + j] = part_of_lane == 0 ? other : mine[j];
        }
      }
      const float s1 = sums[4] * cell_share, s2 = sums[5] * cell_share;
      const float mean = (sums[6] - cell_deviation * (s1 * sums[0] + s2 * sums[1])) * gate_share;
      const float dot = (sums[7] - cell_deviation * (s1 * sums[2] + s2 * sums[3])) * gate_share;
      const float of_c = d - cell_deviation * (s1 + cell_value * s2);
#pragma unroll
      for (int g = 0; g < 3; ++g) du[g] = of_c * of_gate[g];
      du[3] = through * of_o;
      if (runs) dc = of_c * f;
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        du[g] = runs ? du[g] : 0;
        da[g] = runs ? deviation * (parameter(g) * du[g] - mean - normalized[g] * dot) : 0;
        const uint32_t to = gradients_out[g] + kStage * static_cast<uint32_t>(sizeof(shared.gradients[0]));
        if constexpr (sizeof(T) == 4) {
          store_shared(true, to, factor_of<T>(da[g]));
        } else {
          store_shared_half(to, Element<T>::pack(da[g], 0));
        }
      }
      if (step > 0) load_step(step - 1);
    }
    // Off the critical path unless `kStoresEarly`, since no block polls these stores.
    const auto store_outputs = [&] {
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        shared.parameter_sums[g][column][own_unit] += du[g] * normalized[g];
        shared.parameter_sums[4 + g][column][own_unit] += du[g];
      }
      shared.parameter_sums[8][column][own_unit] += of_v * cell_value;
      shared.parameter_sums[9][column][own_unit] += of_v;
      const int64_t at = (params.row_of(step) + n) * 4 * hidden + unit;
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        store_float<T>(params.da, at + int64_t{g} * hidden, da[g]);
        if (products) store_float<T>(params.dx, at + int64_t{g} * hidden, du[g]);
      }
    };
    if (kStoresEarly && exists) store_outputs();
    __syncthreads();

    if (step > 0 || params.dh0 != nullptr) {
      float sum[kSets][kTiles][4] = {};
      // multiply(k-tile, its weights)
      const auto for_all_tiles = [&](const auto& multiply) {
#pragma unroll
        for (int i = 0; i < Layout::kRegisterTiles; ++i) {
          multiply(i, [&](int m, int half) { return weights[m][i][half]; });
        }
#pragma unroll 1
        for (int i = 0; i < Layout::kOtherTiles; ++i) {
          multiply(Layout::kRegisterTiles + i,
                   [&](int m, int half) { return load_shared(other_weights + ((i * kTiles + m) * 2 + half) * 512); });
        }
      };
      const auto gradient_of = [&](uint32_t first, int i) {
        return first + (kStage * kKTiles + i) * (kTileColumns * 64);
      };
      const auto multiply_by_lane = [&](auto columns) {
        float parts[kTiles][2][columns()] = {};
        for_all_tiles([&](int i, const auto& fragment) {
          multiply_k_tile_by_lane(parts, fragment, gradient_of(first_gradients, i));
        });
        gather_columns(parts, sum);
      };
      with_few_columns<T>(place.columns, multiply_by_lane, [&] {
        for_all_tiles([&](int i, const auto& fragment) {
          multiply_k_tile<T>(sum, fragment, load_shared(gradient_of(gradients_in, i)));
        });
      });
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (sub * 2 + e >= place.columns || timed_out) continue;
#pragma unroll
        for (int i = 0; i < Layout::kBundles; ++i) {
          float part[Layout::kLaneUnits];
#pragma unroll
          for (int j = 0; j < Layout::kLaneUnits; ++j) {
            const int m = i * Layout::kBundleTiles + j / 2, q = j % 2 * 2 + e;
            part[j] = kSets == 1 ? sum[0][m][q] : sum[0][m][q] + sum[kSets - 1][m][q];
          }
          constexpr int kOther = 1 - kStage;
          send_sums(sums_out[i] + (kOther * CLUSTER * kTileColumns + e) * (kUnits * 4), counts[i] + kOther * 8, part);
        }
      }
      if (threadIdx.x == 0) {
        expect_bytes(&shared.arrived[1 - kStage], place.columns * (CLUSTER * kUnits * static_cast<int>(sizeof(float))));
      }
    }

    if (!kStoresEarly && exists) store_outputs();
  };
#pragma unroll 1
  for (int s = 0; s < steps; s += 2) {
    do_step(std::integral_constant<int, 0>(), s);
    if (s + 1 < steps) do_step(std::integral_constant<int, 1>(), s + 1);
  }

  // The initial states.
  if (finishes) {
    if (params.dh0 != nullptr) {
      const float dh = add_parts(steps % 2, steps) * mask + direct;
      if (exists) store_float<T>(params.dh0, state_at, dh);
    }
    if (params.dc0 != nullptr && exists) store_float<T>(params.dc0, state_at, dc);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kParameters * kUnits; i += Layout::kThreads) {
    const int row = i / kUnits, own = i % kUnits;
    if (first_unit + own >= hidden) continue;
    float sum = 0;
    for (int c = 0; c < Layout::kColumns; ++c) sum += shared.parameter_sums[row][c][own];
    params.sums[(int64_t{place.replica} * kParameters + row) * hidden + first_unit + own] = sum;
  }
  // No block leaves while others may still write to its shared memory.
  sync_cluster();
}

}  // namespace prnn
