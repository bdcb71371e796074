// The forward kernel of wavefronts by chunks: several layers of a stack in one launch, each on its own share of the GPU
// with its recurrent weights alone on the chip. A layer follows the one below by a chunk of timesteps, whose input
// products it makes itself before it steps through them.
#pragma once

#include "rnn/cuda/wavefront/chunked_product.cuh"

namespace prnn {

// A block's row tiles: tile o is gate o % kGates of 8 units. Two that follow each other are a pair, the rows of one
// instruction; 2 unit tiles are a group of pairs, whose sums are worked out together.
template <prnnRNNMode_t MODE, int UNIT_TILES>
struct ChunkedForwardRows {
  static constexpr int kGates = Cell<MODE>::kGates, kTiles = UNIT_TILES * kGates;
  static constexpr int kPairs = chunked_pairs(kGates, UNIT_TILES), kGroupPairs = kGates, kGroups = (UNIT_TILES + 1) / 2;

  // A group's first pair and its number of pairs. The last group may be half a group.
  static constexpr int first_pair(int group) { return group * kGroupPairs; }
  static constexpr int pairs(int group) {
    return first_pair(group) + kGroupPairs <= kPairs ? kGroupPairs : kPairs - first_pair(group);
  }
  // Columns of a chunk's product, of a warpgroup: those that a lane has in two tiles of 8 that follow each other are
  // the gates of a unit, of three gates in three tiles those of two units. Some may be of no unit of the block.
  static constexpr int kProductColumns = chunked_product_columns(kGates, UNIT_TILES);
  static constexpr int kProductTiles = kGates == 4 ? 2 : kGates;    // that a lane's gates of some units are in
  static constexpr int kProductUnits = kProductTiles * 8 / kGates;  // in these
  static constexpr __device__ int product_gate(int column) {
    const int tile = column % kProductColumns / 8 % kProductTiles;
    return kGates == 4 ? tile * 2 + column % 2 : tile;
  }
  static constexpr __device__ int product_unit(int column) {
    const int of_warpgroup = column % kProductColumns, of_tile = of_warpgroup % 8;
    return column / kProductColumns * (kProductColumns / kGates) + of_warpgroup / (kProductTiles * 8) * kProductUnits +
           (kGates == 4 ? of_tile / 2 : of_tile);
  }
  // The operand of the weights for half a k-tile of a pair of the group.
  static constexpr int operand(int group, int pair, int k_tile, int half) {
    return first_pair(group) * 2 * kChunkedKTiles + (k_tile * 2 + half) * pairs(group) + pair;
  }
};

// A group's weights from [G H, H], aligned to 16 bytes; its loads of a k-tile are in flight together.
template <class T, class Rows, int GROUP, class Weights>
__device__ __forceinline__ void load_group(Weights& weights, const T* matrix, int first_unit, int hidden, int k_tiles) {
  constexpr int kCount = Rows::pairs(GROUP);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int k_tile = 0; k_tile < kChunkedKTiles; ++k_tile) {
    const int k = (warp + k_tile * kResidentWarps) * k_tile_elements(false) + lane % 4 * 8;
    const int unit_of_lane = pin_in_register(first_unit) + lane / 4;  // not kept from one k-tile to the next
    uint4 rows[2 * kCount];
#pragma unroll
    for (int i = 0; i < 2 * kCount; ++i) {
      const int row_tile = 2 * Rows::first_pair(GROUP) + i, unit = unit_of_lane + row_tile / Rows::kGates * kTileRows;
      const int available = row_tile < Rows::kTiles && unit < hidden && k_tile < k_tiles ? hidden - k : 0;
      rows[i] = load_aligned_vec(matrix, (int64_t{row_tile % Rows::kGates} * hidden + unit) * hidden + k, available);
    }
#pragma unroll
    for (int pair = 0; pair < kCount; ++pair) {
      const WeightOperands a = operands_of(rows[2 * pair], rows[2 * pair + 1]);
      weights.keep(Rows::operand(GROUP, pair, k_tile, 0), a.first);
      weights.keep(Rows::operand(GROUP, pair, k_tile, 1), a.second);
    }
    __syncthreads();  // else ptxas loads more ahead than there are registers for
  }
}

