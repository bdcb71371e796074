// The backward mma kernel: from dy to the gradients of all gates, timestep after timestep, the transposed
// recurrent weights on the chip. Steps run against the forward pass; "previous" is the step done before, which the
// forward pass did after.
#pragma once

#include "rnn/cuda/mma/product.cuh"

namespace prnn {

// A tile has 8 sequences: warp w finishes sequence w of it. Its lanes are unit * 4 + sub; `sub` is the gate of an LSTM,
// the gate of a GRU (3: the candidate's gradient with respect to W x + bW), and the row tile of units of an RNN.
// SINGLE: a replica has no more than one tile, and the loops over tiles fall away. EXTRAS: with prnnRNNExtras_t
// or prnnRNNMasks_t.
template <class T, prnnRNNMode_t MODE, int UNIT_TILES, int CLUSTER, bool SINGLE, bool EXTRAS>
__global__ void __launch_bounds__(kResidentThreads, 1) mma_backward(const __grid_constant__ BackwardParams params) {
  if constexpr (CLUSTER > 1 && !kHasClusters) return;
  constexpr bool kGated = MODE != PRNN_RNN_TANH;
  constexpr int kGates = gate_count(MODE);
  constexpr int kRowTiles = UNIT_TILES * CLUSTER;
  constexpr int kUnits = UNIT_TILES * kTileRows;
  constexpr int kRounds = lane_rounds(kGated, UNIT_TILES);
  constexpr int kWave = SINGLE ? 1 : wave_tiles(kRowTiles, kRounds);
  constexpr int kKTile = k_tile_elements(sizeof(T) == 4);
  constexpr int kSumFloats = kRowTiles * kTileFloats + (CLUSTER == 1 ? 1 : 0);  // of a warp; odd against bank conflicts
  constexpr int kOwnFloats = UNIT_TILES * kTileFloats;
  using Product = MmaProduct<T, kRowTiles, kTileFloats, SINGLE, (kRowTiles < 8)>;  // 8 leave no registers

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const int rank = CLUSTER == 1 ? 0 : static_cast<int>(cluster_rank());
  const BlockPlace place = place_of_block(sizes, kUnits);
  const BackwardDirection& dir = params.direction[place.direction];
  const int replica = place.replica, first_unit = place.first_unit, cluster_unit = first_unit - rank * kUnits;
  const int replica_column = place.first_column, replica_columns = place.columns;
  const int hidden = sizes.hidden, padded = sizes.padded;

  // [2][tile of a wave][warps][row tiles][64] sums of warps; [2][ranks][tile of a wave][unit row tiles][64] sums of
  // blocks, in clusters; the sums for the biases, [tile][warp][round][lane].
  extern __shared__ uint4 shared[];
  __shared__ BarrierPair barriers;
  // The gradient that goes past the matrix; of an LSTM c's, and then h's with masks.
  constexpr bool kHasH = kCarriesH<MODE, EXTRAS>;
  using Carry = Carried<MODE>;
  __shared__ Carry carried[SINGLE && kHasH ? 1 : kMaxTiles][kResidentWarps][kHasH ? 2 * kUnits : kGated ? kUnits : 1];
  float* const sums = reinterpret_cast<float*>(shared);
  float* const partial = sums + 2 * kWave * kResidentWarps * kSumFloats;
  float* const bias_sums = partial + (CLUSTER > 1 ? 2 * CLUSTER * kWave * kOwnFloats : 0);
  const int tiles = (max(replica_columns, 0) + kTileColumns - 1) / kTileColumns;
  const int bias_floats = kResidentWarps * kRounds * 32;  // of one tile
  for (int i = threadIdx.x; i < tiles * bias_floats; i += kResidentThreads) bias_sums[i] = 0;
  if constexpr (CLUSTER > 1) barriers.init();

  // K runs over the gates one after the other, each rounded up to whole k-tiles; a block of a cluster has its share.
  const int gate_k_tiles = padded / kKTile, block_k_tiles = gate_k_tiles * kGates / CLUSTER;
  Product product;
  product.replica_columns = &sizes.columns_per_replica;
  product.k_tile_stride = 64 * kResidentWarps;
  const T* const weights = static_cast<const T*>(dir.weights);
  product.load_weights(block_k_tiles, bias_sums + tiles * bias_floats, [&](int row_tile, int k_tile) {
    const int unit = cluster_unit + row_tile * kTileRows + lane / 4;
    const int gate = (rank * block_k_tiles + k_tile) / gate_k_tiles;
    const int k = (rank * block_k_tiles + k_tile) % gate_k_tiles * kKTile + sub * (16 / static_cast<int>(sizeof(T)));
    return load_column_fragment(weights, (int64_t{gate} * hidden + k) * hidden + unit, hidden,
                                unit < hidden ? hidden - k : 0);
  });
  __syncthreads();
  if constexpr (CLUSTER > 1) sync_cluster();

  // This lane finishes one unit a round; the first is `unit`, the next ones lie 8 further each.
  const int own_tile = kGated ? 0 : sub;
  const int unit = first_unit + own_tile * kTileRows + lane / 4;
  const bool own_lane = kGated || sub < UNIT_TILES;

  T* const dgates = static_cast<T*>(dir.dgates);
  const int row_elements = kGates * padded;
  const int lane_bytes = (rank * block_k_tiles + warp) * 64 + sub * 16;
  bool timed_out = false, prefetched = false;
  int round = 0;           // waves done so far: which of two buffers, and the barriers' phase
  unsigned published = 0;  // the clock's low half

  const auto add_bias_sums = [&](bool is_first) {
    float* const to = dir.bias_sums + int64_t{pin_in_register(replica)} * Cell<MODE>::kBiases * hidden;
    add_bias_gradients<MODE, kUnits, kRounds>(bias_sums, pin_in_register(tiles), to, pin_in_register(first_unit),
                                              hidden, is_first, bias_index<kGated>);
  };

  // A backward step runs t downwards unless the layer's direction is reversed.
  const auto step_of = [&](int s) { return step_of_pass(sizes, sizes.steps, !dir.reverse, s); };
  Step previous, current, next = step_of(0);
  const int last_step = last_backward_step(dir, sizes, sizes.steps);
  for (int s = 0; s <= last_step; ++s) {
    add_bias_sums_before<T>(s, add_bias_sums);
    previous = current;
    current = next;
    next = step_of(s + 1);
    const int columns = min(replica_columns, max(current.batch, previous.batch) - replica_column);
    const int next_columns = s < last_step ? min(replica_columns, max(next.batch, current.batch) - replica_column) : 0;

    for (int wave = 0; wave == 0 || !SINGLE; ++wave) {
      const int first = wave * kWave * kTileColumns;
      if (first >= columns) break;
      const int left = SINGLE ? 1 : (columns - first + kTileColumns - 1) / kTileColumns, count = min(left, kWave);
      // The next wave's loads may be issued ahead: its gradients are of this step, or every block has published them.
      const bool is_last_wave = left <= kWave, follows = !SINGLE && (!is_last_wave || (wave > 0 && next_columns > 0));

      // Where this lane finds the gradients of its column (lane / 4) of a tile.
      const auto gradients_at = [&](int tile) {
        const bool of_next = is_last_wave && tile >= count;
        const int row_before = of_next ? current.row : previous.row;
        const int column =
            (of_next ? (tile - count) * kTileColumns : first + tile * kTileColumns) + product.column_of(lane);
        const T* const row = dgates + int64_t{row_before + replica_column + column} * row_elements;
        return reinterpret_cast<const char*>(row) + lane_bytes;
      };
      const auto reads = [&](int tile) {
        const bool of_next = is_last_wave && tile >= count;
        const int batch_before = of_next ? current.batch : previous.batch;
        return (of_next ? (tile - count) * kTileColumns : first + tile * kTileColumns) + product.column_of(lane) <
               min(replica_columns, batch_before - replica_column);
      };

      // The saved values of this lane's units: in flight while the gradients are.
      LaneSaved<T> saved[kWave][kRounds];
      unroll<kWave, kRounds>([&](int j, int r) {
        const int column = first + j * kTileColumns + warp, n = replica_column + column;
        const bool wanted = own_lane && column < replica_columns && n < current.batch && unit + r * kTileRows < hidden;
        const bool has_before = wanted && n < next.batch;
        const int u = wanted ? unit + r * kTileRows : 0;
        const int row = wanted ? current.row + n : 0, row_before = has_before ? next.row + n : row;
        saved[j][r] = load_lane_saved<T, MODE, EXTRAS>(dir, hidden, params.y_row, u, row, has_before, row_before,
                                                       wanted ? int64_t{n} * hidden + u : 0, sub);
      });
      bool restarted[kWave], is_first[kWave];  // sequences start anew with the step before in this pass, and this one
#pragma unroll
      for (int j = 0; EXTRAS && j < kWave; ++j) {
        const int n = replica_column + first + j * kTileColumns + warp;
        restarted[j] = restarts<EXTRAS>(dir, current, previous, n);
        is_first[j] = restarts<EXTRAS>(dir, next, current, n);
      }

      if (SINGLE || !prefetched) {
        if (SINGLE) wait_poll_delay(published, sizes.poll_delay_cycles);
        product.prefetch(gradients_at, reads, count);
      }

      const int buffer = round & 1;
      float* const wave_sums = sums + buffer * kWave * kResidentWarps * kSumFloats;
      prefetched = product.template run<kWave>(count, follows, gradients_at, reads, sizes.timed_out, timed_out,
                                               wave_sums + warp * kSumFloats, kResidentWarps * kSumFloats);
      __syncthreads();

      float* const own_partial = partial + buffer * CLUSTER * kWave * kOwnFloats;
      if constexpr (CLUSTER > 1) {
        exchange_partial_sums<CLUSTER, kWave, kSumFloats, kOwnFloats>(wave_sums, count, own_partial, barriers, rank,
                                                                      round, sizes.timed_out, timed_out);
      }
      ++round;

      float from_next[kWave][kRounds];  // dh from the next timestep
      unroll<kWave, kRounds>([&](int j, int r) {
        const int index = (kGated ? r : own_lane ? own_tile : 0) * kTileFloats + sum_index(lane / 4, warp);
        from_next[j][r] = j >= count ? 0
                                     : sum_of_unit<kGated, CLUSTER, kWave, kSumFloats, kOwnFloats>(
                                           wave_sums, own_partial, j, index, sub);
      });

#pragma unroll
      for (int j = 0; j < kWave; ++j) {
        const int column = first + j * kTileColumns + warp, n = replica_column + column;
        if (j >= count || column >= columns) continue;
        const int tile = SINGLE && kHasH ? 0 : column / kTileColumns;
        const bool is_active = n < current.batch, was_active = n < previous.batch;
        const int row = current.row + n;
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          const int u = unit + r * kTileRows;
          const bool exists = own_lane && u < hidden;
          // Computed here alone, since it is rarely wanted. Which factor is pinned: with the other one, a kernel of
          // each cell spilled 4 bytes.
          const int64_t state_index =
              MODE == PRNN_GRU ? int64_t{n} * pin_in_register(hidden) + u : int64_t{n} * hidden + pin_in_register(u);
          Carry* const carry = &carried[tile][warp][kGated ? lane / 4 + r * kTileRows : 0];
          float* const bias_sum = bias_sums + tile * bias_floats + (warp * kRounds + r) * 32 + lane;
          float dh = from_next[j][r];
          Carry past = kGated ? *carry : Carry{};
          __syncwarp();
          dh *= load_mask<T, EXTRAS>(params.masks, place.direction, state_index, exists);
          float past_h = 0;
          if constexpr (kHasH) {
            dh += carry[kUnits];
            __syncwarp();
          }
          if (EXTRAS && restarted[j]) {
            take_reset_gradients<T, MODE>(dir, state_index, exists && was_active, dh, past, kGated ? sub : 0);
          }
          begin_or_end_sequence<T, MODE>(dir, state_index, exists, is_active, was_active, dh, past, kGated ? sub : 0);
          if (!is_active) continue;
          if (EXTRAS && is_first[j]) load_reset_state<T, MODE>(dir, state_index, exists, sub, saved[j][r]);
          const bool has_before = has_state_before<T, MODE>(dir, n < next.batch, EXTRAS && is_first[j]);
          float da = lanes_backward<MODE, digits_of<T>(), EXTRAS>(
              Element<T>::to_float(saved[j][r].own), Element<T>::to_float(saved[j][r].other), has_before, dh, past, sub,
              sizes.relu, EXTRAS && dir.dcells != nullptr, &params.masks, &past_h);
          if constexpr (kHasH) {
            if (sub == 0) carry[kUnits] = past_h;
          }
          da = exists ? da : 0;
          T* const out = dgates + int64_t{row} * row_elements + u - lane / 4;
          publish_gate_tiles(out + (kGated ? sub * padded : 0), lane, da,
                             (kGated ? sub < kGates : own_lane) && u < padded);
          if (kGated && sub == 0) *carry = past;
          if (MODE == PRNN_GRU && sub == 3 && exists) store_float<T>(dir.dcandidate, int64_t{row} * hidden + u, da);
          *bias_sum += da;
        }
      }
      if (SINGLE) published = clock_low();
    }
  }

