// The split-K wgmma backward kernel: gated cells in 16 bits, one tile of COLUMNS sequences a replica.
#pragma once

#include "rnn/cuda/wgmma/split_k_product.cuh"

namespace prnn {

// A gate set of clusters, one for each gate, owns 2 G kWgmmaUnits units: a cluster multiplies the gradients of its gate
// with the rows of all of them, half of the units a tile. A block adds up its tile's sums with those of the other block
// of the cluster, as forward, and gives each block of its rank in the gate set those of its kWgmmaUnits units, through
// L2. Words there say by their lowest bit of which step they are.
template <class T, prnnRNNMode_t MODE, int COLUMNS>
__global__ void __launch_bounds__(kResidentThreads, 1)
    wgmma_split_k_backward(const __grid_constant__ BackwardParams params) {
  if constexpr (!kHasWgmma) return;
  constexpr int kGates = gate_count(MODE);
  constexpr int kRounds = COLUMNS / 16;
  constexpr int kTileUnits = kGates * kWgmmaUnits;
  constexpr int kArrayBytes = COLUMNS * kWgmmaUnits * 2, kKeptBytes = 8 * kArrayBytes;
  using Product = SplitKProduct<T, COLUMNS>;

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const BlockPlace place = place_of_block(sizes, kWgmmaUnits);
  const BackwardDirection& dir = params.direction[place.direction];
  const int rank = static_cast<int>(cluster_rank());
  const int in_gate_set = blockIdx.x % sizes.blocks % (kGates * kSplitKCluster),
            own_gate = in_gate_set / kSplitKCluster;
  const int first_unit_of_set = (blockIdx.x % sizes.blocks - in_gate_set) * kWgmmaUnits;
  const int first_unit = first_unit_of_set + rank * kTileUnits + own_gate * kWgmmaUnits;
  const int hidden = sizes.hidden, padded = sizes.padded;
  const int replica_column = place.first_column, replica_columns = place.columns;
  if (replica_columns <= 0) return;

  static_assert((Product::kRingBytes + 3 * Product::kSumsBytes + kKeptBytes) % 1024 == 0, "the weights are aligned");
  extern __shared__ __align__(1024) char ring[];
  __shared__ BarrierPair barriers;
  const uint32_t own_sums = shared_address(ring) + Product::kRingBytes;
  const uint32_t saved = own_sums + 3 * Product::kSumsBytes;
  Product product;
  const T* const weights = static_cast<const T*>(dir.weights);
  const int share = split_k_share(padded), first_k = rank * share;
  product.template load_weights<true>(
      share, shared_address(ring), saved + kKeptBytes, [&](int chunk, int row, int vec) {
        const int k = first_k + chunk * kWgmmaChunk + row,
                  unit = first_unit_of_set + product.warpgroup.index * kTileUnits + vec * 8;
        return load_row_fragment(weights, (int64_t{own_gate} * hidden + k) * hidden + unit,
                                 k < hidden && vec * 8 < kTileUnits ? hidden - unit : 0);
      });
  barriers.init();
  __syncthreads();
  sync_cluster();

  const LaneColumns<kRounds, 16> own{first_unit + lane % 16, warp * 2 + lane / 16, replica_column,
                                     first_unit + lane % 16 < hidden};
  float carried[kRounds], bias_sum[4] = {0, 0, 0, 0};  // carried: the gradient that goes past the matrix
#pragma unroll
  for (int r = 0; r < kRounds; ++r) carried[r] = 0;
  bool timed_out = false;

  const auto point_at_gradients_of = [&](const Step& before) {
    point_at_gradients<T>(product.loads, dir, kGates * padded, own_gate * padded + first_k, (own_gate + 1) * padded,
                          replica_column, replica_columns, before);
  };
  // dy and what the forward pass kept, copied to shared memory by the lanes that want them: the gates, four a column
  // and unit, then dy, the state of a step earlier (c of an LSTM, h of a GRU) and c, one each.
  const auto saved_at = [&](int array, int r) {
    const int at = own.column(r) * kWgmmaUnits + lane % 16;
    return array < 0 ? at * 8 : (4 + array) * kArrayBytes + at * 2;
  };
  const char* const saved_here = ring + Product::kRingBytes + 3 * Product::kSumsBytes;
  const auto saved_value = [&](int array, int r) {
    return Element<T>::to_float(*reinterpret_cast<const T*>(saved_here + saved_at(array, r)));
  };
  const T* const states = static_cast<const T*>(MODE == PRNN_LSTM ? dir.cells : dir.y);
  const T* const initial = initial_states<T, MODE>(dir);
  const bool whole_words = ((reinterpret_cast<uintptr_t>(dir.dy) | reinterpret_cast<uintptr_t>(states) |
                             reinterpret_cast<uintptr_t>(initial) | params.y_row * sizeof(T)) %
                            4) == 0;
  const auto copy_saved = [&](const Step& here, const Step& after) {
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int n = own.sequence(r);
      const bool wanted = own.exists && own.column(r) < replica_columns && n < here.batch;
      const bool has_before = wanted && n < after.batch;
      const int64_t row = wanted ? here.row + n : 0;
      const int u = wanted ? own.unit : 0;
      copy_four(saved + saved_at(-1, r), static_cast<const Four<T>*>(dir.gates) + (row * hidden + u), wanted);
      if (lane % 2 == 0) {
        const T* const before =
            state_before<T, MODE>(dir, hidden, params.y_row, u, has_before, has_before ? after.row + n : row,
                                  wanted ? int64_t{n} * hidden + u : 0);
        copy_two(saved + saved_at(0, r), static_cast<const T*>(dir.dy) + (row * params.y_row + u), wanted, whole_words);
        copy_two(saved + saved_at(1, r), before, wanted && (has_before || initial != nullptr), whole_words);
        if (MODE == PRNN_LSTM) copy_two(saved + saved_at(2, r), states + (row * hidden + u), wanted, whole_words);
      }
    }
  };
  // The sums that clusters of a gate set give each other: [block][2][from gate][column][unit].
  float* const gate_sums = params.sums + own.first * kWgmmaUnits + lane % 16;
  const auto sums_at = [&](int gate, int buffer, int from, int r) {
    const int64_t block = blockIdx.x + (gate - own_gate) * kSplitKCluster;
    return gate_sums + (((block * 2 + buffer) * kGates + from) * COLUMNS + r * 16) * kWgmmaUnits;
  };

