// The forward cluster kernel of the LSTM with layer normalisation. Three exchanges a timestep through distributed
// shared memory: h, as in rnn/cuda/cluster/forward.cuh; the moments of a over all gates; the moments of c'.
#pragma once

#include <type_traits>

#include "rnn/cuda/layer_norm/cluster_common.cuh"

namespace prnn {

template <class T, int HIDDEN, int CLUSTER, int COLUMN_TILES>
struct LayerNormLstmForwardLayout : LayerNormLstmLayout<T, HIDDEN, CLUSTER, COLUMN_TILES> {
  using Base = LayerNormLstmLayout<T, HIDDEN, CLUSTER, COLUMN_TILES>;
  static constexpr int kUnits = Base::kUnits, kKTiles = HIDDEN / Base::kTileElements, kSenders = Base::kSenders;
  static constexpr int kParts = kUnits / kTileRows, kShares = Base::kWarps / kParts;  // of rows and of K
  static constexpr int kOwnKTiles = kKTiles / kShares;                                // of a warp
  // The operands in registers; the others lie in shared memory.
  static constexpr bool kIsTf32 = sizeof(T) == 4 && !kExact<T>;
  static constexpr int kRegisterQuads = Base::kRegisterQuads + (kIsTf32 ? 8 : 0);
  static constexpr int kRegisterTiles = kOwnKTiles * 4 > kRegisterQuads ? kRegisterQuads / 4 : kOwnKTiles;
  static constexpr int kOtherTiles = kOwnKTiles - kRegisterTiles;
  // Whether tiles of both kinds take turns, where there are registers for what is loaded meanwhile. Split factors keep
  // the matrix units busy enough: float32 was not faster.
  static constexpr bool kTakesTurns = kIsTf32 && kOtherTiles > 0 && COLUMN_TILES == 1;
  static constexpr int kColumnFloats = kUnits * 4 + 4;  // 4 off whole lines, against bank conflicts
  static constexpr int kColumns = Base::kColumns, kShareFloats = kColumns * kColumnFloats;
  static_assert(kOwnKTiles * kShares == kKTiles && kParts * kShares == Base::kWarps, "whole k_tiles and warps");

  struct Shared {
    uint4 states[Base::kStages][kKTiles][kColumns][4];  // m * h of a step, in fragment order
    uint4 weights[Base::kWarps][kOtherTiles > 0 ? kOtherTiles : 1][4][kOtherTiles > 0 ? 32 : 1];
    float sums[Base::kStages][kShares][kShareFloats];
    float2 moments[2][kColumns][kSenders];  // of a and of c': each group's sum, and its squares around its own mean
    float parameters[kLayerNormLstmParameterRows][kUnits];
    uint64_t arrived[2];          // counts the bytes of `states`
    uint64_t moments_arrived[2];  // of `moments`
  };
};

// The moments of elements that SENDERS groups of lanes in a cluster have, UNITS times some number each, from the sums
// that each group sends: one to a lane, in turn. The squares around the groups' own means are brought to the common
// mean, so that a large mean costs no digits.
template <int SENDERS, int UNITS>
struct Moments {
  float units, units_share;  // of this lane's sender, and 1 / units; 0 where that is 0
  float share;               // 1 / H

  __device__ Moments(int hidden, int sender) {
    units = static_cast<float>(max(0, min(UNITS, hidden - sender * UNITS)));
    units_share = units > 0 ? 1.0f / units : 0;
    share = 1.0f / hidden;
  }

