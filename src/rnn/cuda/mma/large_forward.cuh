// The large-layer mma forward kernel: all timesteps of one layer whose weights fit no other kernel.
#pragma once

#include "rnn/cuda/mma/large_product.cuh"

namespace prnn {

// Warp w finishes sequence w. With gates its lanes are unit * 4 + sub, as in the resident kernel, 8 units a round;
// without, a lane is a unit.
// EXTRAS: with prnnRNNExtras_t::reset or prnnRNNMasks_t.
template <class T, prnnRNNMode_t MODE, bool EXTRAS>
__global__ void __launch_bounds__(kResidentThreads, 1) mma_large_forward(const __grid_constant__ ForwardParams params) {
  constexpr bool kGated = MODE != PRNN_RNN_TANH;
  constexpr Digits kDigits = digits_of<T>();
  constexpr int kUnits = large_units(MODE, sizeof(T) == 4), kRounds = large_rounds(MODE, sizeof(T) == 4);
  constexpr int kRoundUnits = kGated ? kTileRows : 32;
  constexpr int kKTile = k_tile_elements(sizeof(T) == 4), kKTileElements = 64 / sizeof(T);
  using Product = MmaLargeProduct<T, gate_count(MODE) * kUnits, large_register_tiles(sizeof(T) == 4)>;

  const ResidentSizes& sizes = params.sizes;
  const int warp = threadIdx.x / 32;
  const ForwardDirection& dir = params.direction[0];
  const int first_unit = blockIdx.x * kUnits, hidden = sizes.hidden, padded = sizes.padded;

  extern __shared__ uint4 shared[];
  __shared__ Carried<MODE> carried[kResidentWarps][kUnits];  // c (LSTM; sLSTM: c, n and m), h before rounding (GRU)
  constexpr bool kHasCarriedH = kCarriesH<MODE, EXTRAS>;
  __shared__ float carried_h[kHasCarriedH ? kResidentWarps : 1][kUnits];
  __shared__ float biases[kRounds][32];  // of what a lane finishes
  // In 16 bits the product needs every register: the inputs wait for it here.
  constexpr bool kInputsWait = sizeof(T) == 2;
  __shared__ T inputs[kInputsWait ? kResidentWarps : 1][kRounds][32];
  __shared__ bool starts_anew[kResidentWarps];           // the warp's sequence, with its next step
  float* const sums = reinterpret_cast<float*>(shared);  // [warps][rows][kLargeSumColumns]

  Product product;
  const T* const weights = static_cast<const T*>(dir.weights);
  product.load_weights(padded / kKTile, sums + kResidentWarps * Product::kSumFloats, [&](int row, int k_tile) {
    const int unit = first_unit + row % kUnits, gate = row / kUnits;
    const int k = k_tile * kKTile + threadIdx.x % 4 * (16 / static_cast<int>(sizeof(T)));
    return load_row_fragment(weights, (int64_t{gate} * hidden + unit) * hidden + k, unit < hidden ? hidden - k : 0);
  });

  // A lane finishes unit `own` of the block, and the one kRoundUnits further in the next round.
  const auto own_of = [&](int lane) { return kGated ? lane / 4 : lane; };
  const auto exists = [&](int lane, int round) {
    const int u = own_of(lane) + round * kRoundUnits;
    return u < kUnits && first_unit + u < hidden;
  };
  const auto input_gate_of = [&](int lane) { return input_gate<MODE>(lane % 4); };
  if (warp == 0) {
    const int lane = threadIdx.x;
    for (int r = 0; r < kRounds; ++r) {
      const int u = first_unit + own_of(lane) + r * kRoundUnits;
      biases[r][lane] = load_bias<T, MODE>(dir, hidden, u, lane % 4, exists(lane, r));
    }
  }

  // Element of a timestep where unit u of column c is.
  const int tile_columns = sizes.tile_columns(), step_elements = tile_columns * padded;
  T* const exchange = static_cast<T*>(dir.exchange);
  const auto state_at = [&](int u, int c) {
    return u / kKTileElements * (tile_columns * kKTileElements) + c * kKTileElements + u % kKTileElements;
  };
  product.k_tile_stride = tile_columns * 64 * kResidentWarps;
  // The forward pass's step s, which lies outside the sequence where it has no batch.
  const auto step_of = [&](int s) {
    if (s < 0 || s >= sizes.steps) return Step{0, 0};
    return step_at(sizes, dir.reverse ? sizes.steps - 1 - s : s);
  };
  const auto columns_of = [&](int s) { return min(sizes.columns, step_of(s).batch - sizes.first_column); };
  // Whether this warp's sequence starts anew with step s.
  const auto restarts_with = [&](int s) {
    return restarts<EXTRAS>(dir, step_of(s - 1), step_of(s), sizes.first_column + warp);
  };
  // The block's units of the initial state of this warp's sequence, which starts with step s.
  const auto publish_initial = [&](int s) {
    const int n = sizes.first_column + warp;
    const bool is_reset = restarts_with(s);
    for (int u = first_unit + lane_id(); u < min(padded, first_unit + kUnits); u += 32) {
      const int64_t at = int64_t{n} * hidden + u;
      const float value =
          initial_h<T>(dir, at, u < hidden, is_reset) * load_mask<T, EXTRAS>(params.masks, 0, at, u < hidden);
      publish_element(true, exchange + (int64_t{s} * step_elements + state_at(u, warp)), Element<T>::from_float(value));
    }
  };

  bool timed_out = false;
  unsigned published = 0;
  if (warp < columns_of(0)) publish_initial(0);
#pragma unroll 1
  for (int s = 0; s < sizes.steps; ++s) {
    if (warp >= max(columns_of(s), 0) && warp < columns_of(s + 1)) publish_initial(s + 1);
    if (columns_of(s) <= 0) continue;

    const int loading_lane = lane_id();
    const char* states = reinterpret_cast<const char*>(exchange + int64_t{s} * step_elements) +
                         ((warp * tile_columns + loading_lane / 4) * 64 + loading_lane % 4 * 16);
    const bool reads = loading_lane / 4 < columns_of(s);
    asm volatile("" : "+l"(states));  // computed before the delay
    wait_poll_delay(published, sizes.poll_delay_cycles);
    product.prefetch(states, reads);

    // The input products of this lane's units: in flight while the states are.
    const int input_row = step_of(s).row + sizes.first_column + (warp < columns_of(s) ? warp : 0);
    const T* const input_of_lane = static_cast<const T*>(dir.xw) + int64_t{input_row} * params.xw_row +
                                   (exists(loading_lane, 0) ? int64_t{input_gate_of(loading_lane)} * params.xw_gate +
                                                                  first_unit + own_of(loading_lane)
                                                            : 0);
    T input[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      input[r] = __ldcs(input_of_lane + (exists(loading_lane, r) ? r * kRoundUnits : 0));
    }
    const bool restarts_next = restarts_with(s + 1);

    typename Product::Sums products;
    product.run(states, reads, sizes.timed_out, timed_out, products, [&] {
      if constexpr (kInputsWait) {
        for (int r = 0; r < kRounds; ++r) inputs[warp][r][loading_lane] = input[r];
      }
      if (EXTRAS && loading_lane == 0) starts_anew[warp] = restarts_next;
    });
    __syncthreads();  // the sums of the step before have been read
    Product::store(products, sums + warp * Product::kSumFloats);
    __syncthreads();
    // Recomputed: the product leaves no registers for these.
    const int here = pin_in_register(s), lane = lane_id(), sub = kGated ? lane % 4 : 0, own = own_of(lane);
    if (warp >= columns_of(here)) continue;

    const int n = sizes.first_column + warp, row = step_of(here).row + n, next_columns = columns_of(here + 1);
    if (kGated && warp >= columns_of(here - 1)) {  // the sequence starts
      for (int u = lane; u < kUnits; u += 32) {
        const int64_t at = int64_t{n} * hidden + first_unit + u;
        const bool starts_anew = restarts_with(here), exists = first_unit + u < hidden;
        carried[warp][u] = initial_carried<T, MODE>(dir, at, exists, starts_anew);
        if (kHasCarriedH) carried_h[kHasCarriedH ? warp : 0][u] = initial_h<T>(dir, at, exists, starts_anew);
      }
      __syncwarp();
    }

    float gate[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int u = min(own + r * kRoundUnits, kUnits - 1);
      // A GRU's lane 3 has no sum of its own and reads lane 2's, which it does not use.
      const float x = Element<T>::to_float(kInputsWait ? inputs[kInputsWait ? warp : 0][r][lane] : input[r]);
      const float sum =
          sum_over_warps(sums, Product::kSumFloats, Product::sum_at(input_gate_of(lane) * kUnits + u, warp));
      gate[r] = lane_gate<MODE, kDigits>(sum, x, biases[r][lane], sub, cell_kind<MODE>(sizes));
      gate[r] = mark_gate<MODE, EXTRAS>(params.masks, gate[r], x, sub);
    }
    LaneForwardOf<Carried<MODE>> done[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int u = own + r * kRoundUnits;
      if constexpr (kGated) {
        const Carried<MODE> before = carried[warp][min(u, kUnits - 1)];
        done[r] = lanes_forward<MODE, kDigits>(gate[r], before, sub, cell_kind<MODE>(sizes));
        if constexpr (kZonesOut<MODE, EXTRAS>) {
          const float h_before = kHasCarriedH ? carried_h[kHasCarriedH ? warp : 0][min(u, kUnits - 1)] : before;
          zone_out<MODE, EXTRAS>(params.masks, h_before, done[r]);
        }
        __syncwarp();
      } else {
        done[r].h = gate[r];
      }
      const bool publishes = warp < next_columns && sub == 0 && u < kUnits && first_unit + u < padded;
      float h = first_unit + u < hidden ? done[r].h : 0;
      Carried<MODE> next_carried = kGated ? done[r].carried : Carried<MODE>{};
      if (EXTRAS && starts_anew[warp]) {
        h = begin_sequence<T, MODE>(dir, int64_t{n} * hidden + first_unit + u, publishes && first_unit + u < hidden,
                                    true, next_carried);
      }
      if (kGated && sub == 0 && u < kUnits) {
        carried[warp][u] = next_carried;
        if (kHasCarriedH) carried_h[kHasCarriedH ? warp : 0][u] = h;
      }
      h *= load_mask<T, EXTRAS>(params.masks, 0, int64_t{n} * hidden + first_unit + u,
                                publishes && first_unit + u < hidden);
      publish_element(publishes, exchange + (int64_t{s + 1} * step_elements + state_at(first_unit + u, warp)),
                      Element<T>::from_float(h));
    }
    published = clock_low();

    // Off the critical path: no block polls these stores.
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      if (!exists(lane, r)) continue;
      const int u = first_unit + own + r * kRoundUnits;
      store_lane_outputs<T, MODE>(dir, int64_t{row} * params.y_row + u, int64_t{row} * hidden + u, done[r], sub);
      if (warp >= next_columns) {  // the sequence ends
        store_final_states<T, MODE>(dir, int64_t{n} * hidden + u, done[r].h, done[r].carried, sub);
      }
    }
  }
}

template <class T, prnnRNNMode_t MODE>
cudaError_t launch_mma_large_forward(const ResidentShape& shape, const ForwardParams& params, cudaStream_t stream) {
  return launch_resident(mma_large_forward<T, MODE, false>, shape, params, stream);
}

template <class T, prnnRNNMode_t MODE>
cudaError_t launch_mma_large_extras_forward(const ResidentShape& shape, const ForwardParams& params,
                                            cudaStream_t stream) {
  return launch_resident(mma_large_forward<T, MODE, true>, shape, params, stream);
}

}  // namespace prnn