// A warp's products of a group with the states of its k-tiles. Stores sums of a unit's gates as float4 at `to`, this
// lane's first one; HALF: of every other column.
template <class T, class Rows, int GROUP, bool HALF, class Weights>
__device__ __forceinline__ void multiply_group(const Weights& weights, const uint4 (&states)[kChunkedKTiles],
                                               float4* to) {
  constexpr int kCount = Rows::pairs(GROUP);
  constexpr bool kWhole = kCount == Rows::kGroupPairs;
  constexpr int kSets = kWhole ? 1 : 2;  // half a group has a set for each half of the k-tiles, to hide latencies
  float sums[kSets][kCount][4] = {};
#pragma unroll
  for (int k_tile = 0; k_tile < kChunkedKTiles; ++k_tile) {
    const uint4 b = states[k_tile];
    unroll<2, kCount>([&](int half, int pair) {
      const uint4 a = weights.operand(Rows::operand(GROUP, pair, k_tile, half));
      Element<T>::mma(sums[half % kSets][pair], a.x, a.y, a.z, a.w, half == 0 ? b.x : b.z, half == 0 ? b.y : b.w);
    });
  }
  if constexpr (kSets == 2) unroll<kCount, 4>([&](int pair, int q) { sums[0][pair][q] += sums[1][pair][q]; });
  unroll<kWhole ? 2 : 1, HALF ? 1 : 2>([&](int tile, int e) {
    const auto gate = [&](int g) {
      const int row_tile = tile * Rows::kGates + g;
      return g < Rows::kGates ? sums[0][row_tile / 2][row_tile % 2 * 2 + e] : 0;
    };
    to[(GROUP * 2 + tile) * (HALF ? 32 : 64) + e * 32] = {gate(0), gate(1), gate(2), gate(3)};
  });
}

template <class T, class Rows, class Weights, int... GROUPS>
__device__ __forceinline__ void load_groups(Weights& weights, const T* matrix, int first_unit, int hidden, int k_tiles,
                                            std::integer_sequence<int, GROUPS...>) {
  (load_group<T, Rows, GROUPS>(weights, matrix, first_unit, hidden, k_tiles), ...);
}
template <class T, class Rows, bool HALF, class Weights, int... GROUPS>
__device__ __forceinline__ void multiply_groups(const Weights& weights, const uint4 (&states)[kChunkedKTiles],
                                                float4* to, std::integer_sequence<int, GROUPS...>) {
  (multiply_group<T, Rows, GROUPS, HALF>(weights, states, to), ...);
}

// This block's `columns` of h of the layer below, of `width` in all, and of the same after dropout, from `rows`, its m
// of a chunk that begins with row `first_row`. The whole block calls it; `thread` is threadIdx.x.
template <class T, int STAGES>
__device__ __forceinline__ void project_chunk(const ChunkedProjection& projection, int width, int columns, int first,
                                              const ChunkRows<T>& rows, int first_row, uint32_t stages, int thread,
                                              float scale) {
  if (first >= width) return;
  float product[kChunkedProjected / 4];
  multiply_rows<T, kChunkedProjected / 2, STAGES>(
      product, rows.stride, stages, thread, rows, static_cast<const T*>(projection.matrix),
      [&](int c) { return min(first + min(c, columns - 1), width - 1) * rows.stride; });
  const int first_column = thread / 128 * (kChunkedProjected / 2) + thread % 4 * 2;
#pragma unroll
  for (int i = 0; i < kChunkedProjected / 8; ++i) {
    const int row = thread / 32 % 4 * 16 + thread % 32 / 4 + i % 2 * 8, c = first_column + i / 2 * 8;
    const int column = first + c;
    if (row >= rows.count || c >= columns || column >= width) continue;
    const int64_t at = int64_t{first_row + row} * width + column;
    const unsigned kept = projection.kept[at / 8] >> column % 8;
    const float h[2] = {product[i * 2], product[i * 2 + 1]};
    *reinterpret_cast<uint32_t*>(static_cast<T*>(projection.states) + at) = Element<T>::pack(h[0], h[1]);
    *reinterpret_cast<uint32_t*>(static_cast<T*>(projection.dropped) + at) = Element<T>::pack(
        dropped_state<T>(h[0], (kept & 1) != 0, scale), dropped_state<T>(h[1], (kept & 2) != 0, scale));
  }
}

