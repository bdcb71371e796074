// The forward kernel of wavefronts by chunks: several layers of a stack in one launch, each on its own share of the GPU
// with its recurrent weights alone on the chip. A layer follows the one below by a chunk of timesteps, whose input
// products it makes itself before it steps through them.
#pragma once

#include "rnn/cuda/wavefront/chunked_product.cuh"

namespace prnn {

// A block's row tiles: tile o is gate o % 4 of 8 units. Two that follow each other are a pair, the rows of one
// instruction; 2 unit tiles are a group of pairs, whose sums are worked out together.
template <int UNIT_TILES>
struct ChunkedForwardRows {
  static constexpr int kGates = 4;
  static constexpr int kPairs = UNIT_TILES * kGates / 2, kGroupPairs = kGates, kGroups = (UNIT_TILES + 1) / 2;

  // Of a group: its first pair and how many it has. The last one may be half a group.
  static constexpr int first_pair(int group) { return group * kGroupPairs; }
  static constexpr int pairs(int group) {
    return first_pair(group) + kGroupPairs <= kPairs ? kGroupPairs : kPairs - first_pair(group);
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
      const int available = unit < hidden && k_tile < k_tiles ? hidden - k : 0;
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
    const int first = tile * 2, second = first + 1;
    const float4 gates = {sums[0][first][e], sums[0][first][2 + e], sums[0][second][e], sums[0][second][2 + e]};
    to[(GROUP * 2 + tile) * (HALF ? 32 : 64) + e * 32] = gates;
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

// HALF: up to 4 sequences, each of which has every other column of a tile. EXTRAS: sequences of different lengths, or
// dropout between the layers.
template <class T, prnnRNNMode_t MODE, int UNIT_TILES, bool HALF, bool EXTRAS>
__global__ void __launch_bounds__(kResidentThreads, 1)
    chunked_forward(const __grid_constant__ WavefrontForwardParams params) {
  if constexpr (!kHasWgmma) return;
  static_assert(MODE == PRNN_LSTM);
  using Rows = ChunkedForwardRows<UNIT_TILES>;
  constexpr int kGates = Rows::kGates, kUnits = UNIT_TILES * kTileRows;
  constexpr int kKTile = k_tile_elements(false);
  constexpr int kHalfTiles = UNIT_TILES * (HALF ? 1 : 2);  // of states: 32 each
  constexpr int kSumVecs = kHalfTiles * 32;                // float4 sums of a warp
  constexpr int kRounds = (kHalfTiles + kResidentWarps - 1) / kResidentWarps;
  constexpr int kColumns = kGates * kUnits / 2;  // of a warpgroup in the product of a chunk
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
  ChunkedWeights<Rows::kPairs> weights;
  weights.more = reinterpret_cast<uint4*>(biases + kUnits) + threadIdx.x;
  const int k_tiles = k_tiles_of_warp(hidden / kKTile);
  load_groups<T, Rows>(weights, static_cast<const T*>(layer.recurrent), first_unit, hidden, k_tiles, kGroups);

  // What a thread finishes in a round: one unit of one sequence. In the first round a warp has half a tile of states;
  // what is left is shared by all warps.
  int unit[kRounds], column[kRounds], sum_at[kRounds];
  bool exists[kRounds];
  float carry[kRounds];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    constexpr int kLeft = (kHalfTiles - kResidentWarps) * 32 / kResidentWarps;  // of a warp in the second round
    const int state = r == 0 ? warp * 32 + lane : kResidentWarps * 32 + warp * kLeft + min(lane, kLeft - 1);
    const int half_tile = state / 32;
    const bool is_own = half_tile < kHalfTiles && (r == 0 || lane < kLeft);
    unit[r] = first_unit + half_tile / (HALF ? 1 : 2) * kTileRows + state % 32 / 4;
    column[r] = HALF ? sub : sub * 2 + half_tile % 2;
    sum_at[r] = half_tile < kHalfTiles ? state : 0;
    exists[r] = is_own && unit[r] < hidden && column[r] < sizes.batch;
    carry[r] = initial_carried<T, MODE>(layer, int64_t{column[r]} * hidden + unit[r], exists[r]);
    float bias[4];
#pragma unroll
    for (int g = 0; g < 4; ++g) bias[g] = load_bias<T, MODE>(layer, hidden, unit[r], g, unit[r] < hidden);
    if (is_own && column[r] == 0) biases[unit[r] - first_unit] = {bias[0], bias[1], bias[2], bias[3]};
  }

  // The states that this lane reads: 16 bytes of one column, in each of the warp's k-tiles.
  const int tile_columns = sizes.tile_columns(), step_bytes = tile_columns * hidden * 2;
  char* const exchange = static_cast<char*>(layer.exchange);
  const int read_column = HALF ? lane / 8 : lane / 4;
  const bool is_reader = !HALF || lane / 4 % 2 == 0;
  const char* states_at = exchange + (warp * tile_columns + read_column) * 64 + sub * 16;
  const int k_tile_bytes = tile_columns * 64 * kResidentWarps;

  // Words of two units, which a lane and the one 4 further have.
  char* out_at[kRounds];
  const bool has_word = lane / 4 % 2 == 0;
  const auto word_of = [](float state) { return Element<T>::pack(state, __shfl_down_sync(kWholeWarp, state, 4)); };
  Step current, next = step_at(sizes, 0);
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    out_at[r] = exchange + (unit[r] / kKTile * tile_columns + column[r]) * 64 + unit[r] % kKTile * 2;
    const bool wanted = exists[r] && layer.hx != nullptr;
    const float h = wanted ? load_float<T>(layer.hx, int64_t{column[r]} * hidden + unit[r]) : 0;
    publish_word(has_word && exists[r], out_at[r], word_of(h));
  }

