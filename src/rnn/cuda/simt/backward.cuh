// The backward simt kernel: from dy to the gradients of all gates of a float32 layer of one sequence a replica, or a
// few, all recurrent weights in registers. Steps run against the forward pass; "previous" is the step done before,
// "next" is a timestep earlier in the forward pass.
#pragma once

#include "rnn/cuda/simt/product.cuh"

namespace prnn {

// Template arguments and lanes as in simt_forward(); `sub` 3 of a GRU is its candidate's gradient with respect to W x +
// bW. Every block multiplies the gradients of all gates, which are K, with the columns of R of its units.
template <prnnRNNMode_t MODE, int UNITS, int LOADS, int COLUMNS, int CLUSTER, bool EXTRAS>
__global__ void __launch_bounds__(kResidentThreads, 1) simt_backward(const __grid_constant__ BackwardParams params) {
  if constexpr (CLUSTER > 1 && !kHasClusters) return;
  constexpr bool kGated = MODE != PRNN_RNN_TANH;
  constexpr SimtKernel kKernel = {UNITS, LOADS, COLUMNS, CLUSTER};
  constexpr int kUnits = kKernel.units, kColumns = kKernel.columns, kCluster = kKernel.cluster;
  constexpr int kGates = gate_count(MODE);
  constexpr SimtSplit kSplit = simt_split(kGates, true, kKernel);
  constexpr int kRows = kSplit.rows, kRowTiles = kUnits / kTileRows, kBytes = kCluster * kUnits * kGates * 4;
  constexpr bool kSends = kCluster > 1;
  // The cell's derivatives are computed while others' stores are on their way; but in a cluster these arrive before
  // what load_step() loads.
  constexpr bool kDerivesAhead = kGated && !kSends && !EXTRAS && MODE != PRNN_SLSTM;
  using Product = SimtProduct<kRows, kSplit.row_groups, kKernel.loads, kColumns, simt_chunk(true)>;
  static_assert(kColumns == 1 || !kSends, "clusters have one sequence");

  extern __shared__ float4 more_weights[];
  __shared__ float sums[2][kColumns * Product::kColumnStride];
  __shared__ float4 gradients[2][kSends ? Product::kElements / 4 : 1];
  __shared__ BarrierPair arrived;  // count the bytes of `gradients`

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const BlockPlace place = place_of_block(sizes, kUnits);
  const BackwardDirection& dir = params.direction[place.direction];
  const int replica = place.replica, first_unit = place.first_unit;
  const int replica_column = place.first_column, replica_columns = place.columns;
  const int hidden = sizes.hidden, padded = sizes.padded;
  if (replica_columns <= 0) return;
  const int pitch = kSends ? kCluster * kUnits : padded;  // from gate to gate of a vector
  const int steps = steps_of_column(sizes, replica_column);
  const auto size_at = [&](int s) { return step_of_pass(sizes, steps, !dir.reverse, s); };

  if constexpr (kSends) {
    arrived.init();
    for (int i = threadIdx.x; i < Product::kElements / 4; i += kResidentThreads) {
      gradients[0][i] = gradients[1][i] = {0, 0, 0, 0};
    }
  }

  Product product;
  product.load_weights(more_weights, kGates * pitch, [&](int k, float (&rows)[kRows][4]) {
    const int gate = k / pitch;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int from = k % pitch + e;
#pragma unroll
      for (int r = 0; r < kRows; r += 4) {
        const int unit = first_unit + Product::row_group_of_lane() * kRows + r;
        const uint4 units =
            load_row_fragment(static_cast<const float*>(dir.weights), (int64_t{gate} * hidden + from) * hidden + unit,
                              gate < kGates && from < hidden ? hidden - unit : 0);
#pragma unroll
        for (int j = 0; j < 4; ++j) rows[r + j][e] = float_of(units, j);
      }
    }
  });

  // The unit and the sequence that this lane finishes.
  const int column = warp / kRowTiles, n = replica_column + column;
  const int own_unit = warp % kRowTiles * kTileRows + lane / 4, unit = first_unit + own_unit;
  const bool finishes = column < (kColumns == 1 ? 1 : replica_columns), exists = finishes && unit < hidden;
  const int64_t state_at = int64_t{n} * hidden + unit;
  Carried<MODE> carried{};  // the gradient that goes past the matrix; an LSTM's of c
  float carried_h = 0;      // and of h
  const float mask = load_mask<float, EXTRAS>(params.masks, place.direction, state_at, exists);
  float bias = 0, biases = 0;  // the gradient's sum over the last timesteps, and over those before

  float* const dgates = static_cast<float*>(dir.dgates);
  const int row_elements = kGates * padded, k_of_lane = Product::first_element();
  const uint32_t barrier = arrived.address(0), own_gradients = shared_address(&gradients[0][0]);
  constexpr uint32_t kStageBytes = sizeof(gradients[0]);
  constexpr int kPeers = !kSends ? 1 : kGated ? kCluster : kCluster / 4;  // that a lane sends to
  uint32_t places[kPeers], counts[kPeers];
#pragma unroll
  for (int i = 0; kSends && i < kPeers; ++i) {
    const uint32_t rank = kGated ? i : sub * kPeers + i;
    pin_in_register(places[i] = address_in_rank(own_gradients + ((kGated ? sub * pitch : 0) + unit) * 4, rank));
    pin_in_register(counts[i] = address_in_rank(barrier, rank));
  }

  // The saved values, prefetched a step ahead.
  LaneSaved<float> saved;
  const auto load_step = [&](const Step& step, const Step& step_before) {
    const bool wanted = exists && n < step.batch, has_before = wanted && n < step_before.batch;
    const int64_t row = wanted ? step.row + n : 0, row_before = has_before ? step_before.row + n : row;
    saved = load_lane_saved<float, MODE, EXTRAS>(dir, hidden, params.y_row, wanted ? unit : 0, row, has_before,
                                                 row_before, wanted ? state_at : 0, sub);
  };