// HALF: up to 4 sequences, each of which has every other column of a tile. EXTRAS: sequences of different lengths, or
// dropout between the layers.
template <class T, prnnRNNMode_t MODE, int UNIT_TILES, bool HALF, bool EXTRAS>
__global__ void __launch_bounds__(kResidentThreads, 1)
    chunked_forward(const __grid_constant__ WavefrontForwardParams params) {
  if constexpr (!kHasWgmma) return;
  using Rows = ChunkedForwardRows<MODE, UNIT_TILES>;
  constexpr int kGates = Rows::kGates, kUnits = UNIT_TILES * kTileRows;
  constexpr int kKTile = k_tile_elements(false);
  constexpr int kHalfTiles = UNIT_TILES * (HALF ? 1 : 2);  // of states: 32 each
  constexpr int kSumVecs = kHalfTiles * 32;                // float4 sums of a warp
  // States beyond those of a thread each: their four gate values are in lanes beside each other, in later rounds.
  constexpr int kRest = kHalfTiles > kResidentWarps ? (kHalfTiles - kResidentWarps) * 32 : 0;
  constexpr int kLater = kRest * 4 / kResidentThreads, kRounds = 1 + kLater, kLaterStates = kResidentThreads / 4;
  static_assert(kRest % kLaterStates == 0);
  constexpr int kColumns = Rows::kProductColumns;
  constexpr int kPrefetchedSteps = 4;  // ahead
  constexpr auto kGroups = std::make_integer_sequence<int, Rows::kGroups>();

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const BlockPlace place = place_of_block(sizes, kUnits);
  const WavefrontForwardLayer& layer = params.layer[place.direction];
  const ForwardDropout& dropout = params.dropout[place.direction];
  const int first_unit = place.first_unit, hidden = sizes.hidden;
  const bool is_fed = layer.below != nullptr, drops = EXTRAS && dropout.dropped != nullptr;

  // The stages of a chunk's product, and, while the block steps through the chunk, sums [2 (HALF) or
  // 1][warps][kSumVecs]; biases of the units; weights.
  extern __shared__ __align__(1024) uint4 chunked_shared[];
  float4* const sums = reinterpret_cast<float4*>(chunked_shared);
  float4* const biases = reinterpret_cast<float4*>(chunked_shared + chunked_biases_at(kGates, UNIT_TILES, HALF) / 16);
  ChunkedWeights<kGates, UNIT_TILES> weights;
  weights.more = reinterpret_cast<uint4*>(biases + kUnits) + threadIdx.x;
  const int k_tiles = k_tiles_of_warp(hidden / kKTile);
  load_groups<T, Rows>(weights, static_cast<const T*>(layer.recurrent), first_unit, hidden, k_tiles, kGroups);

  // A thread finishes in the first round one unit of one sequence, in later ones one gate value of one.
  int unit[kRounds], column[kRounds], sum_at[kRounds];
  bool exists[kRounds];
  float carry[kRounds];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int state = r == 0 ? threadIdx.x : kResidentThreads + (r - 1) * kLaterStates + threadIdx.x / 4;
    const int half_tile = state / 32;
    const bool is_own = half_tile < kHalfTiles;
    unit[r] = first_unit + half_tile / (HALF ? 1 : 2) * kTileRows + state % 32 / 4;
    column[r] = HALF ? sub : state % 4 * 2 + half_tile % 2;
    sum_at[r] = is_own ? state : 0;
    exists[r] = is_own && unit[r] < hidden && column[r] < sizes.batch;
    carry[r] = initial_carried<T, MODE>(layer, int64_t{column[r]} * hidden + unit[r], exists[r]);
    float bias[4];
#pragma unroll
    for (int g = 0; g < 4; ++g) bias[g] = load_bias<T, MODE>(layer, hidden, unit[r], g, unit[r] < hidden);
    if (is_own && column[r] == 0 && (r == 0 || sub == 0)) {
      biases[unit[r] - first_unit] = {bias[0], bias[1], bias[2], bias[3]};
    }
  }

  // The states that this lane reads: 16 bytes of one column, in each of the warp's k-tiles.
  const int tile_columns = sizes.tile_columns(), step_bytes = tile_columns * hidden * 2;
  char* const exchange = static_cast<char*>(layer.exchange);
  const int read_column = HALF ? lane / 8 : lane / 4;
  const bool is_reader = !HALF || lane / 4 % 2 == 0;
  const char* states_at = exchange + (warp * tile_columns + read_column) * 64 + sub * 16;
  const int k_tile_bytes = tile_columns * 64 * kResidentWarps;
  // Prefetches the lines that the states of a later timestep will replace: they were written before the launch and may
  // have left L2; its blocks share the lines.
  const auto prefetch_states = [&](int step) {
    const int at = (first_unit / kUnits + lane * sizes.blocks) * kLineBytes;
    if (warp == kResidentWarps - 1 && step < sizes.steps && at < step_bytes) {
      prefetch_to_l2(exchange + int64_t{step} * step_bytes + at);
    }
  };

  // Words of two units, which a lane and the one 4 further have, in later rounds 16.
  char* out_at[kRounds];
  const auto has_word = [&](int r) { return r == 0 ? lane / 4 % 2 == 0 : lane < 16 && sub == 0; };
  const auto word_of = [](int r, float state) {
    return Element<T>::pack(state, __shfl_down_sync(kWholeWarp, state, r == 0 ? 4 : 16));
  };
  Step current, next = step_at(sizes, 0), of_lane;  // with EXTRAS: timestep `lane` of the chunk, or after it
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    out_at[r] = exchange + (unit[r] / kKTile * tile_columns + column[r]) * 64 + unit[r] % kKTile * 2;
    const bool wanted = exists[r] && layer.hx != nullptr;
    const float h = wanted ? load_float<T>(layer.hx, int64_t{column[r]} * hidden + unit[r]) : 0;
    publish_word(has_word(r) && exists[r], out_at[r], word_of(r, h));
  }

  bool timed_out = false;
  int buffer = 0, in_chunk = 0, chunk_row = 0;
  unsigned published = 0, chunk_blocks = sizes.blocks;  // of the layer below, when it has finished the chunk

  __syncthreads();
