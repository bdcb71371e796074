// The backward wavefront kernel: from the highest layer's dy to the gradients of all gates of several layers, each
// layer in blocks of its own that follow the layer above. Steps run against the forward pass.
#pragma once

#include "rnn/cuda/wavefront/product.cuh"

namespace prnn {

// Tiles, warps, lanes, `sub` and clusters as in mma_backward; SINGLE as there. The own part of K are the gates'
// gradients of the timestep done before, with R'; the neighbour's are those of the layer above, of the same timestep,
// with its W'. K_TILES: of K of one part of a warp, of the block's share in the cluster.
template <class T, prnnRNNMode_t MODE, int UNIT_TILES, int CLUSTER, int K_TILES, bool SINGLE>
__global__ void __launch_bounds__(kResidentThreads, 1)
    wavefront_backward(const __grid_constant__ WavefrontBackwardParams params) {
  if constexpr (CLUSTER > 1 && !kHasClusters) return;
  constexpr bool kGated = MODE != PRNN_RNN_TANH;
  constexpr int kGates = gate_count(MODE);
  constexpr int kRowTiles = UNIT_TILES * CLUSTER;
  constexpr int kUnits = UNIT_TILES * kTileRows;
  constexpr int kRounds = lane_rounds(kGated, UNIT_TILES);
  constexpr int kWave = SINGLE ? 1 : kWavefrontWave;
  constexpr int kKTile = k_tile_elements(false), kElementBytes = 2;
  static_assert(sizeof(T) == kElementBytes, "the wavefront kernels are of 16-bit types");
  constexpr int kStride = kTileFloats + (CLUSTER == 1 ? 1 : 0);  // odd against bank conflicts, where 4 subs read
  using Product = WavefrontProduct<T, WavefrontBackwardRows<kRowTiles, kStride>, K_TILES>;
  constexpr int kSumFloats = Product::kSumFloats;
  constexpr int kOwnFloats = UNIT_TILES * kTileFloats;
  static_assert(CLUSTER > 1 || !kGated, "gated cells split K over a cluster");
  static_assert(MODE != PRNN_GRU || CLUSTER == kGates, "a block of a GRU reads one gate: the candidate's are two");

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const int rank = CLUSTER == 1 ? 0 : static_cast<int>(cluster_rank());
  const BlockPlace place = place_of_block(sizes, kUnits);
  const WavefrontBackwardLayer& layer = params.layer[place.direction];
  const int replica = place.replica, first_unit = place.first_unit, cluster_unit = first_unit - rank * kUnits;
  const int hidden = sizes.hidden, batch = sizes.batch;
  // Those of `place`, in fewer registers: a wavefront's launch serves all sequences.
  const int replica_column = replica * sizes.columns_per_replica;
  const int columns = min(sizes.columns_per_replica, batch - replica_column);
  const int tiles = SINGLE ? 1 : (columns + kTileColumns - 1) / kTileColumns;
  const bool is_fed = layer.above != nullptr;

  // [2][tile of a wave][warps][row tiles][stride] sums of warps; [2][ranks][tile of a wave][unit row tiles][64] sums of
  // blocks, in clusters; weights.
  extern __shared__ uint4 shared[];
  __shared__ BarrierPair barriers;
  __shared__ float carried[SINGLE ? 1 : kMaxTiles][kResidentWarps][kGated ? kUnits : 1];
  const auto carried_at = [&](int tile, int r) -> float& { return carried[tile][warp][lane / 4 + r * kTileRows]; };
  float* const sums = reinterpret_cast<float*>(shared);
  float* const partial = sums + 2 * kWave * kResidentWarps * kSumFloats;
  float* const weights = partial + (CLUSTER > 1 ? 2 * CLUSTER * kWave * kOwnFloats : 0);
  if constexpr (CLUSTER > 1) barriers.init();

  // K runs over the gates one after the other; a block of a cluster has its share.
  const int gate_k_tiles = hidden / kKTile, block_k_tiles = gate_k_tiles * kGates / CLUSTER;
  Product product;
  product.load_weights(block_k_tiles, weights, [&](int part, int row_tile, int k_tile) {
    const T* const matrix = static_cast<const T*>(part == kOwn ? layer.recurrent : layer.input_above);
    const int unit = cluster_unit + row_tile * kTileRows + lane / 4;
    const int gate = (rank * block_k_tiles + k_tile) / gate_k_tiles;
    const int k = (rank * block_k_tiles + k_tile) % gate_k_tiles * kKTile + sub * (16 / kElementBytes);
    const bool wanted = unit < hidden && (part == kOwn || is_fed);
    return load_column_fragment(matrix, (int64_t{gate} * hidden + k) * hidden + unit, hidden, wanted ? hidden - k : 0);
  });
  __syncthreads();
  if constexpr (CLUSTER > 1) sync_cluster();

  // What this lane finishes: one unit a round; the first is `unit`, the next ones lie 8 further each.
  const int own_tile = kGated ? 0 : sub;
  const int unit = first_unit + own_tile * kTileRows + lane / 4;
  bool exists[kRounds];
  float carry[kRounds], bias_sum[kRounds];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    exists[r] = (kGated || sub < UNIT_TILES) && unit + r * kTileRows < hidden;
    carry[r] = bias_sum[r] = 0;
  }

