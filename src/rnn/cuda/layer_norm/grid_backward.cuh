// The backward grid kernel of the LSTM with layer normalisation: as rnn/cuda/mma/backward.cuh, and one more exchange a
// timestep, of the sums that both normalisations' gradients are made of (cluster_backward.cuh has the formulas). Half
// of these do not depend on the incoming gradient: a kernel of its own makes them beforehand, for all timesteps.
#pragma once

#include "rnn/cuda/layer_norm/grid_common.cuh"

namespace prnn {

// A lane's gate in the backward pass, computed from the values that the forward pass kept.
struct GridGate {
  float normalized;  // LN(a)
  float of_gate;     // the derivative of c' (gates i, f, g) or h (o) with respect to the gate's sum; 0: it does not run
  float forget;      // the unit's forget gate
  float of_h;        // the derivative of h with respect to the normalised c
};

// A lane's loads of a unit and timestep.
template <class T>
struct GridSaved {
  T gate, input, cell, cell_before;
};

template <class T, int ROUNDS>
__device__ __forceinline__ GridGate grid_gate(const GridParameters<ROUNDS>& parameters, int r, bool products,
                                              const GridSaved<T>& saved, const float4& stats_before, bool is_first,
                                              float initial_cell, bool runs) {
  using E = Element<T>;
  constexpr Digits kDigits = digits_of<T>();
  // tanh(c) in bfloat16 has the digits of float16: with a register more there would be spills.
  constexpr Digits kCellDigits = kDigits == Digits::kFloat ? Digits::kFloat : Digits::kHalf;
  const int lane = threadIdx.x % 32, gate = lane % 4;
  GridGate result;
  result.normalized = runs ? E::to_float(saved.gate) : 0;
  const float sum = parameters.gate_gain[r][lane] * result.normalized + parameters.gate_bias[r][lane];
  const float own = squash<kDigits>(products ? sum + E::to_float(saved.input) : sum, gate == 2);
  float value[4];
#pragma unroll
  for (int g = 0; g < 4; ++g) value[g] = __shfl_sync(kWholeWarp, own, g, 4);
  const float gain = parameters.cell_gain[r][lane], bias = parameters.cell_bias[r][lane];
  const float squashed = hyperbolic_tangent<kCellDigits>(gain * (runs ? E::to_float(saved.cell) : 0) + bias);
  const float kept = E::to_float(saved.cell_before);
  const float before = is_first ? initial_cell : products ? stats_before.y + kept / stats_before.z : gain * kept + bias;
  const float i = value[0], f = value[1], candidate = value[2], o = value[3];
  result.of_gate = gate == 0   ? candidate * i * (1 - i)
                   : gate == 1 ? before * f * (1 - f)
                   : gate == 2 ? i * (1 - candidate * candidate)
                               : squashed * o * (1 - o);
  result.forget = f;
  result.of_h = o * (1 - squashed * squashed);
  result.of_gate = runs ? result.of_gate : 0;
  return result;
}

// Loads that, without a branch. u: of a unit that exists. `step`: of the recurrence.
template <class T>
__device__ __forceinline__ GridSaved<T> load_grid_saved(const LayerNormLstmGridParams& params, int step, int n, int u) {
  const int gate = threadIdx.x % 4, hidden = params.sizes.hidden;
  const int64_t row = params.row_of(step) + n, row_before = params.row_of(max(step - 1, 0)) + n;
  return {__ldcs(static_cast<const T*>(params.gates) + (row * hidden + u) * 4 + gate),
          __ldcs(static_cast<const T*>(params.x) + (row * 4 + gate) * hidden + u),
          static_cast<const T*>(params.cells)[row * hidden + u],
          static_cast<const T*>(params.cells)[row_before * hidden + u]};
}

__device__ __forceinline__ float4 load_grid_stats(const LayerNormLstmGridParams& params, int step, int n) {
  return *reinterpret_cast<const float4*>(params.stats + (params.row_of(max(step, 0)) + n) * 4);
}

template <class T>
__device__ __forceinline__ float initial_grid_cell(const LayerNormLstmGridParams& params, int n, int u) {
  return params.c0 != nullptr ? load_float<T>(params.c0, int64_t{n} * params.sizes.hidden + u) : 0;
}

// kept_sums of all sequences: a block has a step of one.
template <class T>
__global__ void __launch_bounds__(kResidentThreads)
    layer_norm_lstm_grid_kept_sums(const __grid_constant__ LayerNormLstmGridParams params) {
  __shared__ float partial[kResidentWarps][4];
  __shared__ GridParameters<1> parameters[kResidentWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, hidden = params.sizes.hidden;
  const int step = blockIdx.x / params.sizes.batch, n = blockIdx.x % params.sizes.batch, length = params.length_of(n);
  const bool runs = params.timestep_of(step) < length, products = params.products != 0;
  const float4 stats_before = load_grid_stats(params, step - 1, n);
  float sums[4] = {0, 0, 0, 0};
  for (int first = warp * kTileRows; first < hidden; first += kResidentWarps * kTileRows) {
    const int unit = first + lane / 4, u = min(unit, hidden - 1);
    const int64_t of_gate = int64_t{lane % 4} * hidden + u;
    parameters[warp].gate_gain[0][lane] = load_float<T>(params.gate_gain, of_gate);
    parameters[warp].gate_bias[0][lane] = load_float<T>(params.gate_bias, of_gate);
    parameters[warp].cell_gain[0][lane] = load_float<T>(params.cell_gain, u);
    parameters[warp].cell_bias[0][lane] = load_float<T>(params.cell_bias, u);
    const GridSaved<T> saved = load_grid_saved<T>(params, step, n, u);
    const GridGate g = grid_gate<T>(parameters[warp], 0, products, saved, stats_before, params.is_first(step, length),
                                    initial_grid_cell<T>(params, n, u), runs);
    const float scaled = unit < hidden && lane % 4 != 3 ? parameters[warp].gate_gain[0][lane] * g.of_gate : 0;
    const float cell = runs ? Element<T>::to_float(saved.cell) : 0;
    sums[0] += scaled;
    sums[1] += scaled * cell;
    sums[2] += scaled * g.normalized;
    sums[3] += scaled * g.normalized * cell;
  }
  sum_over_warp(sums);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (lane == 0) partial[warp][i] = sums[i];
  }
  __syncthreads();
  if (threadIdx.x >= 4) return;
  float sum = 0;
  for (int w = 0; w < kResidentWarps; ++w) sum += partial[w][threadIdx.x];
  params.kept_sums[(params.row_of(step) + n) * 4 + threadIdx.x] = sum;
}

// A block has UNIT_TILES times 8 units; CLUSTER of them have the rows of all their units, each for the gradients of
// some gates.
template <class T, int UNIT_TILES, int CLUSTER, int TILES>
__global__ void __launch_bounds__(kResidentThreads, 1)
    layer_norm_lstm_grid_backward(const __grid_constant__ LayerNormLstmGridParams params) {
  if constexpr (!kHasClusters) return;
  constexpr int kGates = 4, kRowTiles = UNIT_TILES * CLUSTER, kUnits = UNIT_TILES * kTileRows, kRounds = UNIT_TILES;
  constexpr int kWave = TILES == 1 ? 1 : wave_tiles(kRowTiles, kRounds);
  constexpr int kKTile = k_tile_elements(sizeof(T) == 4);
  constexpr int kSumFloats = kRowTiles * kTileFloats, kOwnFloats = UNIT_TILES * kTileFloats;
  constexpr int kLoads = kLayerNormLstmGridBlocks / 32;  // of other blocks' sums
  using Product = MmaProduct<Multiplied<T>, kRowTiles, kTileFloats, TILES == 1, (kRowTiles < 8)>;

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, gate = lane % 4;
  const int rank = static_cast<int>(cluster_rank());
  const GridPlace place = place_in_grid(params);
  const int first_unit = place.block * kUnits, cluster_unit = first_unit - rank * kUnits, unit = first_unit + lane / 4;
  const int hidden = params.sizes.hidden, padded = params.padded, steps = params.sizes.steps, columns = place.columns;
  const bool products = params.products != 0, normalizes = params.normalizes != 0;
  const auto exists = [&](int r) { return unit + r * kTileRows < hidden; };

  // [2][tile of a wave][warps][row tiles][64] sums of warps; [2][ranks][tile of a wave][unit tiles][64] sums of blocks.
  extern __shared__ uint4 shared[];
  __shared__ GridParameters<kRounds> parameters;
  __shared__ LaneNumbers<TILES, kRounds> forget, dc, direct,
      mask;                                           // direct: the gradient of h that went past the matrix
  __shared__ LaneNumbers<4, kRounds> parameter_sums;  // of gateGain, gateBias; of cellGain, cellBias in lanes of gate 0
  __shared__ float deviations[TILES][kResidentWarps];  // 1 / deviation of a
  __shared__ BarrierPair barriers;
  float* const sums = reinterpret_cast<float*>(shared);
  float* const partial = sums + 2 * kWave * kResidentWarps * kSumFloats;
  parameters.template load<T>(params, first_unit);
  barriers.init();

  const int gate_k_tiles = padded / kKTile, block_k_tiles = gate_k_tiles * kGates / CLUSTER;
  Product product;
  product.replica_columns = &params.sizes.columns_per_replica;
  product.k_tile_stride = 64 * kResidentWarps;
  product.load_weights(block_k_tiles, partial + 2 * CLUSTER * kWave * kOwnFloats, [&](int row_tile, int k_tile) {
    const int of_unit = cluster_unit + row_tile * kTileRows + lane / 4;
    const int of_gate = (rank * block_k_tiles + k_tile) / gate_k_tiles;
    const int k = (rank * block_k_tiles + k_tile) % gate_k_tiles * kKTile + gate * (16 / static_cast<int>(sizeof(T)));
    return factor_of<T>(load_column_fragment(static_cast<const T*>(params.recurrent),
                                             (int64_t{of_gate} * hidden + k) * hidden + of_unit, hidden,
                                             of_unit < hidden ? hidden - k : 0));
  });
  __syncthreads();
  sync_cluster();

#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
#pragma unroll
    for (int i = 0; i < 4; ++i) parameter_sums.at(i, r) = 0;
  }
  // The warp's sequence of a tile; where there is none, any.
  const auto sequence = [&](int j) {
    return place.first_column + (j * kTileColumns + warp < columns ? j * kTileColumns + warp : 0);
  };
#pragma unroll
  for (int j = 0; j < TILES; ++j) {
    const int n = sequence(j);
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int64_t at = int64_t{n} * hidden + (exists(r) ? unit + r * kTileRows : 0);
      dc.at(j, r) = params.dcy != nullptr && exists(r) ? load_float<T>(params.dcy, at) : 0;
      mask.at(j, r) = params.recurrent_mask != nullptr ? load_float<T>(params.recurrent_mask, at) : 1;
      direct.at(j, r) = 0;
    }
  }

  const int row_elements = kGates * padded, most_columns = params.sizes.columns_per_replica;
  const int64_t first_row = int64_t{place.replica} * steps * most_columns;  // of what the replica exchanges
  T* const exchange = static_cast<T*>(params.states) + first_row * row_elements;
  const int lane_bytes = (rank * block_k_tiles + warp) * 64 + gate * 16;
  const float cell_share = 1.0f / hidden, gate_share = 0.25f / hidden;
  unsigned published = clock_low();
  bool timed_out = false;
  int round = 0;  // waves done so far: which of two buffers, and the barriers' phase

  // R' da of the step done before, to all lanes of a unit.
  const auto multiply = [&](int s, float (&product_sum)[TILES][kRounds]) {
    wait_poll_delay(published, params.poll_delay_cycles);
    const int tiles = (most_columns + kTileColumns - 1) / kTileColumns;
#pragma unroll
    for (int first = 0; first < TILES; first += kWave) {
      const int count = min(kWave, tiles - first);
      if (first > 0 && count <= 0) continue;
      const auto column_of = [&](int tile) { return (first + tile) * kTileColumns + product.column_of(lane); };
      const auto gradients_at = [&](int tile) {
        const T* const row = exchange + (int64_t{s - 1} * most_columns + column_of(tile)) * row_elements;
        return reinterpret_cast<const char*>(row) + lane_bytes;
      };
      const auto reads = [&](int tile) { return column_of(tile) < columns; };
      product.prefetch(gradients_at, reads, count);
      const int buffer = round & 1;
      float* const wave_sums = sums + buffer * kWave * kResidentWarps * kSumFloats;
      product.template run<kWave>(count, false, gradients_at, reads, params.timed_out, timed_out,
                                  wave_sums + warp * kSumFloats, kResidentWarps * kSumFloats);
      __syncthreads();
      float* const own_partial = partial + buffer * CLUSTER * kWave * kOwnFloats;
      exchange_partial_sums<CLUSTER, kWave, kSumFloats, kOwnFloats>(wave_sums, count, own_partial, barriers, rank,
                                                                    round, params.timed_out, timed_out);
      ++round;
#pragma unroll
      for (int j = 0; j < kWave; ++j) {
#pragma unroll
        for (int r = 0; r < kRounds; ++r) {
          const int index = r * kTileFloats + sum_index(lane / 4, warp);
          float dh = j < count && gate < CLUSTER ? own_partial[(gate * kWave + j) * kOwnFloats + index] : 0;
          dh += __shfl_xor_sync(kWholeWarp, dh, 1);
          dh += __shfl_xor_sync(kWholeWarp, dh, 2);
          product_sum[first + j][r] = dh;
        }
      }
    }
  };