#pragma unroll 1
  for (int t = 0; t < sizes.steps; ++t) {
    current = next;
    if (EXTRAS && in_chunk == 0) of_lane = step_of_pass(sizes, sizes.steps, false, t + lane);
    // Timestep i of the chunk, or after it; no sequences after the last one.
    const auto step_of_chunk = [&](int i) -> Step {
      if constexpr (EXTRAS) {
        return {__shfl_sync(kWholeWarp, of_lane.row, i), __shfl_sync(kWholeWarp, of_lane.batch, i)};
      } else {
        const int step = t - in_chunk + i;
        return {step * sizes.batch, step < sizes.steps ? sizes.batch : 0};
      }
    };
    if (in_chunk == 0 && is_fed) {
      if (threadIdx.x == 0) {
        // In a last chunk of one timestep, a block may be through when another one has not counted the chunk before.
        const int ahead = t + params.chunk_steps + 1 == sizes.steps ? sizes.blocks : 0;
        wait_for_blocks(layer.below_progress, chunk_blocks + ahead, sizes.timed_out, timed_out);
      }
      chunk_blocks += sizes.blocks;
      __syncthreads();
      // Pinned: what the compiler would work out before all timesteps and keep.
      const int pinned_unit = pin_in_register(first_unit), thread = pin_in_register(static_cast<int>(threadIdx.x));
      const Step last = step_of_chunk(min(params.chunk_steps, sizes.steps - t) - 1);
      const int rows = last.row + last.batch - current.row;
      chunk_row = current.row;
      ChunkRows<T> below{static_cast<const T*>(layer.below) + int64_t{chunk_row} * hidden, rows, hidden};
      if constexpr (EXTRAS && MODE == PRNN_LSTM) {
        const ChunkedProjection& projection = layer.projection;
        if (params.projection > 0) {
          project_chunk<T, chunked_projected_stages(kGates, UNIT_TILES)>(
              projection, params.projection, params.projection_columns,
              pinned_unit / kUnits * params.projection_columns, below, chunk_row, shared_address(chunked_shared),
              thread, params.dropout_scale);
          __syncthreads();
          if (thread == 0) {
            count_block(projection.progress);
            wait_for_blocks(projection.progress, chunk_blocks - sizes.blocks, sizes.timed_out, timed_out);
          }
          __syncthreads();
          below = {static_cast<const T*>(projection.dropped) + int64_t{chunk_row} * params.projection, rows,
                   params.projection};
        }
      }
      float product[kColumns / 2];
      multiply_rows<T, kColumns>(product, below.stride, shared_address(chunked_shared), thread, below,
                                 static_cast<const T*>(layer.input), [&](int c) {
                                   const int unit = min(pinned_unit + Rows::product_unit(c), hidden - 1);
                                   return (Rows::product_gate(c) * hidden + unit) * below.stride;
                                 });
      const int first_row = thread / 32 % 4 * 16 + thread % 32 / 4;
      const int own_unit = pinned_unit + thread / 128 * (kColumns / kGates) + thread % 4 * (kGates == 4 ? 1 : 2);
#pragma unroll
      for (int j = 0; j < kColumns / 8 / Rows::kProductTiles; ++j) {
        const int u = pin_in_register(own_unit) + j * Rows::kProductUnits;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int row = first_row + e * 8;
          if (row >= rows || u >= min(hidden, pinned_unit + kUnits)) continue;
          const float* const from = product + j * Rows::kProductTiles * 4 + e * 2;
          T* const to = static_cast<T*>(layer.products) + (int64_t{row} * hidden + u) * kGates;
          if constexpr (kGates == 4) {
            *reinterpret_cast<uint2*>(to) = {Element<T>::pack(from[0], from[1]), Element<T>::pack(from[4], from[5])};
          } else {
            uint32_t* const words = reinterpret_cast<uint32_t*>(to);
            words[0] = Element<T>::pack(from[0], from[4]);
            words[1] = Element<T>::pack(from[8], from[1]);
            words[2] = Element<T>::pack(from[5], from[9]);
          }
        }
      }
      __syncthreads();
      if (t == 0 && layer.initial_products != nullptr) {
#pragma unroll 1
        for (int i = thread; i < sizes.batch * kGates * kUnits; i += kResidentThreads) {
          const int u = pinned_unit + i % kUnits, gate = i / kUnits % kGates, n = i / kUnits / kGates;
          if (u >= hidden) continue;
          const int64_t at = (int64_t{n} * hidden + u) * kGates + gate;
          const float initial = layer.initial_products[(n * kGates + gate) * hidden + u];
          store_float<T>(layer.products, at, load_float<T>(layer.products, at) + initial);
        }
        __syncthreads();
      }
    }

    next = step_of_chunk(in_chunk + 1);

    // The input products, on their way while the states are; of the first round, pairs of gates.
    uint2 input = {0, 0};
    uint32_t gate_input[kRounds] = {}, kept[kRounds];
    bool is_active[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      is_active[r] = exists[r] && (!EXTRAS || column[r] < current.batch);
      const T* const from =
          is_fed ? static_cast<const T*>(layer.products) +
                       (int64_t{current.row - chunk_row + column[r]} * hidden + unit[r]) * kGates
                 : static_cast<const T*>(params.xw) + (int64_t{current.row + column[r]} * params.xw_row + unit[r]);
      const int gate_stride = is_fed ? 1 : params.xw_gate;
      if (r > 0) {
        const bool has_input = MODE != PRNN_GRU || sub != 2;  // a GRU's R h of the candidate has none
        gate_input[r] = load_element(is_active[r] && has_input, from + input_gate<MODE>(sub) * gate_stride);
      } else if (kGates == 4 && is_fed) {
        input = load_four_elements(is_active[r], from);
      } else {
        uint32_t gates[4] = {};
#pragma unroll
        for (int g = 0; g < kGates; ++g) gates[g] = load_element(is_active[r], from + g * gate_stride);
        input = {gates[0] | gates[1] << 16, gates[2] | gates[3] << 16};
      }
      const int64_t state = int64_t{current.row + column[r]} * hidden + unit[r];
      kept[r] = EXTRAS ? load_kept<1>(drops && is_active[r], dropout.kept + state / 8) : 0;
    }
    wait_poll_delay(published, sizes.poll_delay_cycles);
    uint4 states[kChunkedKTiles];
    const bool reads = is_reader && read_column < (EXTRAS ? current.batch : sizes.batch);
