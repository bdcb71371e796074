// The backward cluster kernel: from dy to the gradients of all gates, the transposed recurrent weights in the registers
// of one thread-block cluster. A block has the columns of R' for its own gates, multiplies them with those gates'
// gradients, which it has just made, and sends every block of the cluster its part of dh. Steps run against the forward
// pass; "before" is a timestep earlier there, the step done next.
#pragma once

#include <type_traits>

#include "rnn/cuda/cluster/backward_weights.cuh"
#include "rnn/cuda/common/block.cuh"
#include "rnn/cuda/common/dsmem.cuh"
#include "rnn/cuda/common/launch.cuh"
#include "rnn/cuda/common/sequence.cuh"
#include "rnn/cuda/common/shared_memory.cuh"
#include "rnn/cuda/common/unit_io.cuh"
#include "rnn/plan/cluster.h"

namespace prnn {

template <class T, prnnRNNMode_t MODE, int K_TILES, int CLUSTER>
struct ClusterBackward {
  static constexpr int kKTile = k_tile_elements(sizeof(T) == 4);
  static constexpr int kGates = gate_count(MODE);
  static constexpr int kBiases = kGates > 1 ? 4 : 1;
  static constexpr ClusterBackwardSplit kSplit = cluster_backward_split(kGates, K_TILES, CLUSTER, kKTile);
  static constexpr int kUnits = kSplit.units, kKTiles = kSplit.k_tiles, kTiles = kSplit.tiles;
  static constexpr int kRows = K_TILES * kKTile;  // of R', all units
  static constexpr int kThreads = kSplit.warps * 32;
  static constexpr int kBundle = kSplit.bundle, kBundleTiles = kBundle / 16, kBundles = kTiles / kBundleTiles;
  static constexpr int kLaneUnits = kBundle / 8;     // of a bundle: what a lane has of a sequence
  static constexpr int kSets = kTiles >= 4 ? 1 : 2;  // chains of sums, to hide their latency
  static_assert(kBundles * kBundleTiles == kTiles && kTiles * kSplit.warps * 16 == kRows, "whole bundles");
  static_assert(kUnits * kTileColumns <= kThreads, "a thread for every unit of every sequence");

