// The backward wavefront kernel: from the highest layer's dy to the gradients of all gates of several layers, each
// layer in blocks of its own that follow the layer above. Steps run against the forward pass.
#pragma once

#include "rnn/cuda/wavefront/product.cuh"

namespace prnn {

// Tiles, warps, lanes, `sub` and clusters as in mma_backward; SINGLE as there, EXTRAS and PAIRS as in
// wavefront_forward. The own part of K are the gates' gradients of the timestep done before, with R'; the neighbour's
// are those of the layer above, of the same timestep, with its W'. K_TILES: of K of one part of a warp, of the block's
// share in the cluster.
template <class T, prnnRNNMode_t MODE, int UNIT_TILES, int CLUSTER, int K_TILES, bool SINGLE, bool EXTRAS, bool PAIRS>
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
  using Product = WavefrontProduct<T, WavefrontBackwardRows<kRowTiles, kStride, EXTRAS>, K_TILES>;
  constexpr int kSumFloats = Product::kSumFloats;
  constexpr int kOwnFloats = UNIT_TILES * kTileFloats;
  static_assert(CLUSTER > 1 || !kGated, "gated cells split K over a cluster");
  static_assert(!PAIRS || (SINGLE && kGated && EXTRAS), "without EXTRAS pairs gain nothing");
  static_assert(MODE != PRNN_GRU || CLUSTER == kGates, "a block of a GRU reads one gate: the candidate's are two");

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const int rank = CLUSTER == 1 ? 0 : static_cast<int>(cluster_rank());
  const BlockPlace place = place_of_block(sizes, kUnits);
  const WavefrontBackwardLayer& layer = params.layer[place.direction];
  const int replica = place.replica, first_unit = place.first_unit, cluster_unit = first_unit - rank * kUnits;
  const int hidden = sizes.hidden;
  // That of `place`, in fewer registers: a wavefront's launch serves all sequences.
  const int replica_column = replica * sizes.columns_per_replica;
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