#pragma unroll
    for (int i = 0; i < kChunkedKTiles; ++i)
      states[i] = load_or_zeros(reads && i < k_tiles, states_at + i * k_tile_bytes);
    poll_words(states, [&](int i) { return states_at + i * k_tile_bytes; }, sizes.timed_out, timed_out);

    float4* const step_sums = sums + (HALF ? buffer : 0) * kResidentWarps * kSumVecs;
    buffer ^= 1;
    if (!HALF && t > 0) sync_sums_read();
    multiply_groups<T, Rows, HALF>(weights, states, step_sums + warp * kSumVecs + lane, kGroups);
    __syncthreads();

    float h[kRounds], recurrent[kGates], in[kGates], gate[kRounds] = {};
    {
      const float4* const from = step_sums + sum_at[0];
      float4 of_warp[kResidentWarps];
#pragma unroll
      for (int w = 0; w < kResidentWarps; ++w) of_warp[w] = from[w * kSumVecs];
      add_all(of_warp);
      const float4 bias = biases[min(unit[0] - first_unit, kUnits - 1)];
      const float sum[4] = {of_warp[0].x + bias.x, of_warp[0].y + bias.y, of_warp[0].z + bias.z, of_warp[0].w + bias.w};
#pragma unroll
      for (int g = 0; g < kGates; ++g) {
        recurrent[g] = sum[g];
        in[g] = element_value<T>((g < 2 ? input.x : input.y) >> g % 2 * 16);
      }
      if (MODE == PRNN_GRU) in[kGates - 1] += bias.w;
    }