#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const int step = steps - 1 - s;
    GridGate gates[TILES][kRounds];
    const int own_unit = pin_in_register(unit);
    __syncwarp();  // `deviations` of the step before have been read
    float cell[TILES][kRounds], kept[TILES][kRounds], cell_deviation[TILES];
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      const int n = sequence(j);
      const bool is_active = j * kTileColumns + warp < columns;
      const int length = params.length_of(n);
      const bool runs = params.timestep_of(step) < length, is_first = params.is_first(step, length);
      const float4 stats = load_grid_stats(params, step, n);
      if (lane == 0) deviations[j][warp] = stats.x;
      cell_deviation[j] = stats.z;
      const float4 stats_before = load_grid_stats(params, step - 1, n);
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const int u = exists(r) ? own_unit + r * kTileRows : 0;
        const int64_t at = (params.row_of(step) + n) * hidden + u;
        const GridSaved<T> saved = load_grid_saved<T>(params, step, n, u);
        direct.at(j, r) += load_float<T>(params.dy, at);
        kept[j][r] = params.zoneout_mask != nullptr ? load_float<T>(params.zoneout_mask, at) : params.zoneout;
        const bool counts = runs && exists(r) && is_active;
        gates[j][r] = grid_gate<T>(parameters, r, products, saved, stats_before, is_first,
                                   is_first ? initial_grid_cell<T>(params, n, u) : 0, counts);
        forget.at(j, r) = gates[j][r].forget;
        cell[j][r] = counts ? Element<T>::to_float(saved.cell) : 0;
      }
    }

    __syncwarp();
    float through_product[TILES][kRounds] = {};
    if (s > 0) multiply(s, through_product);

    float of_v[TILES][kRounds], d[TILES][kRounds], through[TILES][kRounds];
    float own[4 * TILES];
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      const bool is_active = j * kTileColumns + warp < columns,
                 runs = params.timestep_of(step) < params.length_of(sequence(j));