  if constexpr (kSends) sync_cluster();
  Step previous, current, next = size_at(0), following = size_at(1);
  load_step(next, following);
  bool timed_out = false, starts_anew = false;  // whether the sequence starts anew with the current timestep
  unsigned passed = clock_low();
  const int last_step = last_backward_step(dir, sizes, steps);
#pragma unroll 1
  for (int s = 0; s <= last_step; ++s) {
    previous = current;
    current = next;
    next = following;
    following = size_at(s + 2);
    const bool is_active = n < current.batch, was_active = n < previous.batch;
    const int64_t row = current.row + n;
    const bool after_reset = starts_anew;
    starts_anew = restarts<EXTRAS>(dir, next, current, n);

    UnitDerivatives derivatives;
    if constexpr (kDerivesAhead) {
      const bool has_before = has_state_before<float, MODE>(dir, n < next.batch, false);
      derivatives = lanes_derivatives<MODE, Digits::kFloat>(saved.own, saved.other, has_before, sub);
    }
    if (s > 0) {
      if constexpr (kSends) {
        wait_for_arrival(barrier + s % 2 * 8, (s - 1) / 2 & 1, sizes.timed_out, timed_out);
        __syncwarp();
        product.run(own_gradients + s % 2 * kStageBytes + k_of_lane * 4, sums[s % 2]);
      } else {
        const float* from = dgates + int64_t{previous.row + replica_column} * row_elements + k_of_lane;
        asm volatile("" : "+l"(from));  // computed before the delay
        wait_poll_delay(passed, sizes.poll_delay_cycles);
        product.run(from, row_elements, min(replica_columns, previous.batch - replica_column), Product::kApart,
                    row_elements, sizes.timed_out, timed_out, sums[s % 2]);
      }
      __syncthreads();
      passed = clock_low();
    }
    if (!finishes) continue;

    pin_in_register(saved.own);
    pin_in_register(saved.other);
    float dh = s > 0 ? mask * Product::template total<true>(sums[s % 2], column, own_unit, sub) : 0;
    if constexpr (kCarriesH<MODE, EXTRAS>) dh += carried_h;
    if (after_reset) take_reset_gradients<float, MODE>(dir, state_at, was_active && exists, dh, carried, sub);
    begin_or_end_sequence<float, MODE>(dir, state_at, exists, is_active, was_active, dh, carried, sub);
    if (is_bias_step<float>(s)) {
      biases += bias;
      bias = 0;
    }
    if (!is_active) {
      load_step(next, following);
      continue;
    }

    if (EXTRAS && starts_anew) load_reset_state<float, MODE>(dir, state_at, exists, sub, saved);
    const bool has_before = has_state_before<float, MODE>(dir, n < next.batch, starts_anew);
    float da;
    if constexpr (kDerivesAhead) {
      da = lane_gradient<MODE>(derivatives, dh + __shfl_sync(kWholeWarp, saved.other, 0, 4), carried, sub);
    } else {
      da =
          lanes_backward<MODE, Digits::kFloat, EXTRAS>(saved.own, saved.other, has_before, dh, carried, sub, sizes.relu,
                                                       EXTRAS && dir.dcells != nullptr, &params.masks, &carried_h);
    }
    da = unit < hidden ? da : 0;
    float* const out = dgates + row * row_elements + (kGated ? sub * padded : 0) + unit;
    const bool is_gate = kGated ? sub < kGates : sub == 0;
    if constexpr (kSends) {
      if (s < last_step && !timed_out && (!kGated || is_gate)) {
#pragma unroll
        for (int i = 0; i < kPeers; ++i) {
          send_word(places[i] + (s + 1) % 2 * kStageBytes, counts[i] + (s + 1) % 2 * 8, __float_as_uint(da));
        }
      }
      if (s < last_step) arrived.expect((s + 1) % 2, kBytes);
      if (is_gate && unit < padded) *out = da;
    } else {
      publish_word(is_gate && unit < padded, out, Element<float>::pack(da, 0));
    }
    if (MODE == PRNN_GRU && sub == 3 && exists) store_float<float>(dir.dcandidate, row * hidden + unit, da);
    bias += da;
    load_step(next, following);
  }
  biases += bias;

  // The sums for the biases, over the sequences of this replica.
  if constexpr (kColumns > 1) {
    __syncthreads();
    sums[0][threadIdx.x] = finishes ? biases : 0;
    __syncthreads();
    biases = 0;
    for (int c = 0; c < kColumns; ++c) biases += sums[0][(c * kRowTiles + warp % kRowTiles) * 32 + lane];
  }
  if (exists && column == 0 && (kGated || sub == 0)) {
    dir.bias_sums[(int64_t{replica} * Cell<MODE>::kBiases + (kGated ? sub : 0)) * hidden + unit] = biases;
  }
  // No block leaves while others may still write to its shared memory.
  if constexpr (kSends) sync_cluster();
}

template <class T, prnnRNNMode_t MODE, int UNITS, int LOADS, int COLUMNS, int CLUSTER>
cudaError_t launch_simt_backward(const ResidentShape& shape, const BackwardParams& params, cudaStream_t stream) {
  return launch_simt(params.has_extras() ? simt_backward<MODE, UNITS, LOADS, COLUMNS, CLUSTER, true>
                                         : simt_backward<MODE, UNITS, LOADS, COLUMNS, CLUSTER, false>,
                     shape, params, stream);
}

}  // namespace prnn
