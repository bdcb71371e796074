// The wgmma backward resident kernel: gated cells in 16 bits, one tile of COLUMNS sequences a replica.
#pragma once

#include "rnn/cuda/wgmma/product.cuh"

namespace prnn {

// A cluster of kWgmmaCluster blocks owns 64 units, the rows of the product; its blocks split K, which runs over all
// gates' gradients, and their warpgroups again. A warp's 16 rows are the units that one of the blocks finishes: it
// sends that block its sums as it has them. A lane finishes unit lane % 16 of one column a round.
template <class T, prnnRNNMode_t MODE, int COLUMNS>
__global__ void __launch_bounds__(kResidentThreads, 1) wgmma_backward(const __grid_constant__ BackwardParams params) {
  if constexpr (!kHasWgmma) return;
  constexpr int kGates = gate_count(MODE);
  constexpr int kRows = kWgmmaCluster * kWgmmaUnits;
  constexpr bool kAddsFirst = COLUMNS > 16;  // the warpgroups' sums in the block, before they are sent
  constexpr int kShares = kAddsFirst ? kWgmmaCluster : 2 * kWgmmaCluster;  // of K that a unit's sums come from
  constexpr int kShareFloats = COLUMNS * kWgmmaUnits, kBufferFloats = kShares * kShareFloats;
  using Product = WgmmaProduct<T, COLUMNS>;
  constexpr int kRounds = Product::kEighths;
  constexpr int kExchangeBytes = kAddsFirst ? Product::kExchangeBytes : 0;

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const BlockPlace place = place_of_block(sizes, kWgmmaUnits);
  const BackwardDirection& dir = params.direction[place.direction];
  const int rank = static_cast<int>(cluster_rank());
  const int cluster_unit = blockIdx.x % sizes.blocks / kWgmmaCluster * kRows;
  const int first_unit = cluster_unit + rank * kWgmmaUnits;
  const int hidden = sizes.hidden, padded = sizes.padded;
  const int replica_column = place.first_column, replica_columns = place.columns;
  if (replica_columns <= 0) return;

  // The ring of the product; sums for this block's units, [2][share of K][columns / 8][128]; the exchange of the
  // warpgroups' sums, twice; weights beyond the registers.
  extern __shared__ __align__(1024) char ring[];
  __shared__ BarrierPair barriers;
  float* const partial = reinterpret_cast<float*>(ring + Product::kRingBytes);
  const uint32_t exchange = shared_address(partial + 2 * kBufferFloats);
  const int share = kGates * padded / kWgmmaCluster;  // of K, in elements
  Product product;
  const T* const weights = static_cast<const T*>(dir.weights);
  const auto load_weights = [&](const auto& load) {
    product.template load_weights<true>(share, shared_address(ring), exchange + 2 * kExchangeBytes,
                                        [&](int chunk, int row, int vec) {
                                          const int at = chunk * kWgmmaChunk + row, gate = (rank * share + at) / padded,
                                                    k = (rank * share + at) % padded;
                                          const int unit = cluster_unit + vec * 8;
                                          return load(weights, (int64_t{gate} * hidden + k) * hidden + unit,
                                                      at < share && k < hidden ? hidden - unit : 0);
                                        });
  };
  if (COLUMNS < 64 && has_aligned_rows(weights, hidden)) {
    load_weights(load_aligned_vec<T>);
  } else {
    load_weights(load_row_fragment<T>);
  }
  barriers.init();
  __syncthreads();
  sync_cluster();

  const int warpgroup = product.warpgroup.index;
  const LaneColumns<kRounds, 8> own{first_unit + lane % 16, warpgroup * (COLUMNS / 2) + warp * 2 + lane / 16,
                                    replica_column, first_unit + lane % 16 < hidden};
  const bool finishes = COLUMNS > 8 || warpgroup == 0;
  const int vec = lane % 8 * 4 + warp;  // of 16 bytes
  const int own_place =
      warpgroup * (COLUMNS * 8) + (vec ^ vec / 8) * 4 + lane / 8 % 2 * 2 + lane / 16;  // of its sum in a share
  float carried[kRounds], bias_sum[4] = {0, 0, 0, 0};  // carried: the gradient that goes past the matrix
#pragma unroll
  for (int r = 0; r < kRounds; ++r) carried[r] = 0;
  bool timed_out = false;
  unsigned published = 0;  // the clock's low half

  const int count = steps_of_column(sizes, replica_column), last_step = last_backward_step(dir, sizes, count);
  StepWindow steps{{}, {}, step_of_pass(sizes, count, !dir.reverse, 0)};
#pragma unroll 1
  for (int s = 0; s <= last_step; ++s) {
    steps = {steps.current, steps.next, step_of_pass(sizes, count, !dir.reverse, s + 1)};
    point_at_gradients<T>(product.loads, dir, kGates * padded, rank * share, (rank + 1) * share, replica_column,
                          replica_columns, steps.previous);
    // Issues the loads of what the forward pass saved for the units of this lane. No branches, which would wait for the
    // loads here.
    T dy[kRounds], cell[kRounds], before[kRounds];  // c (LSTM); c (LSTM) or h (GRU) a timestep earlier
    Four<T> gates[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int n = own.sequence(r);
      const bool wanted = finishes && own.exists && own.column(r) < replica_columns && n < steps.current.batch;
      const bool has_before = wanted && n < steps.next.batch;
      const int u = wanted ? own.unit : 0, row = wanted ? steps.current.row + n : 0;
      const int row_before = has_before ? steps.next.row + n : row;
      const int64_t at = int64_t{row} * hidden + u;
      dy[r] = __ldcs(static_cast<const T*>(dir.dy) + (int64_t{row} * params.y_row + u));
      gates[r] = static_cast<const Four<T>*>(dir.gates)[at];
      before[r] = *state_before<T, MODE>(dir, hidden, params.y_row, u, has_before, row_before,
                                         wanted ? int64_t{n} * hidden + u : 0);
      if (MODE == PRNN_LSTM) cell[r] = static_cast<const T*>(dir.cells)[at];
    }

    wait_poll_delay(published, sizes.poll_delay_cycles);
    product.prefetch();

    // A warp has the sums of all units of one of the cluster's blocks over its share of K, and gives them to it.
    const int buffer = s & 1;
    float* const own_partial = partial + buffer * kBufferFloats;
    {
      typename Product::Sums sums;
      product.run(sums, sizes.timed_out, timed_out);
      const int own_share = kAddsFirst ? rank : rank * 2 + warpgroup;
      const int own_eighth = kAddsFirst ? warpgroup * kRounds : 0;
      const float* const place = own_partial + own_share * kShareFloats + own_eighth * 128 + (lane ^ lane / 8) * 4;
      const uint32_t there = address_in_rank(shared_address(place), warp);
      const uint32_t barrier = address_in_rank(barriers.address(buffer), warp);
      if constexpr (kAddsFirst) {
        typename Product::OwnSums both;
        product.exchange_sums(sums, exchange + buffer * kExchangeBytes, both);
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          send_to_rank(there + r * 512, barrier, {both[r][0], both[r][1], both[r][2], both[r][3]});
        }
      } else {
#pragma unroll
        for (int r = 0; r < COLUMNS / 8; ++r) {
          send_to_rank(there + r * 512, barrier, {sums[r * 4], sums[r * 4 + 1], sums[r * 4 + 2], sums[r * 4 + 3]});
        }
      }
    }
    barriers.expect(buffer, kBufferFloats * sizeof(float));
    barriers.wait(s, sizes.timed_out, timed_out);

    published = clock_low();
    if (finishes) {
      float dh[kRounds];
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        dh[r] = 0;
#pragma unroll
        for (int from = 0; from < kShares; ++from) dh[r] += own_partial[from * kShareFloats + own_place + r * 128];
      }
      const bool has_initial = initial_states<T, MODE>(dir) != nullptr;
      const auto saved = [&](int r) -> SavedUnit<T> {
        const bool has_before = own.sequence(r) < steps.next.batch || has_initial;
        return {gates[r], Element<T>::to_float(dy[r]), MODE == PRNN_LSTM ? Element<T>::to_float(cell[r]) : 0,
                has_before ? Element<T>::to_float(before[r]) : 0};
      };
      published =
          finish_backward<T, MODE>(params, dir, own, steps, replica_columns, dh, saved, carried, bias_sum, [] {});
    }
  }
  __syncthreads();

  store_bias_gradients(bias_sum, reinterpret_cast<float*>(ring), dir.bias_sums, place.replica, hidden, own.unit,
                       own.exists);
  // No block leaves while others may still write to its shared memory.
  sync_cluster();
}

template <class T, prnnRNNMode_t MODE, int COLUMNS>
cudaError_t launch_wgmma_backward(const ResidentShape& shape, const BackwardParams& params, cudaStream_t stream) {
  return launch_resident(wgmma_backward<T, MODE, COLUMNS>, shape, params, stream);
}

}  // namespace prnn
