// The large-layer mma backward kernel: all timesteps of one layer whose weights fit no other kernel. Without clusters:
// every block reads the gradients of all gates.
#pragma once

#include "rnn/cuda/mma/large_product.cuh"

namespace prnn {

// Warp w finishes sequence w. With gates its lanes are unit * 4 + sub, as in the resident kernel, 8 units a round;
// without, a lane is a unit.
// EXTRAS: with prnnRNNExtras_t or prnnRNNMasks_t.
template <class T, prnnRNNMode_t MODE, bool EXTRAS>
__global__ void __launch_bounds__(kResidentThreads, 1)
    mma_large_backward(const __grid_constant__ BackwardParams params) {
  constexpr bool kGated = MODE != PRNN_RNN_TANH;
  constexpr Digits kDigits = digits_of<T>();
  constexpr int kGates = gate_count(MODE);
  constexpr int kUnits = large_units(MODE, sizeof(T) == 4), kRounds = large_rounds(MODE, sizeof(T) == 4);
  constexpr int kRoundUnits = kGated ? kTileRows : 32;
  constexpr int kKTile = k_tile_elements(sizeof(T) == 4);
  using Product = MmaLargeProduct<T, kUnits, large_register_tiles(sizeof(T) == 4)>;

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = kGated ? lane % 4 : 0;
  const BackwardDirection& dir = params.direction[0];
  const int first_unit = blockIdx.x * kUnits, hidden = sizes.hidden, padded = sizes.padded;

  extern __shared__ uint4 shared[];
  __shared__ Carried<MODE> carried[kGated ? kResidentWarps : 1][kUnits];  // the gradient that goes past the matrix
  constexpr bool kHasCarriedH = kCarriesH<MODE, EXTRAS>;                  // an LSTM's of c; and of h
  __shared__ float carried_h[kHasCarriedH ? kResidentWarps : 1][kUnits];
  __shared__ float bias_sums[kResidentWarps][kRounds][32];
  // In 16 bits the product needs every register: what the forward pass saved waits for it here.
  constexpr bool kInputsWait = sizeof(T) == 2;
  __shared__ T inputs[2][kInputsWait ? kResidentWarps : 1][kRounds][32];
  __shared__ bool starts_anew[2][kResidentWarps];  // the warp's sequence, with the timestep of an even or odd step
  float* const sums = reinterpret_cast<float*>(shared);  // [warps][rows][kLargeSumColumns]
  for (int r = 0; r < kRounds; ++r) bias_sums[warp][r][lane] = 0;

  // K runs over the gates one after the other, each rounded up to whole k-tiles.
  const int gate_k_tiles = padded / kKTile;
  Product product;
  product.k_tile_stride = 64 * kResidentWarps;
  const T* const weights = static_cast<const T*>(dir.weights);
  product.load_weights(gate_k_tiles * kGates, sums + kResidentWarps * Product::kSumFloats, [&](int row, int k_tile) {
    const int unit = first_unit + row, gate = k_tile / gate_k_tiles;
    const int k = k_tile % gate_k_tiles * kKTile + lane % 4 * (16 / static_cast<int>(sizeof(T)));
    return load_column_fragment(weights, (int64_t{gate} * hidden + k) * hidden + unit, hidden,
                                unit < hidden ? hidden - k : 0);
  });

  // This lane finishes unit `own` of the block, and the one kRoundUnits further in the next round.
  const int own = kGated ? lane / 4 : lane;
  const auto exists = [&](int round) {
    const int u = own + round * kRoundUnits;
    return u < kUnits && first_unit + u < hidden;
  };
  T* const dgates = static_cast<T*>(dir.dgates);
  const int row_elements = kGates * padded;
  bool timed_out = false;
  unsigned published = 0;

  if (lane == 0) starts_anew[1][warp] = false;  // before the first step
  const auto step_of = [&](int s) { return step_of_pass(sizes, sizes.steps, !dir.reverse, s); };
  Step previous, current, next = step_of(0);
  const int last_step = last_backward_step(dir, sizes, sizes.steps);
  const auto add_bias_sums = [&](bool is_first) {
    add_bias_gradients<MODE, kUnits, kRounds>(&bias_sums[0][0][0], 1, dir.bias_sums, first_unit, hidden, is_first,
                                              [](int own, int bias) {
                                                const int lane = own % kRoundUnits;
                                                return own / kRoundUnits * 32 + (kGated ? lane * 4 + bias : lane);
                                              });
  };
#pragma unroll 1
  for (int s = 0; s <= last_step; ++s) {
    add_bias_sums_before<T>(s, add_bias_sums);
    previous = current;
    current = next;
    next = step_of(s + 1);
    const int columns = min(sizes.columns, max(current.batch, previous.batch) - sizes.first_column);
    if (columns <= 0) continue;

    const int column = lane / 4;
    const char* gradients =
        reinterpret_cast<const char*>(dgates + int64_t{previous.row + sizes.first_column + column} * row_elements);
    gradients += warp * 64 + lane % 4 * 16;
    const bool reads = column < min(sizes.columns, previous.batch - sizes.first_column);
    asm volatile("" : "+l"(gradients));  // computed before the delay
    wait_poll_delay(published, sizes.poll_delay_cycles);
    product.prefetch(gradients, reads);

    // The saved values of this lane's units: in flight while the gradients are.
    const int n = sizes.first_column + warp;
    const bool is_active = warp < columns && n < current.batch, was_active = warp < columns && n < previous.batch;
    const int row = is_active ? current.row + n : 0;
    LaneSaved<T> saved[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int u = exists(r) ? first_unit + own + r * kRoundUnits : 0;
      const bool has_before = is_active && n < next.batch;
      saved[r] = load_lane_saved<T, MODE, EXTRAS>(dir, hidden, params.y_row, u, row, has_before,
                                                  has_before ? next.row + n : row,
                                                  is_active ? int64_t{n} * hidden + u : 0, sub);
    }
    const bool restarted = restarts<EXTRAS>(dir, next, current, n);

    typename Product::Sums products;
    product.run(gradients, reads, sizes.timed_out, timed_out, products, [&] {
      if constexpr (kInputsWait) {
        for (int r = 0; r < kRounds; ++r) {
          inputs[0][warp][r][lane] = saved[r].own;
          inputs[1][warp][r][lane] = saved[r].other;
        }
      }
      if (EXTRAS && lane == 0) starts_anew[s & 1][warp] = restarted;
    });
    __syncthreads();  // the sums of the step before have been read
    Product::store(products, sums + warp * Product::kSumFloats);
    __syncthreads();
    if (!is_active && !was_active) continue;

    // dh from the next timestep. The subs of a unit share the work.
    float from_next[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int index = Product::sum_at(min(own + r * kRoundUnits, kUnits - 1), warp);
      if constexpr (kGated) {
        from_next[r] =
            sum_over_subs(sums[sub * Product::kSumFloats + index] + sums[(sub + 4) * Product::kSumFloats + index]);
      } else {
        from_next[r] = sum_over_warps(sums, Product::kSumFloats, index);
      }
    }

#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int own_unit = own + r * kRoundUnits, u = first_unit + own_unit;
      const int64_t state_index = int64_t{n} * hidden + u;
      Carried<MODE>* const carry = &carried[kGated ? warp : 0][min(own_unit, kUnits - 1)];
      float dh = from_next[r];
      Carried<MODE> past = kGated ? *carry : Carried<MODE>{};
      __syncwarp();
      dh *= load_mask<T, EXTRAS>(params.masks, 0, state_index, exists(r));
      float* const carry_h = &carried_h[kHasCarriedH ? warp : 0][min(own_unit, kUnits - 1)];
      float past_h = 0;
      if constexpr (kHasCarriedH) {
        dh += *carry_h;
        __syncwarp();
      }
      if (EXTRAS && starts_anew[~s & 1][warp]) {
        take_reset_gradients<T, MODE>(dir, state_index, exists(r) && was_active, dh, past, sub);
      }

      begin_or_end_sequence<T, MODE>(dir, state_index, exists(r), is_active, was_active, dh, past, sub);
      if (!is_active) continue;
      const int of_warp = kInputsWait ? warp : 0;
      LaneSaved<T> loaded = saved[r];
      if (kInputsWait) loaded = {inputs[0][of_warp][r][lane], inputs[1][of_warp][r][lane]};
      const bool is_first = EXTRAS && starts_anew[s & 1][warp];
      if (is_first) load_reset_state<T, MODE>(dir, state_index, exists(r), sub, loaded);
      const bool has_before = has_state_before<T, MODE>(dir, n < next.batch, is_first);
      float da = lanes_backward<MODE, kDigits, EXTRAS>(
          Element<T>::to_float(loaded.own), Element<T>::to_float(loaded.other), has_before, dh, past, sub, sizes.relu,
          EXTRAS && dir.dcells != nullptr, &params.masks, &past_h);
      da = u < hidden ? da : 0;
      if (kGated && sub == 0 && own_unit < kUnits) {
        *carry = past;
        if (kHasCarriedH) *carry_h = past_h;
      }
      if (MODE == PRNN_GRU && sub == 3 && exists(r)) store_float<T>(dir.dcandidate, int64_t{row} * hidden + u, da);
      publish_element(own_unit < kUnits && u < padded && sub < kGates,
                      dgates + (int64_t{row} * row_elements + sub * padded + u), Element<T>::from_float(da));
      bias_sums[warp][r][lane] += da;
    }
    published = clock_low();
  }

  __syncthreads();
  add_bias_sums(is_only_bias_sum<T>(last_step));
}

template <class T, prnnRNNMode_t MODE>
cudaError_t launch_mma_large_backward(const ResidentShape& shape, const BackwardParams& params, cudaStream_t stream) {
  return launch_resident(mma_large_backward<T, MODE, false>, shape, params, stream);
}

template <class T, prnnRNNMode_t MODE>
cudaError_t launch_mma_large_extras_backward(const ResidentShape& shape, const BackwardParams& params,
                                             cudaStream_t stream) {
  return launch_resident(mma_large_backward<T, MODE, true>, shape, params, stream);
}

}  // namespace prnn
