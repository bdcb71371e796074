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

  // The ring of the product; sums for this block's units, [2][share of K][columns / 8][128]; the exchange of the
  // warpgroups' sums, twice; weights beyond the registers.
  extern __shared__ __align__(1024) char ring[];
  __shared__ uint64_t barriers[2];
  float* const partial = reinterpret_cast<float*>(ring + Product::kRingBytes);
  const uint32_t exchange = shared_address(partial + 2 * kBufferFloats);
  if (threadIdx.x == 0) {
    init_barrier(&barriers[0]);
    init_barrier(&barriers[1]);
  }

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
  __syncthreads();
  sync_cluster();

  const int unit = first_unit + lane % 16;
  const int own_column = product.warpgroup * (COLUMNS / 2) + warp * 2 + lane / 16;  // round r: 8 r further
  const bool exists = unit < hidden, finishes = COLUMNS > 8 || product.warpgroup == 0;
  const int vec = lane % 8 * 4 + warp;  // of 16 bytes
  const int own_place =
      product.warpgroup * (COLUMNS * 8) + (vec ^ vec / 8) * 4 + lane / 8 % 2 * 2 + lane / 16;  // of its sum in a share
  T* const dgates = static_cast<T*>(dir.dgates);
  const int row_elements = kGates * padded;
  float carried[kRounds], bias_sum[4] = {0, 0, 0, 0};  // carried: the gradient that goes past the matrix
#pragma unroll
  for (int r = 0; r < kRounds; ++r) carried[r] = 0;
  bool timed_out = false;
  int round = 0;           // steps done so far: which of two buffers, and the barriers' phase
  unsigned published = 0;  // the clock's low half

  // A backward step runs t downwards unless the layer's direction is reversed.
  const int start = dir.reverse ? 0 : sizes.steps - 1, stride = dir.reverse ? 1 : -1;
  Step previous, current, next = step_at(sizes, start);
  // One more step than timesteps, for the gradients of the initial states.
  const int last_step =
      dir.dhx == nullptr && dir.dcx == nullptr && sizes.table == nullptr ? sizes.steps - 1 : sizes.steps;
