// The forward simt kernel: all timesteps of a float32 layer of one sequence a replica, or a few, all recurrent weights
// in registers.
#pragma once

#include "rnn/cuda/simt/product.cuh"

namespace prnn {

// UNITS, LOADS, COLUMNS, CLUSTER: SimtKernel's. In clusters, a replica is one, and states go to its blocks' shared
// memory; else they go through L2. A warp finishes 8 units of one sequence; its lanes are unit * 4 + sub, and `sub` is
// the gate, as in mma_forward(). EXTRAS: with prnnRNNExtras_t or
// prnnRNNMasks_t.
template <prnnRNNMode_t MODE, int UNITS, int LOADS, int COLUMNS, int CLUSTER, bool EXTRAS>
__global__ void __launch_bounds__(kResidentThreads, 1) simt_forward(const __grid_constant__ ForwardParams params) {
  if constexpr (CLUSTER > 1 && !kHasClusters) return;
  constexpr bool kGated = MODE != PRNN_RNN_TANH;
  constexpr SimtKernel kKernel = {UNITS, LOADS, COLUMNS, CLUSTER};
  constexpr int kUnits = kKernel.units, kColumns = kKernel.columns, kCluster = kKernel.cluster;
  constexpr SimtSplit kSplit = simt_split(gate_count(MODE), false, kKernel);
  constexpr int kRows = kSplit.rows, kRowTiles = kUnits / kTileRows, kBytes = kCluster * kUnits * 4;
  constexpr bool kSends = kCluster > 1;
  using Product = SimtProduct<kRows, kSplit.row_groups, kKernel.loads, kColumns, simt_chunk(false)>;
  static_assert(kColumns == 1 || !kSends, "clusters have one sequence");

  extern __shared__ float4 more_weights[];
  __shared__ float sums[2][kColumns * Product::kColumnStride];
  __shared__ float4 states[2][kSends ? Product::kElements / 4 : 1];
  __shared__ BarrierPair arrived;  // count the bytes of `states`

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const BlockPlace place = place_of_block(sizes, kUnits);
  const ForwardDirection& dir = params.direction[place.direction];
  const int replica = place.replica, first_unit = place.first_unit;
  const int replica_column = place.first_column, replica_columns = place.columns;
  const int hidden = sizes.hidden;
  if (replica_columns <= 0) return;
  const int steps = steps_of_column(sizes, replica_column);
  const auto size_at = [&](int s) { return step_of_pass(sizes, steps, dir.reverse, s); };

  if constexpr (kSends) {
    arrived.init(kBytes);
    for (int i = threadIdx.x; i < Product::kElements / 4; i += kResidentThreads)
      states[0][i] = states[1][i] = {0, 0, 0, 0};
  }

  Product product;
  product.load_weights(more_weights, sizes.padded, [&](int k, float (&rows)[kRows][4]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int unit = first_unit + Product::row_group_of_lane() * (kGated ? 1 : kRows) + (kGated ? 0 : r);
      const int64_t row = int64_t{kGated ? r : 0} * hidden + unit;
      const uint4 vec =
          load_row_fragment(static_cast<const float*>(dir.weights), row * hidden + k, unit < hidden ? hidden - k : 0);
#pragma unroll
      for (int e = 0; e < 4; ++e) rows[r][e] = float_of(vec, e);
    }
  });

  // The unit and the sequence that this lane finishes.
  const int column = warp / kRowTiles, n = replica_column + column;
  const int own_unit = warp % kRowTiles * kTileRows + lane / 4, unit = first_unit + own_unit;
  const bool finishes = column < (kColumns == 1 ? 1 : replica_columns), exists = finishes && unit < hidden;
  const int own_gate = input_gate<MODE>(sub);
  const auto initial_at = [&] { return int64_t{pin_in_register(n)} * hidden + unit; };
  const float bias = load_bias<float, MODE>(dir, hidden, unit, sub, exists);
  Carried<MODE> carried{};  // c (LSTM; sLSTM: c, n and m), h (GRU)
  // An LSTM's, where registers are few: h, and the mask of it.
  __shared__ float of_threads[2][kCarriesH<MODE, EXTRAS> ? kResidentThreads : 1];
  float& carried_h = of_threads[0][kCarriesH<MODE, EXTRAS> ? threadIdx.x : 0];
  const auto input_at = [&](int64_t row) {
    return row * params.xw_row + int64_t{pin_in_register(own_gate)} * params.xw_gate + unit;
  };
  const auto begin = [&](bool starts_anew) {
    const float h = begin_sequence<float, MODE>(dir, initial_at(), exists, starts_anew, carried);
    if (kCarriesH<MODE, EXTRAS>) carried_h = h;
    return h;
  };