  struct Shared {
    float sums[2][CLUSTER][kTileColumns][kUnits];  // of each block's gates
    uint4 gradients[2][kKTiles][kTileColumns][4];  // of this block's gates, in fragment order
    BarrierPair arrived;                           // count the bytes of `sums`
    float biases[kBiases][kTileColumns][kUnits];
  };
  static_assert(sizeof(Shared) == kSplit.shared_bytes, "what the plan says");
};

// Sends the sums of 2 or 4 units to a block of the cluster; the barrier there counts them.
__device__ __forceinline__ void send_sums(uint32_t address, uint32_t barrier, const float (&v)[2]) {
  send_words(address, barrier, __float_as_uint(v[0]), __float_as_uint(v[1]));
}
__device__ __forceinline__ void send_sums(uint32_t address, uint32_t barrier, const float (&v)[4]) {
  send_to_rank(address, barrier, {v[0], v[1], v[2], v[3]});
}

__device__ __forceinline__ void store_shared_half(uint32_t address, uint32_t word) {
  asm volatile("{.reg .u16 h; cvt.u16.u32 h,%1; st.shared.u16 [%0],h;}" ::"r"(address), "r"(word) : "memory");
}

// A unit's gates that the forward pass saved, from 8 bytes of 16-bit elements or 16 bytes of floats.
template <class T>
__device__ __forceinline__ void gates_of(const uint2& saved, float (&gates)[4]) {
  gates[0] = element_value<T>(saved.x), gates[1] = element_value<T>(saved.x >> 16);
  gates[2] = element_value<T>(saved.y), gates[3] = element_value<T>(saved.y >> 16);
}
template <class T>
__device__ __forceinline__ void gates_of(const uint4& saved, float (&gates)[4]) {
  gates[0] = element_value<T>(saved.x), gates[1] = element_value<T>(saved.y);
  gates[2] = element_value<T>(saved.z), gates[3] = element_value<T>(saved.w);
}

// EXTRAS: with prnnRNNExtras_t or prnnRNNMasks_t.
template <class T, prnnRNNMode_t MODE, int K_TILES, int CLUSTER, bool EXTRAS>
__global__ void __launch_bounds__((ClusterBackward<T, MODE, K_TILES, CLUSTER>::kThreads), 1)
    cluster_backward(const __grid_constant__ BackwardParams params) {
  if constexpr (!kHasClusters) return;
  using Layout = ClusterBackward<T, MODE, K_TILES, CLUSTER>;
  constexpr bool kGated = MODE != PRNN_RNN_TANH;
  constexpr Digits kDigits = digits_of<T>();
  constexpr int kUnits = Layout::kUnits, kGates = Layout::kGates, kKTiles = Layout::kKTiles, kTiles = Layout::kTiles;
  constexpr int kSets = Layout::kSets, kBiases = Layout::kBiases;

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const int rank = static_cast<int>(cluster_rank());
  const BlockPlace place = place_of_block(sizes, kUnits);
  const BackwardDirection& dir = params.direction[place.direction];
  const int first_unit = place.first_unit, hidden = sizes.hidden;
  const int replica_column = place.first_column, replica_columns = place.columns;
  const int steps = steps_of_column(sizes, replica_column);
  const auto size_at = [&](int s) { return step_of_pass(sizes, steps, !dir.reverse, s); };
  const auto columns_of = [&](const Step& step) { return min(replica_columns, step.batch - replica_column); };

  extern __shared__ uint4 dynamic_shared[];
  typename Layout::Shared& shared = *reinterpret_cast<typename Layout::Shared*>(dynamic_shared);
  for (int i = threadIdx.x; i < 2 * kKTiles * kTileColumns * 4; i += Layout::kThreads) {
    (&shared.gradients[0][0][0][0])[i] = {0, 0, 0, 0};  // K beyond the last gate
  }
  for (int i = threadIdx.x; i < kBiases * kTileColumns * kUnits; i += Layout::kThreads) {
    (&shared.biases[0][0][0])[i] = 0;
  }
  shared.arrived.init();

  const auto unit_of_bundle = [&](int bundle) { return (warp * Layout::kBundles + bundle) * Layout::kBundle; };
  static_assert(Layout::kKTile * Layout::kRows * sizeof(T) == sizeof(shared.sums),
                "the rows of a k_tile take the sums' place");
  uint4 weights[kTiles][kKTiles][2];
  load_backward_weights<T, Layout>(static_cast<const T*>(dir.weights), hidden, first_unit, &shared.sums, weights);

  // This thread finishes one unit of one sequence.
  const int own_unit = threadIdx.x % kUnits, column = threadIdx.x / kUnits;
  const int unit = first_unit + own_unit, n = replica_column + column;
  const bool finishes = warp * 32 / kUnits < replica_columns;  // a warp does or does not
  const bool exists = unit < hidden && column < replica_columns;
  Carried<MODE> carried{};  // the gradient that goes past the matrix; an LSTM's of c
  float carried_h = 0;      // and of h
  const float mask = load_mask<T, EXTRAS>(params.masks, place.direction, int64_t{n} * hidden + unit, exists);

  // The values that the forward pass saved. Loads without branches, which would wait for them before the next step.
  uint32_t dy, state, before;  // c (LSTM) or y (RNN); c (LSTM) or h (GRU) a timestep earlier
  uint32_t dcell = 0;          // LSTM, EXTRAS
  std::conditional_t<sizeof(T) == 4, uint4, uint2> gates;  // four
  const auto load_step = [&](const Step& step, const Step& step_before) {
    const bool wanted = exists && n < step.batch, has_before = wanted && n < step_before.batch;
    const int64_t row = wanted ? step.row + n : 0, u = wanted ? unit : 0;
    const int64_t y_at = row * params.y_row + u, at = row * hidden + u;
    dy = load_element(static_cast<const T*>(dir.dy) + y_at);
    if constexpr (!kGated) {
      state = load_element(static_cast<const T*>(dir.y) + y_at);
    } else {
      gates = ::__ldcs(reinterpret_cast<const decltype(gates)*>(static_cast<const T*>(dir.gates) + at * 4));
      before = load_element(state_before<T, MODE>(dir, hidden, params.y_row, static_cast<int>(u), has_before,
                                                  has_before ? step_before.row + n : row,
                                                  wanted ? int64_t{n} * hidden + u : 0));
      if (Cell<MODE>::kHasCellState) state = load_element(static_cast<const T*>(dir.cells) + at);
      if (EXTRAS && MODE == PRNN_LSTM && dir.dcells != nullptr)
        dcell = load_element(static_cast<const T*>(dir.dcells) + y_at);
    }
  };

  // Where this thread reads the sums of its unit and puts its gates' gradients, where its warp reads the latter, and
  // where in every block its sums go.
  const uint32_t barrier = shared.arrived.address(0);
  uint32_t sums_in = shared_address(&shared.sums[0][0][column % kTileColumns][own_unit]);
  uint32_t gradients_in = shared_address(&shared.gradients[0][0][min(lane / 4, replica_columns - 1)][sub]);
  uint32_t gradients_out[kGates];
#pragma unroll
  for (int g = 0; g < kGates; ++g) {
    const int k = g * kUnits + own_unit;
    gradients_out[g] = shared_address(&shared.gradients[0][k / Layout::kKTile][column % kTileColumns][0]) +
                       k % Layout::kKTile * static_cast<int>(sizeof(T));
  }
  uint32_t sums_out[Layout::kBundles], counts[Layout::kBundles];
#pragma unroll
  for (int i = 0; i < Layout::kBundles; ++i) {
    const uint32_t owner = unit_of_bundle(i) / kUnits;
    const int of_owner = unit_of_bundle(i) % kUnits + lane / 4 * Layout::kLaneUnits;
    sums_out[i] = address_in_rank(shared_address(&shared.sums[0][rank][sub * 2][of_owner]), owner);
    counts[i] = address_in_rank(barrier, owner);
    pin_in_register(sums_out[i]);
    pin_in_register(counts[i]);
  }
  pin_in_register(sums_in);
  pin_in_register(gradients_in);

  Step current, next = size_at(0), following = size_at(1), later = size_at(2);
  int columns = 0;
  if (finishes) load_step(next, following);
  sync_cluster();                               // after it, all barriers are there
  bool timed_out = false, starts_anew = false;  // whether the sequence starts anew with the current timestep
  // One more step than timesteps, for the gradients of the initial states.
  const int last_step = last_backward_step(dir, sizes, steps);

  // Stages are known when compiling: two steps are one iteration.
  const auto do_step = [&](auto stage_constant, int s) {
    constexpr int kStage = decltype(stage_constant)::value;
    const int old_columns = columns;
    current = next;
    next = following;
    following = later;
    later = size_at(s + 3);
    columns = max(0, columns_of(current));
    const bool is_active = column < columns, was_active = column < old_columns;
    const bool begins = is_active && !was_active, ends = was_active && !is_active && exists;
    const bool after_reset = starts_anew;
    starts_anew = restarts<EXTRAS>(dir, next, current, n);

    // All that does not need dh.
    float added = element_value<T>(dy);
    [[maybe_unused]] const float added_to_cell = EXTRAS && MODE == PRNN_LSTM ? element_value<T>(dcell) : 0;
    const float own_state = element_value<T>(state);
    [[maybe_unused]] typename Cell<MODE>::Derivatives derivatives;
    [[maybe_unused]] float saved_o = 0;
    if constexpr (kGated) {
      const bool has_initial = initial_states<T, MODE>(dir) != nullptr;
      float own_before = (n < next.batch || has_initial) && !starts_anew ? element_value<T>(before) : 0;
      if (EXTRAS && starts_anew && exists) {
        const T* const states = reset_states<T, MODE>(dir);
        if (states != nullptr) own_before = Element<T>::to_float(states[int64_t{n} * hidden + unit]);
      }
      if constexpr (MODE == PRNN_SLSTM) {
        if (exists && (starts_anew || n >= next.batch)) {
          own_before = ratio_of(initial_carried<T, MODE>(dir, int64_t{n} * hidden + unit, true, starts_anew));
        }
      }
      float saved[4];
      gates_of<T>(gates, saved);
      derivatives = Cell<MODE>::template derivatives<kDigits>(saved, own_state, own_before);
      if constexpr (EXTRAS && MODE == PRNN_GRU) derivatives = zoned_out(derivatives, params.masks.zoneout);
      saved_o = saved[3];
      pin_derivatives(derivatives);
    }
    pin_in_register(added);

    if (s > 0) {
      wait_for_arrival(barrier + kStage * 8, (s - 1) / 2 & 1, sizes.timed_out, timed_out);
      __syncwarp();
    }

    float da[4] = {0, 0, 0, 0};
    if (finishes) {
      float parts[CLUSTER];
#pragma unroll
      for (int i = 0; i < CLUSTER; ++i) {
        load_shared(sums_in + (kStage * CLUSTER + i) * (kTileColumns * kUnits * 4), parts[i]);
      }
      add_all(parts);
      float dh = was_active ? parts[0] * mask : 0;
      if constexpr (kCarriesH<MODE, EXTRAS>) dh += carried_h;
      const int64_t at = int64_t{n} * hidden + unit;
      if (after_reset) take_reset_gradients<T, MODE>(dir, at, was_active && exists, dh, carried, kWholeUnit);
      if (begins) {  // not begin_or_end_sequence(), with which training took 1 % longer
        const FinalGradientsOf<Carried<MODE>> last = load_final_gradients<T, MODE>(dir, at, exists);
        dh = last.dh;
        carried = last.dc;
      }
      if (ends) store_initial_gradients<T, MODE>(dir, at, dh, carried, kWholeUnit);
      dh += added;
      if constexpr (kCarriesH<MODE, EXTRAS>) split_gradient(params.masks, saved_o, dh, carried_h);
      if constexpr (EXTRAS && MODE == PRNN_LSTM) carried += added_to_cell;
      if constexpr (kGated) {
        unit_gradients<MODE>(derivatives, dh, carried, da);
      } else {
        da[0] = Cell<MODE>::gradient(own_state, dh, sizes.relu);
      }
#pragma unroll
      for (int g = 0; g < 4; ++g) da[g] = is_active && unit < hidden ? da[g] : 0;
#pragma unroll
      for (int g = 0; g < kGates; ++g) {
        const uint32_t to = gradients_out[g] + kStage * static_cast<uint32_t>(sizeof(shared.gradients[0]));
        const uint32_t word = Element<T>::factor(Element<T>::pack(da[g], 0));
        if constexpr (sizeof(T) == 4) {
          store_shared(true, to, __uint_as_float(word));
        } else {
          store_shared_half(to, word);
        }
      }
      load_step(next, following);
    }
    __syncthreads();

    if (s < last_step) {
      float sum[kSets][kTiles][4] = {};
#pragma unroll
      for (int i = 0; i < kKTiles; ++i) {
        const uint4 b = load_shared(gradients_in + (kStage * kKTiles + i) * (kTileColumns * 64));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          const uint4 low = weights[m][i][0], high = weights[m][i][1];
          Element<T>::mma_of_factors(sum[0][m], low.x, high.x, low.y, high.y, b.x, b.y);
          Element<T>::mma_of_factors(sum[kSets - 1][m], low.z, high.z, low.w, high.w, b.z, b.w);
        }
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (sub * 2 + e >= columns || timed_out) continue;
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
      shared.arrived.expect(1 - kStage, columns * (CLUSTER * kUnits * static_cast<int>(sizeof(float))));
    }

    // Off the critical path: no block polls these stores.
    if (!is_active) return;
    const int64_t row = current.row + n;
#pragma unroll
    for (int g = 0; g < kBiases; ++g) shared.biases[g][column][own_unit] += da[g];
    T* const out = static_cast<T*>(dir.dgates) + row * (kGates * sizes.padded) + unit;
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      if (unit < sizes.padded) store_float<T>(out, int64_t{g} * sizes.padded, da[g]);
    }
    if (MODE == PRNN_GRU && exists) store_float<T>(dir.dcandidate, row * hidden + unit, da[3]);
  };
#pragma unroll 1
  for (int s = 0; s <= last_step; s += 2) {
    do_step(std::integral_constant<int, 0>(), s);
    if (s < last_step) do_step(std::integral_constant<int, 1>(), s + 1);
  }

  // The sums for the biases, over the sequences of this replica.
  __syncthreads();
  for (int i = threadIdx.x; i < kBiases * kUnits; i += Layout::kThreads) {
    const int b = i / kUnits, own = i % kUnits;
    if (first_unit + own >= hidden) continue;
    float sum = 0;
    for (int c = 0; c < kTileColumns; ++c) sum += shared.biases[b][c][own];
    dir.bias_sums[(int64_t{place.replica} * kBiases + b) * hidden + first_unit + own] = sum;
  }
  // No block leaves while others may still write to its shared memory.
  sync_cluster();
}

template <class T, prnnRNNMode_t MODE, int K_TILES, int CLUSTER>
cudaError_t launch_cluster_backward(const ResidentShape&, const BackwardParams& params, cudaStream_t stream) {
  using Layout = ClusterBackward<T, MODE, K_TILES, CLUSTER>;
  const auto kernel = params.has_extras() ? cluster_backward<T, MODE, K_TILES, CLUSTER, true>
                                          : cluster_backward<T, MODE, K_TILES, CLUSTER, false>;
  return launch_cluster(kernel, CLUSTER, Layout::kThreads, sizeof(typename Layout::Shared), params, stream);
}

}  // namespace prnn