#pragma unroll 1
  for (int s = 0; s <= last_step; ++s) {
    previous = current;
    current = next;
    next = s + 1 < sizes.steps ? step_at(sizes, start + (s + 1) * stride) : Step{0, 0};
    const int columns = min(replica_columns, max(current.batch, previous.batch) - replica_column);
    if (columns <= 0) continue;

#pragma unroll
    for (int i = 0; i < Product::kLoadColumns; ++i) {
      const int column = product.column(i);
      const T* const from = dgates + int64_t{previous.row + replica_column + column} * row_elements;
      product.source[i] = reinterpret_cast<const char*>(from + rank * share + product.first_element());
      const bool reads = column < min(replica_columns, previous.batch - replica_column);
      product.left[i] = reads ? share - product.first_element() : 0;
    }
    // Issues the loads of what the forward pass saved for the units of this lane. No branches, which would wait for the
    // loads here.
    T dy[kRounds], cell[kRounds], before[kRounds];  // c (LSTM); c (LSTM) or h (GRU) a timestep earlier
    Four<T> gates[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int column = own_column + r * 8, n = replica_column + column;
      const bool wanted = finishes && exists && column < replica_columns && n < current.batch;
      const bool has_before = wanted && n < next.batch;
      const int u = wanted ? unit : 0, row = wanted ? current.row + n : 0, row_before = has_before ? next.row + n : row;
      const int64_t at = int64_t{row} * hidden + u;
      dy[r] = __ldcs(static_cast<const T*>(dir.dy) + (int64_t{row} * params.y_row + u));
      gates[r] = static_cast<const Four<T>*>(dir.gates)[at];
      const T* const states = static_cast<const T*>(MODE == PRNN_LSTM ? dir.cells : dir.y);
      const T* const initial = static_cast<const T*>(MODE == PRNN_LSTM ? dir.cx : dir.hx);
      const int state_row = MODE == PRNN_LSTM ? hidden : params.y_row;
      before[r] = *(!has_before && initial != nullptr ? initial + (wanted ? int64_t{n} * hidden + u : 0)
                                                      : states + (int64_t{row_before} * state_row + u));
      if (MODE == PRNN_LSTM) cell[r] = states[at];
    }

    wait_poll_delay(published, sizes.poll_delay_cycles);
    product.prefetch();

    // A warp has the sums of all units of one of the cluster's blocks over its share of K, and gives them to it.
    const int buffer = round & 1;
    float* const own_partial = partial + buffer * kBufferFloats;
    {
      typename Product::Sums sums;
      product.run(sums, sizes.timed_out, timed_out);
      const int own_share = kAddsFirst ? rank : rank * 2 + product.warpgroup;
      const int own_eighth = kAddsFirst ? product.warpgroup * kRounds : 0;
      const float* const place = own_partial + own_share * kShareFloats + own_eighth * 128 + (lane ^ lane / 8) * 4;
      const uint32_t there = address_in_rank(shared_address(place), warp);
      const uint32_t barrier = address_in_rank(shared_address(&barriers[buffer]), warp);
      if constexpr (kAddsFirst) {
        typename Product::OwnSums own;
        product.exchange_sums(sums, exchange + buffer * kExchangeBytes, own);
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          send_to_rank(there + r * 512, barrier, {own[r][0], own[r][1], own[r][2], own[r][3]});
        }
      } else {
#pragma unroll
        for (int r = 0; r < COLUMNS / 8; ++r) {
          send_to_rank(there + r * 512, barrier, {sums[r * 4], sums[r * 4 + 1], sums[r * 4 + 2], sums[r * 4 + 3]});
        }
      }
    }
    if (threadIdx.x == 0) expect_bytes(&barriers[buffer], kBufferFloats * sizeof(float));
    SpinTimeout timeout;
    while (!timed_out && !__all_sync(kWholeWarp, has_arrived(shared_address(&barriers[buffer]), round / 2 & 1))) {
      if (!__all_sync(kWholeWarp, timeout.keeps_spinning(sizes.timed_out))) timed_out = true;
    }
    ++round;

    published = clock_low();
    if (finishes) {
      float da[kRounds][4];
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const int column = own_column + r * 8, n = replica_column + column;
        const bool in_replica = column < columns, is_active = in_replica && n < current.batch;
        const bool was_active = in_replica && n < previous.batch;
        const int64_t state_index = int64_t{n} * hidden + unit;
        float dh = 0;
#pragma unroll
        for (int from = 0; from < kShares; ++from) dh += own_partial[from * kShareFloats + own_place + r * 128];
        begin_or_end_sequence<T, MODE>(dir, state_index, exists, is_active, was_active, dh, carried[r]);
        dh += Element<T>::to_float(dy[r]);
        const bool has_initial = (MODE == PRNN_LSTM ? dir.cx : dir.hx) != nullptr;
        const float state_before = n < next.batch || has_initial ? Element<T>::to_float(before[r]) : 0;
        const float state = MODE == PRNN_LSTM ? Element<T>::to_float(cell[r]) : 0;
        backward_unit<T, MODE>(gates[r], state, state_before, dh, is_active && exists, carried[r], da[r]);
      }
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const int column = own_column + r * 8, n = replica_column + column;
        const bool publishes = column < columns && n < current.batch && lane % 2 == 0 && unit < padded;
        T* const out = dgates + int64_t{current.row + n} * row_elements + unit;
        publish_gradients<T, kGates>(publishes, out, padded, da[r]);
      }
      published = clock_low();
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const int column = own_column + r * 8, n = replica_column + column;
        if (MODE == PRNN_GRU && exists && column < columns && n < current.batch) {
          store_float<T>(dir.dcandidate, int64_t{current.row + n} * hidden + unit, da[r][3]);
        }
#pragma unroll
        for (int g = 0; g < 4; ++g) bias_sum[g] += da[r][g];
      }
    }
  }
  __syncthreads();

  store_bias_gradients(bias_sum, reinterpret_cast<float*>(ring), dir.bias_sums, place.replica, hidden, unit, exists);
  // No block leaves while others may still write to its shared memory.
  sync_cluster();
}

template <class T, prnnRNNMode_t MODE, int COLUMNS>
cudaError_t launch_wgmma_backward(const ResidentShape& shape, const BackwardParams& params, cudaStream_t stream) {
  return launch_resident(wgmma_backward<T, MODE, COLUMNS>, shape, params, stream);
}

}  // namespace prnn