  // Where this lane reads and writes in the current step, at the replica's first tile; all move on by a step, against
  // the forward pass.
  const int last = sizes.steps - 1;  // step s does timestep last - s
  const int64_t first_row = replica_column + warp;
  const int64_t step_elements = int64_t{batch} * hidden;
  const int64_t lane_at = first_row * hidden + unit, last_at = lane_at + last * step_elements;
  const T* dy_at = static_cast<const T*>(params.dy) + last_at;
  const T* gates_at = static_cast<const T*>(layer.gates) + last_at * 4;
  const T* states_at = static_cast<const T*>(MODE == PRNN_LSTM ? layer.cells : layer.y) + last_at;
  const T* const initial = initial_states<T, MODE>(layer);
  const int row_elements = kGates * hidden;
  // A GRU's sub 3 has the gradient of its candidate's W x, which goes to an array of its own.
  const bool has_candidate = MODE == PRNN_GRU && sub == 3;
  const int out_elements = has_candidate ? hidden : row_elements;  // of a row
  T* out_at = static_cast<T*>(has_candidate ? layer.dcandidate : layer.dgates) +
              (int64_t{last} * batch + first_row) * out_elements + (unit - lane / 4) +
              (kGated && !has_candidate ? sub * hidden : 0);

  // Gradients of the gates lie in rows of row_elements; those of a GRU's candidate above are in an array of their own.
  const bool reads_candidate = MODE == PRNN_GRU && rank == kGates - 1;
  const int above_elements = reads_candidate ? hidden : row_elements;
  const int64_t states_row = int64_t{last} * batch + replica_column + lane / 4;
  const auto states_of_lane = [&](const void* gradients, int elements, int k_tile) {
    const T* const row = static_cast<const T*>(gradients) + states_row * elements;
    return reinterpret_cast<const char*>(row) + k_tile * 64 + sub * 16;
  };
  const int64_t own_step = int64_t{batch} * row_elements * kElementBytes;
  const int64_t above_step = int64_t{batch} * above_elements * kElementBytes;
  WavefrontTiles<Product, kWave> walk{product, {}, {}, tiles, columns, is_fed};
  walk.own = {nullptr, states_of_lane(layer.dgates, row_elements, rank * block_k_tiles + warp),
              kTileColumns * row_elements * kElementBytes};
  if (is_fed) {
    const char* const above = states_of_lane(reads_candidate ? layer.candidate_above : layer.above, above_elements,
                                             reads_candidate ? warp : rank * block_k_tiles + warp);
    walk.neighbour = {above, last > 0 ? above - above_step : nullptr, kTileColumns * above_elements * kElementBytes};
  }

