// The backward resident kernel: from dy to the gradients of all gates, timestep after timestep, the transposed
// recurrent weights on the chip. Steps run against the forward pass; "previous" is the step done before, which the
// forward pass did after.
// The cell and what stands around it are written out here: through common/lanes.cuh some of these kernels spilled 4 to
// 12 bytes of registers.
#pragma once

#include "rnn/cuda/common/dsmem.cuh"
#include "rnn/cuda/mma/product.cuh"

namespace prnn {

// A tile has 8 sequences: warp w finishes sequence w of it. Its lanes are unit * 4 + sub; `sub` is the gate of an LSTM,
// the gate of a GRU (3: the candidate's gradient with respect to W x + bW), and the row tile of units of an RNN.
// SINGLE: a replica has no more than one tile, and the loops over tiles fall away.
template <class T, prnnRNNMode_t MODE, int UNIT_TILES, int CLUSTER, bool SINGLE>
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
  const int blocks_per_direction = sizes.blocks * sizes.replicas;
  const BackwardDirection& dir = params.direction[blockIdx.x / blocks_per_direction];
  const int replica = blockIdx.x % blocks_per_direction / sizes.blocks;
  const int first_unit = blockIdx.x % sizes.blocks * kUnits;
  const int cluster_unit = first_unit - rank * kUnits;
  const int hidden = sizes.hidden, padded = sizes.padded;
  const int replica_column = sizes.first_column + replica * sizes.columns_per_replica;
  const int replica_columns = min(sizes.columns_per_replica, sizes.first_column + sizes.columns - replica_column);

  // [2][tile of a wave][warps][row tiles][64] sums of warps; [2][ranks][tile of a wave][unit row tiles][64] sums of
  // blocks, in clusters; the sums for the biases, [tile][warp][round][lane].
  extern __shared__ uint4 shared[];
  __shared__ uint64_t barriers[2];
  __shared__ float carried[kMaxTiles][kResidentWarps][kGated ? kUnits : 1];  // the gradient that goes past the matrix
  float* const sums = reinterpret_cast<float*>(shared);
  float* const partial = sums + 2 * kWave * kResidentWarps * kSumFloats;
  float* const bias_sums = partial + (CLUSTER > 1 ? 2 * CLUSTER * kWave * kOwnFloats : 0);
  const int tiles = (max(replica_columns, 0) + kTileColumns - 1) / kTileColumns;
  const int bias_floats = kResidentWarps * kRounds * 32;  // of one tile
  for (int i = threadIdx.x; i < tiles * bias_floats; i += kResidentThreads) bias_sums[i] = 0;
  if (CLUSTER > 1 && threadIdx.x == 0) {
    init_barrier(&barriers[0]);
    init_barrier(&barriers[1]);
  }

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

  // What this lane finishes: one unit a round; the first is `unit`, the next ones lie 8 further each.
  const int own_tile = kGated ? 0 : sub;
  const int unit = first_unit + own_tile * kTileRows + lane / 4;
  const bool own_lane = kGated || sub < UNIT_TILES;

  T* const dgates = static_cast<T*>(dir.dgates);
  const int row_elements = kGates * padded;
  const int lane_bytes = (rank * block_k_tiles + warp) * 64 + sub * 16;
  bool timed_out = false, asked = false;
  int round = 0;           // waves done so far: which of two buffers, and the barriers' phase
  unsigned published = 0;  // the clock's low half