  // This lane finishes one unit a round; the first is `unit`, the next ones lie 8 further each.
  const int own_tile = kGated ? 0 : sub;
  const int unit = first_unit + own_tile * kTileRows + lane / 4;
  bool exists[kRounds];
  float carry[kRounds], bias_sum[kRounds], ahead[kRounds];  // PAIRS: the next step's sums of the neighbour's part
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    exists[r] = (kGated || sub < UNIT_TILES) && unit + r * kTileRows < hidden;
    carry[r] = bias_sum[r] = ahead[r] = 0;
  }

  // Step s does timestep last - s. EXTRAS: a replica begins with the last timestep of its first sequence, which is its
  // longest; `batch` and `next_batch` are the sequences of this step's timestep and of the next one's, whose rows begin
  // with `row`.
  const int last = (EXTRAS ? steps_of_column(sizes, replica_column) : sizes.steps) - 1;
  const auto columns_of = [&](int batch) { return min(sizes.columns_per_replica, batch - replica_column); };
  int batch = EXTRAS ? batch_at(sizes, last) : sizes.batch;
  int next_batch = EXTRAS ? batch_at(sizes, last - 1) : sizes.batch;
  int row = EXTRAS ? step_at(sizes, last).row : 0;

  // Where this lane reads and writes in the current step, at the replica's first tile. All move on by a step, against
  // the forward pass; EXTRAS: they are worked out from `row` again, which takes fewer registers.
  using Offset = std::conditional_t<EXTRAS, int, int64_t>;
  const Offset lane_at = static_cast<Offset>(replica_column + warp) * hidden + unit;
  const int64_t step_elements = int64_t{sizes.batch} * hidden;
  const T *dy_at, *gates_at, *states_at;
  const auto read_at = [&](int64_t element) {
    dy_at = static_cast<const T*>(params.dy) + element;
    gates_at = static_cast<const T*>(layer.gates) + element * 4;
    states_at = static_cast<const T*>(MODE == PRNN_LSTM ? layer.cells : layer.y) + element;
  };
  const T* const initial = initial_states<T, MODE>(layer);
  const int row_elements = kGates * hidden;
  // A GRU's sub 3 has the gradient of its candidate's W x, which goes to an array of its own.
  const bool has_candidate = MODE == PRNN_GRU && sub == 3;
  const int out_elements = has_candidate ? hidden : row_elements;  // of a row
  const auto out_of = [&](int64_t first_row) {
    return static_cast<T*>(has_candidate ? layer.dcandidate : layer.dgates) +
           (first_row + replica_column + warp) * out_elements + (unit - lane / 4) +
           (kGated && !has_candidate ? sub * hidden : 0);
  };
  T* out_at = nullptr;

  // Gradients of the gates lie in rows of row_elements; those of a GRU's candidate above are in an array of their own.
  const bool reads_candidate = MODE == PRNN_GRU && rank == kGates - 1;
  const int above_elements = reads_candidate ? hidden : row_elements;
  const auto states_of_lane = [&](int64_t first_row, const void* gradients, int elements, int k_tile) {
    const T* const row = static_cast<const T*>(gradients) + (first_row + replica_column + lane / 4) * elements;
    return reinterpret_cast<const char*>(row) + k_tile * 64 + sub * 16;
  };
  const auto own_of = [&](int64_t first_row) {
    return states_of_lane(first_row, layer.dgates, row_elements, rank * block_k_tiles + warp);
  };
  const auto above_of = [&](int64_t first_row) {
    return states_of_lane(first_row, reads_candidate ? layer.candidate_above : layer.above, above_elements,
                          reads_candidate ? warp : rank * block_k_tiles + warp);
  };
  const int64_t own_step = int64_t{sizes.batch} * row_elements * kElementBytes;
  const int64_t above_step = int64_t{sizes.batch} * above_elements * kElementBytes;
  WavefrontTiles<Product, kWave> walk{product, {}, {}, is_fed};
  walk.own.tile_bytes = kTileColumns * row_elements * kElementBytes;
  walk.neighbour.tile_bytes = kTileColumns * above_elements * kElementBytes;
  const char *own_rows = nullptr, *above_rows = nullptr;  // of the layer's and of the launch's first timestep
  if constexpr (EXTRAS) {
    own_rows = own_of(0);
    above_rows = above_of(0);
  } else {
    const int64_t last_row = int64_t{last} * sizes.batch;
    read_at(lane_at + last * step_elements);
    out_at = out_of(last_row);
    walk.own.next = own_of(last_row);
    if (is_fed) walk.neighbour.here = above_of(last_row);
    if (is_fed && last > 0) walk.neighbour.next = walk.neighbour.here - above_step;
  }

  // One more step than timesteps, for the gradients of the initial states.
  const int steps = layer.dhx == nullptr && layer.dcx == nullptr ? last + 1 : last + 2;
  int begun = 0;  // columns whose sequences began in an earlier step
  bool timed_out = false;
  int round = 0;           // waves done so far: which of two buffers, and the barriers' phase
  unsigned published = 0;  // the clock's low half

  // PAIRS: the gradients of the pair that begins with step `first`, where this lane has any.
  const auto aim_at_pair = [&](int first) {
    const WavefrontPair pair;
    const Step step = step_of_pass(sizes, last + 1, true, first + pair.step);
    walk.neighbour.next = above_of(step.row) + (pair.column - lane / 4) * above_elements * kElementBytes;
    walk.neighbour.next_columns = pair.column < columns_of(step.batch) ? 1 : 0;
  };
  if constexpr (PAIRS) {
    aim_at_pair(0);
    walk.template begin_pairs<K_TILES, 0>(sizes.timed_out, timed_out);
  }

  for (int s = 0; s < steps; ++s) {
    const bool is_active = s <= last;
    const int columns = !EXTRAS || is_active ? columns_of(batch) : begun;
    const int tiles = SINGLE ? 1 : (columns + kTileColumns - 1) / kTileColumns;
    if (!SINGLE) walk.tiles = tiles;
    const bool is_second = PAIRS && s % 2 != 0;  // of a pair's timesteps
    if constexpr (EXTRAS) {
      const int own_bytes = row_elements * kElementBytes, above_bytes = above_elements * kElementBytes;
      walk.own.next = own_rows + int64_t{row} * own_bytes;
      walk.own.here = s > 0 ? walk.own.next + int64_t{batch} * own_bytes : nullptr;
      walk.neighbour.here = is_active ? above_rows + int64_t{row} * above_bytes : nullptr;
      walk.neighbour.next = s < last ? walk.neighbour.here - int64_t{next_batch} * above_bytes : nullptr;
      read_at(int64_t{row} * hidden + lane_at);
    }
    walk.own.columns = EXTRAS ? begun : columns;
    walk.own.next_columns = walk.neighbour.columns = columns;
    walk.neighbour.next_columns = columns_of(next_batch);
    if constexpr (PAIRS) aim_at_pair(is_second ? s + 1 : s + 2);
    auto mask = [&] {
      if constexpr (EXTRAS) {
        // Columns sub * 2 on, or, of a pair's second timestep, those from kPairColumns on.
        const bool of_second = PAIRS && sub >= kPairColumns / 2;
        const int row_bytes = pin_in_register(hidden) / 8, first = pin_in_register(replica_column) + sub * 2;
        const int first_row = of_second ? row - next_batch - kPairColumns : row;
        const uint8_t* kept = params.kept[place.direction];
        if (kept != nullptr) kept += (first_row + first) * int64_t{row_bytes} + cluster_unit / 8;
        return DropoutMask<kRowTiles>{kept, params.dropout_scale, row_bytes,
                                      of_second ? columns_of(next_batch) + kPairColumns : columns,
                                      (hidden - cluster_unit) / kTileRows};
      } else {
        return NoMask();
      }
    }();
    const T* const before_at = s < last ? states_at - (EXTRAS ? int64_t{next_batch} * hidden : step_elements)
                               : initial != nullptr ? initial + lane_at
                                                    : nullptr;
    for (int first_tile = 0; first_tile < tiles; first_tile += kWave) {
      const int count = SINGLE ? 1 : min(kWave, tiles - first_tile), first = first_tile * kTileColumns;
      if (!SINGLE) walk.begin_wave(first_tile, published, sizes);

      // The saved values of this lane's units: in flight while the gradients are.
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
      if constexpr (PAIRS) {
        walk.template run_pairs<K_TILES, K_TILES, 0>(is_second, s + 1 < steps, published, sizes.poll_delay_cycles,
                                                     sizes.timed_out, timed_out, wave_sums + warp * kSumFloats, mask);
      } else if constexpr (SINGLE) {
        walk.template run_single<K_TILES, K_TILES>(s + 1 < steps, published, sizes.poll_delay_cycles, sizes.timed_out,
                                                   timed_out, wave_sums + warp * kSumFloats, mask);
      } else {
        walk.run(first_tile, count, s + 1 < steps, sizes.timed_out, timed_out, wave_sums + warp * kSumFloats,
                 kResidentWarps * kSumFloats, mask);
      }
      __syncthreads();

      float* const own_partial = partial + buffer * CLUSTER * kWave * kOwnFloats;
      if constexpr (CLUSTER > 1) {
        exchange_partial_sums<CLUSTER, kWave, kSumFloats, kOwnFloats>(wave_sums, count, own_partial, barriers, rank,
                                                                      round, sizes.timed_out, timed_out);
      }
      ++round;

      float from_states[kWave][kRounds];  // dh from the next timestep and the layer above
      unroll<kWave, kRounds>([&](int j, int r) {
        const int index = (kGated ? r : sub < UNIT_TILES ? own_tile : 0) * kStride + sum_index(lane / 4, warp);
        from_states[j][r] =
            sum_of_unit<kGated, CLUSTER, kWave, kSumFloats, kOwnFloats>(wave_sums, own_partial, j, index, sub);
      });

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
          if (PAIRS && is_second) dh += ahead[r];
          float past = !kGated ? 0 : SINGLE ? carry[r] : carried_at(min(first_tile + j, kMaxTiles - 1), r);
          if (EXTRAS ? column >= begun : s == 0) {
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
            const UnitDerivatives derivatives =
                Cell<MODE>::template derivatives<digits_of<T>()>(gates, state, before_state);
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
      if constexpr (EXTRAS) out_at = out_of(row);
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
      if (PAIRS && !is_second) {
        unroll<kWave, kRounds>([&](int j, int r) {
          ahead[r] = sum_of_unit<kGated, CLUSTER, kWave, kSumFloats, kOwnFloats>(
              wave_sums, own_partial, j, r * kStride + sum_index(lane / 4, warp % kPairColumns + kPairColumns), sub);
        });
      }
    }
    if constexpr (EXTRAS) {
      row -= next_batch;
      begun = columns;
      batch = next_batch;
      next_batch = batch_at(sizes, last - s - 2);
    } else {
      walk.own.advance(walk.own.next - own_step);
      if (!PAIRS) walk.neighbour.advance(s + 2 <= last ? walk.neighbour.next - above_step : nullptr);
      dy_at -= step_elements;
      gates_at -= step_elements * 4;
      states_at -= step_elements;
      out_at -= int64_t{batch} * out_elements;
    }
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
  const auto launch = [&](auto extras) {
    constexpr WavefrontKernel kKernel = {UNIT_TILES, CLUSTER, K_TILES};
    constexpr bool kExtras = decltype(extras)::value;
    constexpr bool kAlwaysSingle = has_one_tile(MODE, kKernel, kExtras),
                   kHasPairs = kExtras && has_pairs(MODE, kKernel, 1);
    return launch_wavefront<kAlwaysSingle, kHasPairs>(shape, params, stream, [](auto single, auto pairs) {
      return wavefront_backward<T, MODE, UNIT_TILES, CLUSTER, K_TILES, decltype(single)::value, kExtras,
                                decltype(pairs)::value>;
    });
  };
  return params.has_extras() ? launch(std::true_type()) : launch(std::false_type());
}

}  // namespace prnn