  // {mean, 1 / deviation} of ELEMENTS a unit. At `address`: {sum, squares} of this lane's sender.
  template <int ELEMENTS>
  __device__ float2 of(uint32_t address, float epsilon) const {
    float2 own;
    load_shared(address, own);
    float sum[1] = {own.x};
    sum_over_lanes<SENDERS>(sum);
    const float mean = sum[0] * (share * (1.0f / ELEMENTS)), off = own.x - mean * (units * ELEMENTS);
    float squares[1] = {own.y + off * off * (units_share * (1.0f / ELEMENTS))};
    sum_over_lanes<SENDERS>(squares);
    return {mean, rsqrtf(squares[0] * (share * (1.0f / ELEMENTS)) + epsilon)};
  }
};

template <class T, int HIDDEN, int CLUSTER, int COLUMN_TILES>
__global__ void __launch_bounds__((LayerNormLstmForwardLayout<T, HIDDEN, CLUSTER, COLUMN_TILES>::kThreads), 1)
    layer_norm_lstm_forward(const __grid_constant__ LayerNormLstmFloats params) {
  if constexpr (!kHasClusters) return;
  using Layout = LayerNormLstmForwardLayout<T, HIDDEN, CLUSTER, COLUMN_TILES>;
  constexpr int kUnits = Layout::kUnits, kKTiles = Layout::kKTiles, kTileElements = Layout::kTileElements;
  constexpr int kGroup = Layout::kGroup, kSenders = Layout::kSenders, kColumns = Layout::kColumns;
  constexpr int kStates = COLUMN_TILES, kSets = COLUMN_TILES == 1 ? 2 : 1;  // chains of sums, to hide their latency
  constexpr Digits kDigits = digits_of<T>();
  constexpr bool kLoadsLate = COLUMN_TILES > 1 && sizeof(T) == 4;  // few registers for two steps' inputs

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

  // This thread finishes one unit of a sequence of each column tile.
  const int own_unit = threadIdx.x % kUnits, column = threadIdx.x / kUnits;
  const int unit = first_unit + own_unit;
  const bool finishes = warp * 32 / kUnits < place.columns;  // a warp does or does not
  const int group = own_unit / kGroup, of_group = own_unit % kGroup;
  const float units_here = static_cast<float>(max(0, min(kGroup, hidden - first_unit - group * kGroup)));
  const float mean_share = units_here > 0 ? 1.0f / units_here : 0;  // of the group's units
  const Moments<kSenders, kGroup> moments(hidden, of_group % kSenders);
  const auto sequence = [&](int i) { return place.first_column + column + i * kTileColumns; };
  bool is_active[kStates] = {}, exists[kStates] = {};
  int length[kStates];
  float mask[kStates], before[kStates], carried[kStates];  // before: h
#pragma unroll
  for (int i = 0; i < kStates; ++i) {
    is_active[i] = column + i * kTileColumns < place.columns;
    exists[i] = unit < hidden && is_active[i];
    const auto load = [&](const void* from, float otherwise) {
      return from != nullptr && exists[i] ? load_float<T>(from, int64_t{sequence(i)} * hidden + unit) : otherwise;
    };
    length[i] = is_active[i] ? params.length_of(sequence(i)) : 0;
    mask[i] = load(params.recurrent_mask, 1);
    before[i] = load(params.h0, 0);
    carried[i] = load(params.c0, 0);
  }

  uint32_t input[kStates][4], zone[kStates];
  const T* const zones = static_cast<const T*>(params.zoneout_mask != nullptr ? params.zoneout_mask : params.x);
  const auto load_step = [&](int s) {
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      const int64_t row = exists[i] && s < steps ? params.row_of(s) + sequence(i) : 0, u = exists[i] ? unit : 0;
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        input[i][g] = load_bits(static_cast<const T*>(params.x) + ((row * 4 + g) * hidden + u));
      }
      zone[i] = load_bits(zones + (row * hidden + u));
    }
  };

  const uint32_t arrived = shared_address(&shared.arrived[0]), counted = shared_address(&shared.moments_arrived[0]);
  const uint32_t word_at = shared_address(&shared.states[0][unit / kTileElements][column % kTileColumns][0]) +
                           unit % kTileElements * static_cast<int>(sizeof(T)) / 4 * 4;
  const uint32_t halves = lane % 2 == 0 ? 0x5410 : 0x1054;  // own and other half of a word
  const auto publish = [&](int stage, const float (&h)[kStates]) {
    // A word of 16-bit elements has two units: even lanes send it to the first half of the cluster, odd ones to the
    // other.
    constexpr int kSharing = 4 / sizeof(T);
    const uint32_t to = word_at + stage % Layout::kStages * static_cast<uint32_t>(sizeof(shared.states[0]));
    uint32_t word[kStates];
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      word[i] = factor_of<T>(Element<T>::pack(mask[i] * h[i], 0));
      if constexpr (kSharing == 2) word[i] = __byte_perm(word[i], __shfl_xor_sync(kWholeWarp, word[i], 1), halves);
    }
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      if (!is_active[i]) return;
#pragma unroll
      for (int p = 0; p < CLUSTER / kSharing; ++p) {
        const uint32_t peer = lane % kSharing * (CLUSTER / kSharing) + p;
        send_word(address_in_rank(to + i * (kTileColumns * 64), peer), address_in_rank(arrived + stage * 8, peer),
                  word[i]);
      }
    }
  };

  // Moments of what the cluster's threads have, in `kind`'s place. No block sends those of the next step before it has
  // all states of that step, which every warp publishes after it has read these: one place is enough.
  bool timed_out = false;
  constexpr uint32_t kTileMoments = kTileColumns * sizeof(shared.moments[0][0]);  // bytes of a column tile
  // Lanes of even multiples of kSenders bring the first column tile's together, the others those of the second one.
  const int tile_of_lane = of_group / kSenders % kStates, own_column = column % kTileColumns;
  const uint32_t moments_at =
      shared_address(&shared.moments[0][tile_of_lane * kTileColumns + own_column][of_group % kSenders]);
  uint32_t peer_moments = address_in_rank(
      shared_address(&shared.moments[0][own_column][place.rank * Layout::kGroups + group]), of_group % CLUSTER);
  uint32_t peer_counted = address_in_rank(counted, of_group % CLUSTER);
  pin_in_register(peer_moments);
  pin_in_register(peer_counted);
  const auto exchange_moments = [&](auto kind, int s, const auto& values, auto& result) {
    constexpr uint32_t kKind = decltype(kind)::value, kOffset = kKind * sizeof(shared.moments[0]);
    constexpr int kElements = std::extent_v<std::remove_reference_t<decltype(values)>, 1>;
    // Around one of the numbers, so that a large mean costs no digits and both sums go over the lanes together.
    float origin[kStates], sums[2 * kStates] = {};
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      origin[i] = __shfl_sync(kWholeWarp, values[i][0], 0, kGroup);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const float off = exists[i] ? values[i][e] - origin[i] : 0;
        sums[2 * i] += off;
        sums[2 * i + 1] += off * off;
      }
    }
    sum_over_lanes<kGroup>(sums);
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      const float around = sums[2 * i], sum = around + units_here * kElements * origin[i];
      const float squares = fmaxf(sums[2 * i + 1] - around * around * (mean_share * (1.0f / kElements)), 0);
      if (is_active[i] && of_group < CLUSTER && !timed_out) {
        send_pair(peer_moments + kOffset + i * kTileMoments, peer_counted + kKind * 8, sum, squares);
      }
    }
    if (threadIdx.x == 0) {
      expect_bytes(&shared.moments_arrived[kKind], place.columns * kSenders * static_cast<int>(sizeof(float2)));
    }
    wait_for_arrival(counted + kKind * 8, s & 1, params.timed_out, timed_out);
    __syncwarp();
    result[0] = moments.template of<kElements>(moments_at + kOffset, params.epsilon);
    if constexpr (kStates == 2) {
      const float2 own = result[0],
                   other = {__shfl_xor_sync(kWholeWarp, own.x, kSenders), __shfl_xor_sync(kWholeWarp, own.y, kSenders)};
      result[0] = tile_of_lane == 0 ? own : other;
      result[1] = tile_of_lane == 0 ? other : own;
    }
  };

  sync_cluster();  // after it, all barriers are there, and so are the parameters
  if (finishes) {
    publish(0, before);
    if (!kLoadsLate) load_step(0);
  }

  // Where this lane reads states, writes sums of rows, and reads those of its unit.
  const uint32_t first_states = shared_address(&shared.states[0][share][0][sub]);
  uint32_t states[COLUMN_TILES];