#pragma unroll
      for (int i = 0; i < 4; ++i) own[4 * j + i] = 0;
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const bool counts = runs && exists(r) && is_active;
        const GridGate& g = gates[j][r];
        const float dh = through_product[j][r] * mask.at(j, r) + direct.at(j, r);
        direct.at(j, r) = runs ? kept[j][r] * dh : dh;
        through[j][r] = dh - direct.at(j, r);
        of_v[j][r] = counts ? through[j][r] * g.of_h + (products ? 0 : dc.at(j, r)) : 0;
        const float w = parameters.cell_gain[r][lane] * of_v[j][r];
        d[j][r] = counts ? cell_deviation[j] * w + (products ? dc.at(j, r) : 0) : 0;
        const float scaled = parameters.gate_gain[r][lane] * g.of_gate;
        const float of_sum = counts ? scaled * (gate == 3 ? through[j][r] : d[j][r]) : 0;
        own[4 * j] += gate == 0 ? w : 0;
        own[4 * j + 1] += gate == 0 ? w * cell[j][r] : 0;
        own[4 * j + 2] += of_sum;
        own[4 * j + 3] += of_sum * g.normalized;
      }
    }
    if (normalizes) sum_over_warp(own);
    const auto row_of = [&](int j) { return params.row_of(step) + pin_in_register(sequence(j)); };
    const auto sums_at = [&](int j) {
      return params.moments + ((first_row + int64_t{s} * most_columns + j * kTileColumns + warp) * params.blocks) * 4;
    };
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      const float values[4] = {own[4 * j], own[4 * j + 1], own[4 * j + 2], own[4 * j + 3]};
      publish_words(normalizes && lane == 0 && j * kTileColumns + warp < columns, sums_at(j) + place.block * 4, values);
    }
    const unsigned sent = clock_low();
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        parameter_sums.at(2, r) += of_v[j][r] * cell[j][r];
        parameter_sums.at(3, r) += of_v[j][r];
      }
    }
    if (normalizes) wait_poll_delay(sent, params.moments_delay_cycles);
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      const bool is_active = j * kTileColumns + warp < columns,
                 runs = params.timestep_of(step) < params.length_of(sequence(j));
      float s1 = 0, s2 = 0, mean = 0, dot = 0;
      if (normalizes) {
        uint4 words[kLoads];
        const auto address = [&](int i) { return sums_at(j) + (lane + i * 32) * 4; };
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          words[i] = load_or_zeros(is_active && lane + i * 32 < params.blocks, address(i));
        }
        poll_words(words, address, params.timed_out, timed_out);
        const float4 first = *reinterpret_cast<const float4*>(params.kept_sums + row_of(j) * 4);
        float total[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          total[0] += __uint_as_float(words[i].x), total[1] += __uint_as_float(words[i].y);
          total[2] += __uint_as_float(words[i].z), total[3] += __uint_as_float(words[i].w);
        }
        sum_over_warp(total);
        s1 = total[0] * cell_share, s2 = total[1] * cell_share;
        mean = (total[2] - cell_deviation[j] * (s1 * first.x + s2 * first.y)) * gate_share;
        dot = (total[3] - cell_deviation[j] * (s1 * first.z + s2 * first.w)) * gate_share;
      }
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const bool counts = runs && exists(r) && is_active;
        const GridGate& g = gates[j][r];
        const float of_c = d[j][r] - cell_deviation[j] * (s1 + cell[j][r] * s2);
        const float du = counts ? (gate == 3 ? through[j][r] : of_c) * g.of_gate : 0;
        if (counts) dc.at(j, r) = of_c * forget.at(j, r);
        const float scaled = parameters.gate_gain[r][lane] * du;
        const float da = counts ? deviations[j][warp] * (scaled - mean - g.normalized * dot) : 0;
        const int u = first_unit + r * kTileRows, column = j * kTileColumns + warp;
        if (step > 0 || params.dh0 != nullptr) {
          T* const to = exchange + (int64_t{s} * most_columns + column) * row_elements + gate * padded + u;
          publish_gate_tiles(to, lane, factor_of<T>(da), is_active && u < padded);
        }
        parameter_sums.at(0, r) += du * g.normalized;
        parameter_sums.at(1, r) += du;
        if (!is_active || !exists(r)) continue;
        const int64_t at = (row_of(j) * 4 + gate) * hidden + pin_in_register(unit) + r * kTileRows;
        store_float<T>(params.da, at, da);
        if (products) store_float<T>(params.dx, at, du);
      }
    }
    published = clock_low();
  }

  // The initial states.
  float last[TILES][kRounds] = {};
  if (params.dh0 != nullptr) multiply(steps, last);