#pragma unroll
    for (int r = 1; r < kRounds; ++r) {
      const float sum = sum_over_warps(reinterpret_cast<const float*>(step_sums), kSumVecs * 4, sum_at[r] * 4 + sub);
      gate[r] = sum + reinterpret_cast<const float*>(biases)[(unit[r] - first_unit) * 4 + sub];
    }
    if (!HALF) arrive_sums_read();
    const UnitForward done = forward_unit<MODE, digits_of<T>()>(recurrent, in, carry[0]);
    carry[0] = done.carried;
    h[0] = done.h;
#pragma unroll
    for (int r = 1; r < kRounds; ++r) {
      gate[r] = Cell<MODE>::template activate<digits_of<T>()>(gate[r] + element_value<T>(gate_input[r]), sub, 0);
      const LaneForward rest = lanes_forward<MODE, digits_of<T>()>(gate[r], carry[r], sub);
      carry[r] = rest.carried;
      h[r] = rest.h;
      gate[r] = rest.saved;
    }
    uint32_t word[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      word[r] = word_of(r, h[r]);
      out_at[r] += step_bytes;
      publish_word(has_word(r) && exists[r] && column[r] < next.batch, out_at[r], word[r]);
    }
    published = clock_low();
    states_at += step_bytes;
    prefetch_states(t + kPrefetchedSteps);

    // Off the critical path: no block of this layer polls these stores.
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int64_t at = int64_t{current.row + column[r]} * hidden + unit[r];
      if (drops) {
        const float state = dropped_state<T>(h[r], (kept[r] >> unit[r] % 8 & 1) != 0, params.dropout_scale);
        const uint32_t dropped = word_of(r, state);
        if (has_word(r) && is_active[r]) {
          *reinterpret_cast<uint32_t*>(static_cast<T*>(dropout.dropped) + at) = dropped;
        }
      }
      if (!is_active[r]) continue;
      if (has_word(r)) *reinterpret_cast<uint32_t*>(static_cast<T*>(layer.y) + at) = word[r];
      if (layer.gates != nullptr) {
        // Not to displace the weights from L2.
        if (r == 0) {
          Four<T> gates;
#pragma unroll
          for (int g = 0; g < 4; ++g) gates.value[g] = Element<T>::from_float(done.saved[g]);
          __stcs(static_cast<uint2*>(layer.gates) + at, reinterpret_cast<const uint2&>(gates));
        } else {
          __stcs(static_cast<T*>(layer.gates) + at * 4 + sub, Element<T>::from_float(gate[r]));
        }
        if (Cell<MODE>::kHasCellState && (r == 0 || sub == 0)) store_float<T>(layer.cells, at, carry[r]);
      }
      if (column[r] >= next.batch) {  // the sequence ends
        const int64_t state = int64_t{column[r]} * hidden + unit[r];
        store_final_states<T, MODE>(layer, state, h[r], carry[r], r == 0 ? kWholeUnit : sub);
      }
    }
    if (++in_chunk == params.chunk_steps || t + 1 == sizes.steps) {
      in_chunk = 0;
      if (layer.progress != nullptr) {
        __syncthreads();
        if (threadIdx.x == kResidentThreads - 32) count_block(layer.progress);
      }
    }
  }
}

template <class T, prnnRNNMode_t MODE, int UNIT_TILES>
cudaError_t launch_wavefront_chunked_forward(const ResidentShape& shape, const WavefrontForwardParams& params,
                                             cudaStream_t stream) {
  const auto launch = [&](auto half) {
    constexpr bool kHalf = decltype(half)::value;
    return launch_resident(params.has_extras() ? chunked_forward<T, MODE, UNIT_TILES, kHalf, true>
                                               : chunked_forward<T, MODE, UNIT_TILES, kHalf, false>,
                           shape, params, stream);
  };
  return params.sizes.batch <= kChunkedHalfTile ? launch(std::true_type()) : launch(std::false_type());
}

}  // namespace prnn