  // The exchange: a step's states, before it, in global memory or in every block's shared memory.
  const int tile_columns = kColumns == 1 ? 1 : sizes.tile_columns();
  float* exchange = static_cast<float*>(dir.exchange) + int64_t{replica} * tile_columns * sizes.padded;  // of a step
  const auto step_elements = [&] { return int64_t{sizes.exchange_columns()} * sizes.padded; };
  const auto state_at = [&](int k, int c) { return (k / 16 * tile_columns + c) * 16 + k % 16; };
  const int k_of_lane = Product::first_element(), states_of_lane = state_at(k_of_lane, 0);
  const uint32_t barrier = arrived.address(0), own_states = shared_address(&states[0][0]);
  constexpr uint32_t kStageBytes = sizeof(states[0]);
  constexpr int kPeers = kSends ? kCluster / 4 : 1;  // that a lane sends to
  uint32_t places[kPeers], counts[kPeers];
#pragma unroll
  for (int i = 0; kSends && i < kPeers; ++i) {
    pin_in_register(places[i] = address_in_rank(own_states + unit * 4, sub * kPeers + i));
    pin_in_register(counts[i] = address_in_rank(barrier, sub * kPeers + i));
  }
  const float mask = load_mask<float, EXTRAS>(params.masks, place.direction, int64_t{n} * hidden + unit, exists);
  if (kCarriesH<MODE, EXTRAS>) of_threads[1][threadIdx.x] = mask;
  const auto publish = [&](int s, float h) {
    const float value = h * (kCarriesH<MODE, EXTRAS> ? of_threads[1][threadIdx.x] : mask);
    if constexpr (kSends) {
#pragma unroll
      for (int i = 0; i < kPeers; ++i) {
        send_word(places[i] + s % 2 * kStageBytes, counts[i] + s % 2 * 8, __float_as_uint(value));
      }
    } else {
      publish_word(sub == 0 && unit < sizes.padded, exchange + state_at(pin_in_register(unit), column),
                   Element<float>::pack(value, 0));
    }
  };

  // Prefetched a step ahead, without a branch: no instruction waits for it before its use.
  float input = 0;
  const auto load_input = [&](const Step& step) {
    const bool wanted = exists && n < step.batch;
    input = __ldcs(static_cast<const float*>(dir.xw) + (wanted ? input_at(step.row + n) : 0));
  };

  if constexpr (kSends) sync_cluster();
  Step current, next = size_at(0);
  // Whether the sequence starts anew with its next step.
  const auto restarts_next = [&] { return restarts<EXTRAS>(dir, current, next, n); };
  if (finishes && n < next.batch) publish(0, begin(restarts_next()));
  load_input(next);
  bool timed_out = false;
  unsigned passed = clock_low();
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    current = next;
    next = size_at(s + 1);
    const bool is_active = kColumns == 1 || n < current.batch, will_be = kColumns == 1 ? s + 1 < steps : n < next.batch;
    const int64_t row = current.row + n;
    const bool is_last_before_reset = restarts_next();

    if constexpr (kSends) {
      wait_for_arrival(barrier + s % 2 * 8, s / 2 & 1, sizes.timed_out, timed_out);
      __syncwarp();
      product.run(own_states + s % 2 * kStageBytes + k_of_lane * 4, sums[s % 2]);
    } else {
      const float* from = exchange + states_of_lane;
      asm volatile("" : "+l"(from));  // computed before the delay
      wait_poll_delay(passed, sizes.poll_delay_cycles);
      const int apart = Product::kApart * tile_columns, columns = min(replica_columns, current.batch - replica_column);
      product.run(from, sizes.padded, columns, apart, 16, sizes.timed_out, timed_out, sums[s % 2]);
    }
    exchange += step_elements();
    __syncthreads();
    passed = clock_low();
    if (!finishes) continue;

    pin_in_register(input);
    const float sum =
        Product::template total<!kGated>(sums[s % 2], column, kGated ? own_unit * 4 + sub : own_unit, sub);
    float gate = lane_gate<MODE, Digits::kFloat>(sum, input, bias, sub, cell_kind<MODE>(sizes));
    gate = mark_gate<MODE, EXTRAS>(params.masks, gate, input, sub);
    LaneForwardOf<Carried<MODE>> done;
    if constexpr (kGated) {
      done = lanes_forward<MODE, Digits::kFloat>(gate, carried, sub, cell_kind<MODE>(sizes));
      if constexpr (kZonesOut<MODE, EXTRAS>) {
        zone_out<MODE, EXTRAS>(params.masks, kCarriesH<MODE, EXTRAS> ? carried_h : carried, done);
      }
      carried = done.carried;
      if (kCarriesH<MODE, EXTRAS>) carried_h = done.h;
    } else {
      done.h = gate;
    }
    if (will_be && !timed_out) {
      const bool begins = !is_active || is_last_before_reset;
      publish(s + 1, begins ? begin(is_last_before_reset) : unit < hidden ? done.h : 0);
    }
    if (kSends && s + 1 < steps) arrived.expect((s + 1) % 2, kBytes);

    // Off the critical path: no block polls these stores.
    load_input(next);
    if (!exists || !is_active) continue;
    store_lane_outputs<float, MODE>(dir, row * params.y_row + unit, row * hidden + unit, done, sub);
    if (!will_be) store_final_states<float, MODE>(dir, initial_at(), done.h, done.carried, sub);  // the sequence ends
  }
  // No block leaves while others may still write to its shared memory.
  if constexpr (kSends) sync_cluster();
}

template <class T, prnnRNNMode_t MODE, int UNITS, int LOADS, int COLUMNS, int CLUSTER>
cudaError_t launch_simt_forward(const ResidentShape& shape, const ForwardParams& params, cudaStream_t stream) {
  return launch_simt(params.has_extras() ? simt_forward<MODE, UNITS, LOADS, COLUMNS, CLUSTER, true>
                                         : simt_forward<MODE, UNITS, LOADS, COLUMNS, CLUSTER, false>,
                     shape, params, stream);
}

}  // namespace prnn
