// The wgmma forward resident kernel: gated cells in 16 bits, one tile of COLUMNS sequences a replica.
#pragma once

#include "rnn/cuda/wgmma/product.cuh"

namespace prnn {

// A block owns kWgmmaUnits units: rows gate * 16 + unit of the product. A lane finishes unit lane % 16 of one column a
// round: lanes 0..15 and 16..31 have columns 4 apart, whose sums lie in different banks.
template <class T, prnnRNNMode_t MODE, int COLUMNS>
__global__ void __launch_bounds__(kResidentThreads, 1) wgmma_forward(const __grid_constant__ ForwardParams params) {
  if constexpr (!kHasWgmma) return;
  constexpr int kGates = gate_count(MODE);
  constexpr int kRounds = COLUMNS >= 16 ? COLUMNS / 16 : 1;
  using Product = WgmmaProduct<T, COLUMNS>;

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const BlockPlace place = place_of_block(sizes, kWgmmaUnits);
  const ForwardDirection& dir = params.direction[place.direction];
  const int first_unit = place.first_unit;
  const int hidden = sizes.hidden, padded = sizes.padded;
  const int replica_column = place.first_column, replica_columns = place.columns;
  if (replica_columns <= 0) return;

  extern __shared__ __align__(1024) char ring[];
  Product product;
  const T* const weights = static_cast<const T*>(dir.weights);
  const auto load_weights = [&](const auto& load) {
    product.template load_weights<false>(
        padded, shared_address(ring), shared_address(ring) + Product::kRingBytes, [&](int chunk, int row, int vec) {
          const int unit = first_unit + row % kWgmmaUnits, gate = row / kWgmmaUnits, k = chunk * kWgmmaChunk + vec * 8;
          const int64_t index = (int64_t{gate} * hidden + unit) * hidden + k;
          return load(weights, index, unit < hidden && gate < kGates ? hidden - k : 0);
        });
  };
  if (COLUMNS < 64 && has_aligned_rows(weights, hidden)) {
    load_weights(load_aligned_vec<T>);
  } else {
    load_weights(load_row_fragment<T>);
  }

  const LaneColumns<kRounds, 16> own{first_unit + lane % 16, warp / 4 * 8 + warp % 4 + lane / 16 * 4, replica_column,
                                     first_unit + lane % 16 < hidden};
  float bias[4];  // LSTM: of the gates; GRU: r, z, n of R h, n of W x
#pragma unroll
  for (int g = 0; g < 4; ++g) bias[g] = load_bias<T, MODE>(dir, hidden, own.unit, g, own.exists);

  const T* const input_of_lane = static_cast<const T*>(dir.xw) + (own.exists ? own.unit : 0);
  const float* const sums0 = reinterpret_cast<const float*>(ring + Product::sums_offset(0));
  const float* const sums1 = reinterpret_cast<const float*>(ring + Product::sums_offset(1));
  float carried[kRounds];  // c (LSTM), h before rounding (GRU)
#pragma unroll
  for (int r = 0; r < kRounds; ++r) carried[r] = 0;
  bool timed_out = false;
  unsigned published = 0;  // the clock's low half

  const int count = steps_of_column(sizes, replica_column);
  StepWindow steps{{}, {}, step_of_pass(sizes, count, dir.reverse, 0)};
#pragma unroll 1
  for (int s = 0; s < count; ++s) {
    steps = {steps.current, steps.next, step_of_pass(sizes, count, dir.reverse, s + 1)};
    const int columns = min(replica_columns, steps.current.batch - replica_column);
    point_at_states<T>(product.loads, dir, padded, 0, replica_column, columns, steps.previous);
    // Issues the loads of the input products that this lane adds. No branches, which would wait for the loads here.
    T input[kRounds][kGates];
    unroll<kRounds, kGates>([&](int r, int g) {
      const int row = own.column(r) < columns ? steps.current.row + own.sequence(r) : 0;
      input[r][g] = __ldcs(input_of_lane + int64_t{row} * params.xw_row + g * params.xw_gate);
    });

    wait_poll_delay(published, sizes.poll_delay_cycles);
    product.prefetch();
    {
      typename Product::Sums sums;
      product.run(sums, sizes.timed_out, timed_out);
      product.store_sums(sums, ring);
    }
    __syncthreads();

    if (COLUMNS > 8 || warp < 4) {
      float sum[kRounds][kGates], fed[kRounds][kGates];
      unroll<kRounds, kGates>([&](int r, int g) {
        const int at = Product::sum_at(g * kWgmmaUnits + lane % 16, own.column(r));
        sum[r][g] = sums0[at] + sums1[at] + bias[g];
        fed[r][g] = Element<T>::to_float(input[r][g]) + (MODE == PRNN_GRU && g == 2 ? bias[3] : 0);
      });
      published = finish_forward<T, MODE>(params, dir, own, steps, columns, sum, fed, carried);
    } else {
      published = clock_low();
    }
    __syncthreads();  // the sums have been read: the ring is free
  }
}

template <class T, prnnRNNMode_t MODE, int COLUMNS>
cudaError_t launch_wgmma_forward(const ResidentShape& shape, const ForwardParams& params, cudaStream_t stream) {
  return launch_resident(wgmma_forward<T, MODE, COLUMNS>, shape, params, stream);
}

}  // namespace prnn