#pragma unroll
  for (int c = 0; c < COLUMN_TILES; ++c) {
    states[c] = first_states + min(c * kTileColumns + lane / 4, place.columns - 1) * 64;
    if (COLUMN_TILES == 1) pin_in_register(states[c]);
  }
  uint32_t sums_out =
      shared_address(&shared.sums[0][share][sub * 2 * Layout::kColumnFloats + (part * kTileRows + lane / 4) * 4]);
  uint32_t sums_in = shared_address(&shared.sums[0][0][column % kTileColumns * Layout::kColumnFloats + own_unit * 4]);
  pin_in_register(sums_out);
  uint32_t other_weights = shared_address(&shared.weights[warp][0][0][Layout::kOtherTiles > 0 ? lane : 0]);
  if (Layout::kOtherTiles > 0) pin_in_register(other_weights);
  pin_in_register(sums_in);
  bool has_column[COLUMN_TILES][2];
#pragma unroll
  for (int c = 0; c < COLUMN_TILES; ++c) {
#pragma unroll
    for (int e = 0; e < 2; ++e) has_column[c][e] = c * kTileColumns + sub * 2 + e < place.columns;
  }
  constexpr uint32_t kTileSums = kTileColumns * Layout::kColumnFloats * 4;  // bytes of a column tile
  const auto parameter = [&](int row) { return shared.parameters[row][own_unit]; };

  // Stages are known when compiling: two steps are one iteration.
  const auto do_step = [&](auto stage_constant, int s) {
    constexpr int kStage = decltype(stage_constant)::value, kPlace = kStage % Layout::kStages;
    float fed[kStates][4], kept[kStates];
    const auto take_loaded = [&] {
#pragma unroll
      for (int i = 0; i < kStates; ++i) {
#pragma unroll
        for (int g = 0; g < 4; ++g) {
          fed[i][g] = exists[i] ? value_of_bits<T>(input[i][g]) : 0;
          if (!kLoadsLate) pin_in_register(fed[i][g]);
        }
        kept[i] = params.zoneout_mask != nullptr ? value_of_bits<T>(zone[i]) : params.zoneout;
      }
    };
    if (!kLoadsLate) {
      take_loaded();
    } else if (finishes) {
      load_step(s);
    }
    uint4 next[4];  // of the weights in shared memory
    const auto load_next = [&](int i) {
#pragma unroll
      for (int g = 0; g < 4; ++g) next[g] = load_shared(other_weights + (i * 4 + g) * 512);
    };
    if (Layout::kTakesTurns) load_next(0);
    wait_for_arrival(arrived + kStage * 8, s / 2 & 1, params.timed_out, timed_out);
    __syncwarp();
    float sum[COLUMN_TILES][kSets][2][4] = {};
    // multiply(k-tile of this warp, its weights)
    const auto for_all_tiles = [&](const auto& multiply) {
      constexpr int kRegister = Layout::kRegisterTiles, kOther = Layout::kOtherTiles;
      const auto multiply_registers = [&](int first, int end) {
#pragma unroll
        for (int i = first; i < end; ++i) multiply(i, [&](int m, int half) { return weights[i][2 * m + half]; });
      };
      if constexpr (Layout::kTakesTurns) {
        // The operands in registers hide the loads of the others.
#pragma unroll
        for (int i = 0; i < kOther; ++i) {
          multiply_registers(i * kRegister / kOther, (i + 1) * kRegister / kOther);
          multiply(kRegister + i, [&](int m, int half) { return next[2 * m + half]; });
          if (i + 1 < kOther) load_next(i + 1);
        }
      } else {
        multiply_registers(0, kRegister);
#pragma unroll Layout::kWarps == 16 ? 1 : 2
        for (int i = 0; i < kOther; ++i) {
          multiply(kRegister + i,
                   [&](int m, int half) { return load_shared(other_weights + (i * 4 + 2 * m + half) * 512); });
        }
      }
    };
    const auto state_of = [&](uint32_t first, int i) {
      return first + (kPlace * kKTiles + i * Layout::kShares) * (kColumns * 64);
    };
    const auto multiply_by_lane = [&](auto columns) {
      float parts[2][2][columns()] = {};
      for_all_tiles(
          [&](int i, const auto& fragment) { multiply_k_tile_by_lane(parts, fragment, state_of(first_states, i)); });
      gather_columns(parts, sum[0]);
    };
    with_few_columns<T, COLUMN_TILES>(place.columns, multiply_by_lane, [&] {
      for_all_tiles([&](int i, const auto& fragment) {
        uint4 b[COLUMN_TILES];
#pragma unroll
        for (int c = 0; c < COLUMN_TILES; ++c) b[c] = load_shared(state_of(states[c], i));
        multiply_k_tile<T>(sum, fragment, b);
      });
    });
#pragma unroll
    for (int c = 0; c < COLUMN_TILES; ++c) {
      const auto total = [&](int g, int e) {
        const float first = sum[c][0][g / 2][g % 2 * 2 + e];
        return kSets == 1 ? first : first + sum[c][kSets - 1][g / 2][g % 2 * 2 + e];
      };
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        store_shared(has_column[c][e],
                     sums_out + kPlace * static_cast<uint32_t>(sizeof(shared.sums[0])) + c * kTileSums +
                         e * Layout::kColumnFloats * 4,
                     float4{total(0, e), total(1, e), total(2, e), total(3, e)});
      }
    }
    __syncthreads();
    if (!finishes) return;
    if (kLoadsLate) {
      take_loaded();
    } else {
      load_step(s + 1);
    }

    float a[kStates][4];
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      // Sums over the shares of K.
      float4 value[Layout::kShares];