  const T* const xw = static_cast<const T*>(is_fed ? layer.products : params.xw);
  const int xw_row = is_fed ? kGates * hidden : params.xw_row, xw_gate = is_fed ? hidden : params.xw_gate;
  bool timed_out = false;
  int buffer = 0, in_chunk = 0, chunk_row = 0;
  unsigned published = 0, chunk_blocks = sizes.blocks;  // of the layer below, when it has finished the chunk

  __syncthreads();
#pragma unroll 1
  for (int t = 0; t < sizes.steps; ++t) {
    current = next;
    next = step_of_pass(sizes, sizes.steps, false, t + 1);
    if (in_chunk == 0 && is_fed) {
      if (threadIdx.x == 0) {
        // Of a last chunk of one timestep, a block may be through when another one has not counted the chunk before.
        const int ahead = t + params.chunk_steps + 1 == sizes.steps ? sizes.blocks : 0;
        wait_for_blocks(layer.below_progress, chunk_blocks + ahead, sizes.timed_out, timed_out);
      }
      chunk_blocks += sizes.blocks;
      __syncthreads();
      // Pinned: what the compiler would work out before all timesteps and keep.
      const int pinned_unit = pin_in_register(first_unit), thread = pin_in_register(static_cast<int>(threadIdx.x));
      const Step last = step_at(sizes, min(t + params.chunk_steps, sizes.steps) - 1);
      const int rows = last.row + last.batch - current.row;
      chunk_row = current.row;
      float product[kColumns / 2];
      const T* const below = static_cast<const T*>(layer.below);
      const T* const matrix = static_cast<const T*>(layer.input);
      multiply_rows<T, kColumns>(
          product, hidden, shared_address(chunked_shared), thread,
          [&](int r) { return below + int64_t{chunk_row + min(r, rows - 1)} * hidden; },
          [&](int c) {
            return matrix + (int64_t{c / kUnits} * hidden + min(pinned_unit + c % kUnits, hidden - 1)) * hidden;
          });
      const int first_row = thread / 32 % 4 * 16 + thread % 32 / 4;
      const int first_column = thread / 128 * kColumns + thread % 4 * 2;
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        const int c = pin_in_register(first_column) + j * 8, u = pinned_unit + c % kUnits;
        T* const to = static_cast<T*>(layer.products) + (int64_t{first_row} * kGates + c / kUnits) * hidden + u;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (first_row + e * 8 >= rows || u >= hidden) continue;
          *reinterpret_cast<uint32_t*>(to + e * 8 * kGates * hidden) =
              Element<T>::pack(product[j * 4 + e * 2], product[j * 4 + e * 2 + 1]);
        }
      }
      __syncthreads();
      if (t == 0 && layer.initial_products != nullptr) {
#pragma unroll 1
        for (int i = thread; i < sizes.batch * kGates * kUnits; i += kResidentThreads) {
          const int u = pinned_unit + i % kUnits, at = i / kUnits * hidden + u;
          if (u >= hidden) continue;
          store_float<T>(layer.products, at, load_float<T>(layer.products, at) + layer.initial_products[at]);
        }
        __syncthreads();
      }
    }