  // Adds the sums for the biases, over the sequences of this replica, to those of earlier timesteps, and begins new
  // ones. A GRU's subs 2 and 3 are its candidate's bR and bW.
  const auto add_bias_sums = [&](bool is_first) {
    constexpr int kBiases = kGated ? 4 : 1;
    const int first = pin_in_register(first_unit), count = pin_in_register(tiles);
    float* const replica_sums = dir.bias_sums + int64_t{pin_in_register(replica)} * kBiases * hidden;
#pragma unroll 1
    for (int i = pin_in_register(threadIdx.x); i < kBiases * kUnits; i += kResidentThreads) {
      const int own = i % kUnits, row_tile = own / kTileRows;
      if (first + own >= hidden) continue;
      const int from = (kGated ? row_tile * 32 + i / kUnits : row_tile) + own % kTileRows * 4;
      float* const to = replica_sums + (i / kUnits * hidden + first + own);
      float sum = 0;
#pragma unroll 1
      for (int tile = 0; tile < count; ++tile) {
        float of_tile = 0;
        for (int w = 0; w < kResidentWarps; ++w) {
          float& value = bias_sums[tile * bias_floats + w * kRounds * 32 + from];
          of_tile += value;
          value = 0;
        }
        sum += of_tile;
      }
      *to = is_first ? sum : *to + sum;
    }
  };

  // A backward step runs t downwards unless the layer's direction is reversed.
  const int start = dir.reverse ? 0 : sizes.steps - 1, stride = dir.reverse ? 1 : -1;
  Step previous, current, next = step_at(sizes, start);
  // One more step than timesteps, for the gradients of the initial states.
  const int last_step =
      dir.dhx == nullptr && dir.dcx == nullptr && sizes.table == nullptr ? sizes.steps - 1 : sizes.steps;
  for (int s = 0; s <= last_step; ++s) {
    if (is_bias_step<T>(s)) {
      __syncthreads();
      add_bias_sums(s == kBiasSteps<T>);
      __syncthreads();
    }
    previous = current;
    current = next;
    next = s + 1 < sizes.steps ? step_at(sizes, start + (s + 1) * stride) : Step{0, 0};
    const int columns = min(replica_columns, max(current.batch, previous.batch) - replica_column);
    const int next_columns = s < last_step ? min(replica_columns, max(next.batch, current.batch) - replica_column) : 0;

    for (int wave = 0; wave == 0 || !SINGLE; ++wave) {
      const int first = wave * kWave * kTileColumns;
      if (first >= columns) break;
      const int left = SINGLE ? 1 : (columns - first + kTileColumns - 1) / kTileColumns, count = min(left, kWave);
      // What follows may be asked for ahead: it is of this step, or so old that all blocks must have it by now.
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

      // What the forward pass kept for the units that this lane finishes: on its way while the gradients are. No
      // branches, so that nothing waits for it here. With gates, lane `sub` of a unit loads gate `sub` and one of what
      // else is wanted: dy, c (LSTM), and c (LSTM) or h (GRU) a timestep earlier.
      constexpr int kBeforeSub = MODE == PRNN_LSTM ? 2 : 1;
      T own_gate[kWave][kRounds], other[kWave][kRounds];  // without gates: h, dy
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
        const int column = first + j * kTileColumns + warp, n = replica_column + column;
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          const bool wanted =
              own_lane && column < replica_columns && n < current.batch && unit + r * kTileRows < hidden;
          const bool has_before = wanted && n < next.batch;
          const int u = wanted ? unit + r * kTileRows : 0;
          const int row = wanted ? current.row + n : 0, row_before = has_before ? next.row + n : row;
          const int64_t y_at = int64_t{row} * params.y_row + u, at = int64_t{row} * hidden + u;
          const T* const dy = static_cast<const T*>(dir.dy) + y_at;
          if constexpr (!kGated) {
            own_gate[j][r] = static_cast<const T*>(dir.y)[y_at];
            other[j][r] = __ldcs(dy);
          } else {
            own_gate[j][r] = static_cast<const T*>(dir.gates)[at * 4 + sub];
            const T* const states = static_cast<const T*>(MODE == PRNN_LSTM ? dir.cells : dir.y);
            const T* const initial = static_cast<const T*>(MODE == PRNN_LSTM ? dir.cx : dir.hx);
            const int state_row = MODE == PRNN_LSTM ? hidden : params.y_row;
            const T* const before = !has_before && initial != nullptr ? initial + (wanted ? int64_t{n} * hidden + u : 0)
                                                                      : states + (int64_t{row_before} * state_row + u);
            other[j][r] = *(sub == kBeforeSub ? before : MODE == PRNN_LSTM && sub == 1 ? states + at : dy);
          }
        }
      }