#pragma unroll
  for (int j = 0; j < TILES; ++j) {
    if (j * kTileColumns + warp >= columns) continue;
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int64_t at = int64_t{sequence(j)} * hidden + unit + r * kTileRows;
      if (!exists(r)) continue;
      if (gate == 0 && params.dh0 != nullptr)
        store_float<T>(params.dh0, at, last[j][r] * mask.at(j, r) + direct.at(j, r));
      if (gate == 1 && params.dc0 != nullptr) store_float<T>(params.dc0, at, dc.at(j, r));
    }
  }

  // Sums over the warps.
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[((warp * kRounds + r) * 4 + i) * 32 + lane] = parameter_sums.at(i, r);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kRounds * 4 * 32; i += kResidentThreads) {
    const int r = i / 128, kind = i / 32 % 4, of_gate = i % 4, u = first_unit + r * kTileRows + i % 32 / 4;
    if (u >= hidden || (kind >= 2 && of_gate != 0)) continue;
    float sum = 0;
    for (int w = 0; w < kResidentWarps; ++w) sum += sums[w * kRounds * 128 + i];
    const int row = kind < 2 ? kind * 4 + of_gate : 6 + kind;
    params.sums[(int64_t{params.first_partial + place.replica} * kLayerNormLstmParameterRows + row) * hidden + u] = sum;
  }
  // No block leaves while others may still write to its shared memory.
  sync_cluster();
}

template <class T, prnnRNNMode_t, int UNIT_TILES, int CLUSTER>
cudaError_t launch_norm_grid_backward(const ResidentShape& shape, const LayerNormLstmGridParams& params,
                                      cudaStream_t stream) {
  if (params.normalizes != 0 && params.first_partial == 0) {
    const unsigned rows = static_cast<unsigned>(params.sizes.steps) * static_cast<unsigned>(params.sizes.batch);
    using Stored = std::conditional_t<sizeof(T) == 4, float, T>;  // tf32 has no memory of its own
    layer_norm_lstm_grid_kept_sums<Stored><<<rows, kResidentThreads, 0, stream>>>(params);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  constexpr int kTiles = layer_norm_lstm_grid_backward_tiles(UNIT_TILES, CLUSTER);
  const auto kernel = params.sizes.columns_per_replica <= kTileColumns
                          ? layer_norm_lstm_grid_backward<T, UNIT_TILES, CLUSTER, 1>
                          : layer_norm_lstm_grid_backward<T, UNIT_TILES, CLUSTER, kTiles>;
  return launch_resident(kernel, shape, params, stream);
}

}  // namespace prnn