    // The input products, on their way while the states are.
    uint32_t input[kRounds][kGates], kept[kRounds];
    bool is_active[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      is_active[r] = exists[r] && (!EXTRAS || column[r] < current.batch);
      const T* const from = xw + (int64_t{current.row - (is_fed ? chunk_row : 0) + column[r]} * xw_row + unit[r]);
#pragma unroll
      for (int g = 0; g < kGates; ++g) input[r][g] = load_element(is_active[r], from + g * xw_gate);
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

    UnitForward done[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const float4* const from = step_sums + sum_at[r];
      float4 of_warp[kResidentWarps];
#pragma unroll
      for (int w = 0; w < kResidentWarps; ++w) of_warp[w] = from[w * kSumVecs];
      add_all(of_warp);
      const float4 bias = biases[min(unit[r] - first_unit, kUnits - 1)];
      const float sum[4] = {of_warp[0].x + bias.x, of_warp[0].y + bias.y, of_warp[0].z + bias.z, of_warp[0].w + bias.w};
      float recurrent[kGates], in[kGates];
#pragma unroll
      for (int g = 0; g < kGates; ++g) {
        recurrent[g] = sum[g];
        in[g] = element_value<T>(input[r][g]);
      }
      done[r] = forward_unit<MODE, false>(recurrent, in, carry[r]);
      carry[r] = done[r].carried;
    }
    if (!HALF) arrive_sums_read();
    uint32_t word[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      word[r] = word_of(done[r].h);
      out_at[r] += step_bytes;
      publish_word(has_word && exists[r] && column[r] < next.batch, out_at[r], word[r]);
    }
    published = clock_low();
    states_at += step_bytes;

    // Off the critical path: no block of this layer polls these stores.
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int64_t at = int64_t{current.row + column[r]} * hidden + unit[r];
      if (drops) {
        const float state = dropped_state<T>(done[r].h, (kept[r] >> unit[r] % 8 & 1) != 0, params.dropout_scale);
        const uint32_t dropped = word_of(state);
        if (has_word && is_active[r]) *reinterpret_cast<uint32_t*>(static_cast<T*>(dropout.dropped) + at) = dropped;
      }
      if (!is_active[r]) continue;
      if (has_word) *reinterpret_cast<uint32_t*>(static_cast<T*>(layer.y) + at) = word[r];
      if (layer.gates != nullptr) {
        Four<T> gates;
#pragma unroll
        for (int g = 0; g < 4; ++g) gates.value[g] = Element<T>::from_float(done[r].saved[g]);
        // Not to displace the weights from L2.
        __stcs(static_cast<uint2*>(layer.gates) + at, reinterpret_cast<const uint2&>(gates));
        store_float<T>(layer.cells, at, done[r].carried);
      }
      if (column[r] >= next.batch) {  // the sequence ends
        const int64_t state = int64_t{column[r]} * hidden + unit[r];
        store_final_states<T, MODE>(layer, state, done[r].h, done[r].carried, kWholeUnit);
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