  // One more step than timesteps, for the gradients of the initial states.
  const int steps = layer.dhx == nullptr && layer.dcx == nullptr ? sizes.steps : sizes.steps + 1;
  bool timed_out = false;
  int round = 0;           // waves done so far: which of two buffers, and the barriers' phase
  unsigned published = 0;  // the clock's low half

  for (int s = 0; s < steps; ++s) {
    const bool is_active = s <= last;
    const T* const before_at = s < last ? states_at - step_elements : initial != nullptr ? initial + lane_at : nullptr;
    for (int first_tile = 0; first_tile < tiles; first_tile += kWave) {
      const int count = SINGLE ? 1 : min(kWave, tiles - first_tile), first = first_tile * kTileColumns;
      if (!SINGLE && !walk.own_prefetched) {
        wait_poll_delay(published, sizes.poll_delay_cycles);
        walk.template prefetch<kOwn>(walk.own, false, first_tile);
        walk.own_prefetched = true;
      }

      // What the forward pass saved of this lane's units: in flight while the gradients are.
      uint32_t dy[kWave][kRounds], cell[kWave][kRounds], before[kWave][kRounds];  // c (LSTM), y; a timestep earlier
      uint2 saved[kWave][kRounds];
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
        const int column = first + j * kTileColumns;
        const bool in_replica = is_active && column + warp < columns;
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          const bool wanted = in_replica && exists[r];
          const int at = column * hidden + r * kTileRows;
          dy[j][r] = load_element(wanted && !is_fed, dy_at + at);
          if (kGated) saved[j][r] = load_four_elements(wanted, gates_at + at * 4);
          if (kGated) before[j][r] = load_element(wanted && before_at != nullptr, before_at + at);
          if (MODE != PRNN_GRU) cell[j][r] = load_element(wanted, states_at + at);
        }
      }

      const int buffer = round & 1;
      float* const wave_sums = sums + buffer * kWave * kResidentWarps * kSumFloats;
      if constexpr (SINGLE) {
        walk.template run_single<K_TILES, K_TILES>(s + 1 < steps, published, sizes.poll_delay_cycles, sizes.timed_out,
                                                   timed_out, wave_sums + warp * kSumFloats);
      } else {
        walk.run(first_tile, count, s + 1 < steps, sizes.timed_out, timed_out, wave_sums + warp * kSumFloats,
                 kResidentWarps * kSumFloats);
      }
      __syncthreads();

      float* const own_partial = partial + buffer * CLUSTER * kWave * kOwnFloats;
      if constexpr (CLUSTER > 1) {
        exchange_partial_sums<CLUSTER, kWave, kSumFloats, kOwnFloats>(wave_sums, count, own_partial, barriers, rank,
                                                                      round, sizes.timed_out, timed_out);
      }
      ++round;