      if (SINGLE || !asked) {
        if (SINGLE && sizes.poll_delay_cycles > 0) {
          while (clock_low() - published < static_cast<unsigned>(sizes.poll_delay_cycles)) {
          }
        }
        product.prefetch(gradients_at, reads, count);
      }

      const int buffer = round & 1;
      float* const wave_sums = sums + buffer * kWave * kResidentWarps * kSumFloats;
      asked = product.template run<kWave>(count, follows, gradients_at, reads, sizes.timed_out, timed_out,
                                          wave_sums + warp * kSumFloats, kResidentWarps * kSumFloats);
      __syncthreads();

      // Every block of the cluster has the sums of all the cluster's units over its own share of K: to each its units.
      float* const own_partial = partial + buffer * CLUSTER * kWave * kOwnFloats;
      if constexpr (CLUSTER > 1) {
        if (threadIdx.x == 0) expect_bytes(&barriers[buffer], CLUSTER * count * kOwnFloats * sizeof(float));
        for (int i = threadIdx.x * 4; i < count * kSumFloats; i += kResidentThreads * 4) {
          const int j = i / kSumFloats, index = i % kSumFloats;
          const float4 sum = sum4_over_warps(wave_sums + j * kResidentWarps * kSumFloats, kSumFloats, index);
          const uint32_t owner = index / kOwnFloats;
          const float* const place = own_partial + (rank * kWave + j) * kOwnFloats + index % kOwnFloats;
          send_to_rank(address_in_rank(shared_address(place), owner),
                       address_in_rank(shared_address(&barriers[buffer]), owner), sum);
        }
        SpinTimeout timeout;
        while (!timed_out && !__all_sync(kWholeWarp, has_arrived(shared_address(&barriers[buffer]), round / 2 & 1))) {
          if (!__all_sync(kWholeWarp, timeout.keeps_spinning(sizes.timed_out))) timed_out = true;
        }
      }
      ++round;

      // dh from the next timestep. The subs of a unit share the work where they can.
      float from_next[kWave][kRounds];
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          float& dh = from_next[j][r];
          dh = 0;
          if (j >= count) continue;
          const float* const tile_sums = wave_sums + j * kResidentWarps * kSumFloats;
          const int index = (kGated ? r : own_lane ? own_tile : 0) * kTileFloats + sum_index(lane / 4, warp);
          if constexpr (!kGated) {
            dh = sum_over_warps(tile_sums, kSumFloats, index);
          } else {
            if constexpr (CLUSTER > 1) {
              dh = sub < CLUSTER ? own_partial[(sub * kWave + j) * kOwnFloats + index] : 0;
            } else {
              dh = tile_sums[sub * kSumFloats + index] + tile_sums[(sub + 4) * kSumFloats + index];
            }
            dh += __shfl_xor_sync(kWholeWarp, dh, 1);
            dh += __shfl_xor_sync(kWholeWarp, dh, 2);
          }
        }
      }