#pragma unroll
      for (int k = 0; k < Layout::kShares; ++k) {
        load_shared(sums_in + (kPlace * Layout::kShares + k) * (Layout::kShareFloats * 4) + i * kTileSums, value[k]);
      }
      add_all(value);
      a[i][0] = value[0].x, a[i][1] = value[0].y, a[i][2] = value[0].z, a[i][3] = value[0].w;
#pragma unroll
      for (int g = 0; g < 4; ++g) a[i][g] = exists[i] ? (products ? a[i][g] : a[i][g] + fed[i][g]) : 0;
    }
    float2 gates[kStates], cells[kStates];
#pragma unroll
    for (int i = 0; i < kStates; ++i) gates[i] = cells[i] = {0, 1};
    if (normalizes) exchange_moments(std::integral_constant<int, 0>(), s, a, gates);
    float c[kStates][1], output_gate[kStates];
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      float gate[4];
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        a[i][g] = (a[i][g] - gates[i].x) * gates[i].y;
        const float u = parameter(g) * a[i][g] + parameter(4 + g);
        gate[g] = squash<kDigits>(products ? u + fed[i][g] : u, g == 2);
      }
      c[i][0] = exists[i] ? gate[1] * carried[i] + gate[0] * gate[2] : 0;
      output_gate[i] = gate[3];
    }
    if (normalizes) exchange_moments(std::integral_constant<int, 1>(), s, c, cells);
    T stored[kStates];
    float normalized[kStates];
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      normalized[i] = (c[i][0] - cells[i].x) * cells[i].y;
      const float v = parameter(8) * normalized[i] + parameter(9);
      const bool runs = params.timestep_of(s) < length[i];
      if (runs) carried[i] = products ? c[i][0] : v;
      float h = output_gate[i] * hyperbolic_tangent<kDigits>(v);
      h = runs ? zone_out(kept[i], before[i], h) : before[i];
      stored[i] = Element<T>::from_float(exists[i] ? h : 0);
      before[i] = Element<T>::to_float(stored[i]);
    }
    if (s + 1 < steps && !timed_out) publish(1 - kStage, before);

    // Off the critical path: no block polls these stores.
    if (threadIdx.x == 0 && s + 1 < steps) expect_states(1 - kStage);
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      if (!is_active[i]) return;
      const int64_t row = params.row_of(s) + sequence(i);
      if (params.stats != nullptr && place.rank == 0 && own_unit == 0) {
        *reinterpret_cast<float4*>(params.stats + row * 4) = {gates[i].y, cells[i].x, cells[i].y, 0};
      }
      if (!exists[i]) return;
      const int64_t at = row * hidden + unit;
      static_cast<T*>(params.y)[at] = stored[i];
      if (params.gates != nullptr) {
        Four<T> four;
#pragma unroll
        for (int g = 0; g < 4; ++g) four.value[g] = Element<T>::from_float(a[i][g]);
        static_cast<Four<T>*>(params.gates)[at] = four;
        store_float<T>(params.cells, at, normalized[i]);
      }
      if (s + 1 == steps && params.cy != nullptr)
        store_float<T>(params.cy, int64_t{sequence(i)} * hidden + unit, carried[i]);
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

template <class T, prnnRNNMode_t, int EIGHTS, int CLUSTER, int TILES>
cudaError_t launch_norm_cluster_forward(const ResidentShape&, const LayerNormLstmGridParams& params,
                                        cudaStream_t stream) {
  using Layout = LayerNormLstmForwardLayout<T, 8 * EIGHTS, CLUSTER, TILES>;
  return launch_cluster(layer_norm_lstm_forward<T, 8 * EIGHTS, CLUSTER, TILES>, CLUSTER, Layout::kThreads,
                        sizeof(typename Layout::Shared), static_cast<const LayerNormLstmFloats&>(params), stream);
}

}  // namespace prnn