      // dh from the next timestep and the layer above. The subs of a unit share the work where they can.
      float from_states[kWave][kRounds];
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          float& dh = from_states[j][r];
          const int index = (kGated ? r : sub < UNIT_TILES ? own_tile : 0) * kStride + sum_index(lane / 4, warp);
          if constexpr (CLUSTER > 1) {
            dh = sub < CLUSTER ? own_partial[(sub * kWave + j) * kOwnFloats + index] : 0;
          } else {
            dh = sum_over_warps(wave_sums + j * kResidentWarps * kSumFloats, kSumFloats, index);
          }
        }
      }
      if constexpr (CLUSTER > 1) {
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
#pragma unroll
          for (int j = 0; j < kWave; ++j) {
#pragma unroll
            for (int r = 0; r < kRounds; ++r) {
              from_states[j][r] += __shfl_xor_sync(kWholeWarp, from_states[j][r], step);
            }
          }
        }
      }

      if (!is_active) {  // what is left belongs to the initial state
#pragma unroll
        for (int j = 0; j < kWave; ++j) {
          const int column = first + j * kTileColumns + warp;
          if (j >= count || column >= columns) continue;
#pragma unroll
          for (int r = 0; r < kRounds; ++r) {
            const int64_t at = int64_t{replica_column + column} * hidden + unit + r * kTileRows;
            const float past = !kGated ? 0 : SINGLE ? carry[r] : carried_at(first_tile + j, r);
            if (!exists[r]) continue;
            store_initial_gradients<T, MODE>(layer, at, from_states[j][r], past, kGated ? sub : 0);
          }
        }
        continue;
      }

      float da[kWave][kRounds];
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
        const int column = first + j * kTileColumns + warp;
        const bool in_replica = j < count && column < columns;
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          const int64_t state_index = int64_t{replica_column + column} * hidden + unit + r * kTileRows;
          float dh = from_states[j][r];
          float past = !kGated ? 0 : SINGLE ? carry[r] : carried_at(min(first_tile + j, kMaxTiles - 1), r);
          if (s == 0) {
            const FinalGradients last = load_final_gradients<T, MODE>(layer, state_index, in_replica && exists[r]);
            dh += last.dh;
            past = last.dc;
          }
          dh += element_value<T>(dy[j][r]);

          if constexpr (kGated) {
            const float gates[4] = {element_value<T>(saved[j][r].x), element_value<T>(saved[j][r].x >> 16),
                                    element_value<T>(saved[j][r].y), element_value<T>(saved[j][r].y >> 16)};
            const float state = MODE == PRNN_LSTM ? element_value<T>(cell[j][r]) : 0;
            const float before_state = element_value<T>(before[j][r]);
            const UnitDerivatives derivatives = Cell<MODE>::template derivatives<false>(gates, state, before_state);
            da[j][r] = lane_gradient<MODE>(derivatives, dh, past, sub);
            if constexpr (SINGLE) {
              carry[r] = past;
            } else {
              __syncwarp();
              if (sub == 0) carried_at(min(first_tile + j, kMaxTiles - 1), r) = past;
            }
          } else {
            da[j][r] = Cell<MODE>::gradient(element_value<T>(cell[j][r]), dh, sizes.relu);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
        const int column = first + j * kTileColumns;
        const bool in_replica = j < count && column + warp < columns;
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          publish_gate_tiles(out_at + (column * out_elements + r * kTileRows), lane, da[j][r], in_replica && exists[r]);
          if (in_replica && exists[r]) bias_sum[r] += da[j][r];
        }
      }
      published = clock_low();
    }
    walk.own.advance(walk.own.next - own_step);
    walk.neighbour.advance(s + 2 <= last ? walk.neighbour.next - above_step : nullptr);
    dy_at -= step_elements;
    gates_at -= step_elements * 4;
    states_at -= step_elements;
    out_at -= int64_t{batch} * out_elements;
  }

  // The sums for the biases, over the sequences of this replica.
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRounds; ++r) sums[(warp * kRounds + r) * 32 + lane] = bias_sum[r];
  __syncthreads();
  float* const replica_sums = layer.bias_sums + int64_t{replica} * Cell<MODE>::kBiases * hidden;
  add_bias_gradients<MODE, kUnits, kRounds>(sums, 1, replica_sums, first_unit, hidden, true, bias_index<kGated>);
  // No block leaves while others may still write to its shared memory.
  if constexpr (CLUSTER > 1) sync_cluster();
}

template <class T, prnnRNNMode_t MODE, int UNIT_TILES, int CLUSTER, int K_TILES>
cudaError_t launch_wavefront_mma_backward(const ResidentShape& shape, const WavefrontBackwardParams& params,
                                          cudaStream_t stream) {
  constexpr bool kAlwaysSingle = has_one_tile(MODE, {UNIT_TILES, CLUSTER, K_TILES});
  const bool single = params.sizes.columns_per_replica <= kTileColumns;
  if (kAlwaysSingle && !single) return cudaErrorInvalidValue;
  return launch_resident(single ? wavefront_backward<T, MODE, UNIT_TILES, CLUSTER, K_TILES, true>
                                : wavefront_backward<T, MODE, UNIT_TILES, CLUSTER, K_TILES, kAlwaysSingle>,
                         shape, params, stream);
}

}  // namespace prnn