  const DirectionSteps& timesteps = params.timesteps[place.direction];
  const int count = steps_of_column(timesteps, replica_column), last_step = last_backward_step(dir, timesteps, count);
  const auto step_of = [&](int s) { return step_of_pass(timesteps, count, !dir.reverse, s); };
  StepWindow steps{{}, step_of(0), step_of(1)};
  point_at_gradients_of(steps.previous);
  product.prefetch();
  copy_saved(steps.current, steps.next);
#pragma unroll 1
  for (int s = 0; s <= last_step; ++s) {
    const int buffer = s & 1;
    const uint32_t phase = ~s / 2 & 1;
    const Step after_next = step_of(s + 2);
    product.run_and_share(s, rank, own_sums, barriers, sizes.timed_out, timed_out);
    point_at_gradients_of(steps.current);
    __syncthreads();
    barriers.wait(s, sizes.timed_out, timed_out);

    const float* const sums = reinterpret_cast<const float*>(ring + Product::kRingBytes);
    const float* const others = sums + (1 + buffer) * (Product::kSumsBytes / 4);
    float own_sum[kRounds];
    uint32_t given[kRounds][kGates];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      own_sum[r] = 0;
#pragma unroll
      for (int g = 0; g < kGates; ++g) {
        const int at = Product::sum_at(g * kWgmmaUnits + lane % 16, own.column(r));
        const float sum = sums[at] + others[at];
        if (g == own_gate) own_sum[r] = sum;
        publish_word(g != own_gate, sums_at(g, buffer, own_gate, r), (__float_as_uint(sum) & ~1u) | phase);
      }
    }
    const auto load_given = [&] {
      unroll<kRounds, kGates>([&](int r, int g) { given[r][g] = load_word(sums_at(own_gate, buffer, g, r)); });
    };
    load_given();
    wait_for_all_copies();
    __syncwarp();
    SpinTimeout timeout;
    while (!timed_out) {
      bool all = true;
      unroll<kRounds, kGates>([&](int r, int g) { all &= g == own_gate || (given[r][g] & 1) == phase; });
      if (__all_sync(kWholeWarp, all)) break;
      if (!__all_sync(kWholeWarp, timeout.keeps_spinning(sizes.timed_out))) timed_out = true;
      load_given();
    }

    float dh[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      dh[r] = 0;
#pragma unroll
      for (int g = 0; g < kGates; ++g) dh[r] += g == own_gate ? own_sum[r] : __uint_as_float(given[r][g]);
    }
    const auto saved_unit = [&](int r) -> SavedUnit<T> {
      return {*reinterpret_cast<const Four<T>*>(saved_here + saved_at(-1, r)), saved_value(0, r),
              MODE == PRNN_LSTM ? saved_value(2, r) : 0, saved_value(1, r)};
    };
    const unsigned published =
        finish_backward<T, MODE>(params, dir, own, steps, replica_columns, dh, saved_unit, carried, bias_sum, [&] {
          __syncwarp();  // what was saved has been read
          copy_saved(steps.next, after_next);
        });
    wait_poll_delay(published, sizes.poll_delay_cycles);
    steps = {steps.current, steps.next, after_next};
    product.prefetch();
  }
  wait_for_all_copies();
  __syncthreads();

  store_bias_gradients(bias_sum, reinterpret_cast<float*>(ring), dir.bias_sums, place.replica, hidden, own.unit,
                       own.exists);
  sync_cluster();  // no block leaves while the other may still write to its shared memory
}

template <class T, prnnRNNMode_t MODE, int COLUMNS>
cudaError_t launch_wgmma_split_k_backward(const ResidentShape& shape, const BackwardParams& params,
                                          cudaStream_t stream) {
  return launch_resident(wgmma_split_k_backward<T, MODE, COLUMNS>, shape, params, stream);
}

}  // namespace prnn