#pragma unroll
      for (int j = 0; j < kWave; ++j) {
        const int column = first + j * kTileColumns + warp, n = replica_column + column;
        if (j >= count || column >= columns) continue;
        const int tile = column / kTileColumns;
        const bool is_active = n < current.batch, was_active = n < previous.batch;
        const int row = current.row + n;
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          const int u = unit + r * kTileRows;
          const bool exists = own_lane && u < hidden;
          const int64_t state_index = int64_t{n} * hidden + pin_in_register(u);
          float* const carry = &carried[tile][warp][kGated ? lane / 4 + r * kTileRows : 0];
          float* const bias_sum = bias_sums + tile * bias_floats + (warp * kRounds + r) * 32 + lane;
          float dh = from_next[j][r], past = kGated ? *carry : 0;
          __syncwarp();

          if (!was_active) {
            dh = is_active && exists && dir.dhy != nullptr ? load_float<T>(dir.dhy, state_index) : 0;
            past = 0;
            if (MODE == PRNN_LSTM && is_active && exists && dir.dcy != nullptr) {
              past = load_float<T>(dir.dcy, state_index);
            }
          } else if (!is_active) {  // what is left belongs to the initial state
            if (exists && (!kGated || sub == 0) && dir.dhx != nullptr) {
              store_float<T>(dir.dhx, state_index, MODE == PRNN_GRU ? dh + past : dh);
            }
            if (MODE == PRNN_LSTM && exists && sub == 1 && dir.dcx != nullptr) {
              store_float<T>(dir.dcx, state_index, past);
            }
          }
          if (!is_active) continue;
          const float loaded_gate = Element<T>::to_float(own_gate[j][r]), loaded = Element<T>::to_float(other[j][r]);
          const auto gate = [&](int from) { return __shfl_sync(kWholeWarp, loaded_gate, from, 4); };
          dh += kGated ? __shfl_sync(kWholeWarp, loaded, 0, 4) : loaded;
          T* const out = dgates + int64_t{row} * row_elements + u - lane / 4;

          if constexpr (MODE == PRNN_LSTM) {
            const float i = gate(0), f = gate(1), g = gate(2), o = gate(3);
            const float cell = __shfl_sync(kWholeWarp, loaded, 1, 4);
            const float earlier = __shfl_sync(kWholeWarp, loaded, kBeforeSub, 4);
            const float c_before = n < next.batch || dir.cx != nullptr ? earlier : 0;
            const float squashed = hyperbolic_tangent<sizeof(T) == 4>(cell);
            const float dc = past + dh * o * (1 - squashed * squashed);
            float da = sub == 0   ? dc * g * i * (1 - i)
                       : sub == 1 ? dc * c_before * f * (1 - f)
                       : sub == 2 ? dc * i * (1 - g * g)
                                  : dh * squashed * o * (1 - o);
            da = u < hidden ? da : 0;
            publish_gate_tiles(out + sub * padded, lane, da, u < padded);
            if (sub == 0) *carry = dc * f;
            *bias_sum += da;
          } else if constexpr (MODE == PRNN_GRU) {
            const float reset = gate(0), z = gate(1), fresh = gate(2), recurrent = gate(3);
            const float earlier = __shfl_sync(kWholeWarp, loaded, kBeforeSub, 4);
            const float h_before = n < next.batch || dir.hx != nullptr ? earlier : 0;
            dh += past;
            const float dcandidate = dh * (1 - z) * (1 - fresh * fresh);
            float da = sub == 0   ? dcandidate * recurrent * reset * (1 - reset)
                       : sub == 1 ? dh * (h_before - fresh) * z * (1 - z)
                       : sub == 2 ? dcandidate * reset
                                  : dcandidate;
            da = u < hidden ? da : 0;
            publish_gate_tiles(out + sub * padded, lane, da, sub < 3 && u < padded);
            if (sub == 0) *carry = dh * z;
            if (sub == 3 && exists) store_float<T>(dir.dcandidate, int64_t{row} * hidden + u, da);
            *bias_sum += da;
          } else {
            const float h = loaded_gate;
            float da = sizes.relu ? (h > 0 ? dh : (h <= 0 ? 0 : h)) : dh * (1 - h * h);
            da = exists ? da : 0;
            publish_gate_tiles(out, lane, da, own_lane && u < padded);
            *bias_sum += da;
          }
        }
      }
      if (SINGLE) published = clock_low();
    }
  }

  __syncthreads();
  add_bias_sums(kBiasSteps<T> == 0 || last_step < kBiasSteps<T>);
  // No block leaves while others may still write to its shared memory.
  if constexpr (CLUSTER > 1) sync_cluster();
}

template <class T, prnnRNNMode_t MODE, int UNIT_TILES, int CLUSTER>
cudaError_t launch_mma_backward(const ResidentShape& shape, const BackwardParams& params, cudaStream_t stream) {
  const bool single = params.sizes.columns_per_replica <= kTileColumns;
  return launch_resident(
      single ? mma_backward<T, MODE, UNIT_TILES, CLUSTER, true> : mma_backward<T, MODE, UNIT_TILES, CLUSTER, false>,
      shape, params, stream);
}

}  // namespace prnn