  __syncthreads();
  add_bias_sums(is_only_bias_sum<T>(last_step));
  // No block leaves while others may still write to its shared memory.
  if constexpr (CLUSTER > 1) sync_cluster();
}

template <class T, prnnRNNMode_t MODE, int UNIT_TILES, int CLUSTER, bool EXTRAS>
cudaError_t launch_mma_backward_with(const ResidentShape& shape, const BackwardParams& params, cudaStream_t stream) {
  const bool single = params.sizes.columns_per_replica <= kTileColumns;
  return launch_resident(single ? mma_backward<T, MODE, UNIT_TILES, CLUSTER, true, EXTRAS>
                                : mma_backward<T, MODE, UNIT_TILES, CLUSTER, false, EXTRAS>,
                         shape, params, stream);
}

template <class T, prnnRNNMode_t MODE, int UNIT_TILES, int CLUSTER>
cudaError_t launch_mma_backward(const ResidentShape& shape, const BackwardParams& params, cudaStream_t stream) {
  return launch_mma_backward_with<T, MODE, UNIT_TILES, CLUSTER, false>(shape, params, stream);
}

template <class T, prnnRNNMode_t MODE, int UNIT_TILES, int CLUSTER>
cudaError_t launch_mma_extras_backward(const ResidentShape& shape, const BackwardParams& params, cudaStream_t stream) {
  return launch_mma_backward_with<T, MODE, UNIT_TILES, CLUSTER, true>(shape, params, stream);
}

}  // namespace prnn
