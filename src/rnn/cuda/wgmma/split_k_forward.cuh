// The split-K wgmma forward kernel: gated cells in 16 bits, one tile of COLUMNS sequences a replica.
#pragma once

#include "rnn/cuda/wgmma/split_k_product.cuh"

namespace prnn {

// A cluster owns 2 kWgmmaUnits units, each block's a tile of the product: rows gate * 16 + unit. Both blocks multiply
// both tiles with their own share of K, and each block finishes its tile with the sums of both.
template <class T, prnnRNNMode_t MODE, int COLUMNS>
__global__ void __launch_bounds__(kResidentThreads, 1)
    wgmma_split_k_forward(const __grid_constant__ ForwardParams params) {
  if constexpr (!kHasWgmma) return;
  constexpr int kGates = gate_count(MODE);
  constexpr int kRounds = COLUMNS / 16;
  constexpr int kInputBytes = COLUMNS * 4 * kWgmmaUnits * 2;
  using Product = SplitKProduct<T, COLUMNS>;

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const BlockPlace place = place_of_block(sizes, kWgmmaUnits);
  const ForwardDirection& dir = params.direction[place.direction];
  const int rank = static_cast<int>(cluster_rank());
  const int first_unit = place.first_unit;
  const int hidden = sizes.hidden, padded = sizes.padded;
  const int replica_column = place.first_column, replica_columns = place.columns;
  if (replica_columns <= 0) return;

  extern __shared__ __align__(1024) char ring[];
  __shared__ BarrierPair barriers;
  const uint32_t own_sums = shared_address(ring) + Product::kRingBytes;
  const uint32_t inputs = own_sums + 3 * Product::kSumsBytes;  // [2][column][gate][unit], used in turn
  Product product;
  const T* const weights = static_cast<const T*>(dir.weights);
  const int share = split_k_share(padded), first_k = rank * share;
  product.template load_weights<false>(
      share, shared_address(ring), inputs + 2 * kInputBytes, [&](int chunk, int row, int vec) {
        const int unit = first_unit + (product.warpgroup.index - rank) * kWgmmaUnits + row % kWgmmaUnits,
                  gate = row / kWgmmaUnits;
        const int k = first_k + chunk * kWgmmaChunk + vec * 8;
        const int64_t index = (int64_t{gate} * hidden + unit) * hidden + k;
        return load_row_fragment(weights, index, unit < hidden && gate < kGates ? hidden - k : 0);
      });
  barriers.init();
  __syncthreads();
  sync_cluster();

  const LaneColumns<kRounds, 16> own{first_unit + lane % 16, warp * 2 + lane / 16, replica_column,
                                     first_unit + lane % 16 < hidden};
  __shared__ float bias[4][kWgmmaUnits];  // LSTM: of the gates; GRU: r, z, n of R h, n of W x
  if (threadIdx.x < 4 * kWgmmaUnits) {
    const int g = threadIdx.x / kWgmmaUnits, u = first_unit + threadIdx.x % kWgmmaUnits;
    bias[g][threadIdx.x % kWgmmaUnits] = load_bias<T, MODE>(dir, hidden, u, g, u < hidden);
  }

  float carried[kRounds];  // c (LSTM), h before rounding (GRU)
#pragma unroll
  for (int r = 0; r < kRounds; ++r) carried[r] = 0;
  bool timed_out = false;

  // The input products of a step: a lane copies two units of gate lane / 8 of every eighth column.
  const int copied_unit = first_unit + lane % 8 * 2, copied_gate = lane / 8;
  const bool copies = copied_gate < kGates && copied_unit < hidden;
  const T* const copied = static_cast<const T*>(dir.xw) + (copies ? copied_gate * params.xw_gate + copied_unit : 0);
  const bool in_pairs = (reinterpret_cast<uintptr_t>(copied) | params.xw_row * sizeof(T)) % 4 == 0;
  const auto copy_inputs = [&](const Step& here, int buffer) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; ++i) {
      const int column = i * 8 + warp, n = replica_column + column;
      const bool reads = copies && column < replica_columns && n < here.batch;
      copy_two(inputs + buffer * kInputBytes + (column * 32 + lane) * 4,
               copied + int64_t{reads ? here.row + n : 0} * params.xw_row, reads, in_pairs);
    }
  };

  const DirectionSteps& timesteps = params.timesteps[place.direction];
  const int count = steps_of_column(timesteps, replica_column);
  const auto step_of = [&](int s) { return step_of_pass(timesteps, count, dir.reverse, s); };
  const auto columns_of = [&](const Step& step) { return min(replica_columns, step.batch - replica_column); };
  StepWindow steps{{}, step_of(0), step_of(1)};
  point_at_states<T>(product.loads, dir, padded, first_k, replica_column, columns_of(steps.current), steps.previous);
  product.prefetch();
  copy_inputs(steps.current, 0);
#pragma unroll 1
  for (int s = 0; s < count; ++s) {
    const int columns = columns_of(steps.current), buffer = s & 1;
    const Step after_next = step_of(s + 2);
    product.run_and_share(s, rank, own_sums, barriers, sizes.timed_out, timed_out);
    wait_for_all_copies();
    point_at_states<T>(product.loads, dir, padded, first_k, replica_column, columns_of(steps.next), steps.current);
    __syncthreads();
    copy_inputs(steps.next, 1 - buffer);  // here, as a fence in the product waits for copies on their way
    barriers.wait(s, sizes.timed_out, timed_out);

    const float* const sums = reinterpret_cast<const float*>(ring + Product::kRingBytes);
    const float* const others = sums + (1 + buffer) * (Product::kSumsBytes / 4);
    const T* const input = reinterpret_cast<const T*>(ring + Product::kRingBytes + 3 * Product::kSumsBytes) +
                           (buffer * COLUMNS + own.first) * (4 * kWgmmaUnits) + lane % 16;
    float sum[kRounds][kGates], fed[kRounds][kGates];
    unroll<kRounds, kGates>([&](int r, int g) {
      const int at = Product::sum_at(g * kWgmmaUnits + lane % 16, own.column(r));
      sum[r][g] = sums[at] + others[at] + bias[g][lane % 16];
      fed[r][g] = Element<T>::to_float(input[(r * 16 * 4 + g) * kWgmmaUnits]) +
                  (MODE == PRNN_GRU && g == 2 ? bias[3][lane % 16] : 0);
    });
    const unsigned published = finish_forward<T, MODE>(params, dir, own, steps, columns, sum, fed, carried);
    wait_poll_delay(published, sizes.poll_delay_cycles);
    steps = {steps.current, steps.next, after_next};
    product.prefetch();
  }
  sync_cluster();  // no block leaves while the other may still write to its shared memory
}

template <class T, prnnRNNMode_t MODE, int COLUMNS>
cudaError_t launch_wgmma_split_k_forward(const ResidentShape& shape, const ForwardParams& params, cudaStream_t stream) {
  return launch_resident(wgmma_split_k_forward<T, MODE, COLUMNS>, shape, params, stream);
}

}  // namespace prnn
