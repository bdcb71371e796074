// The forward kernel of wavefronts by chunks: several layers of a stack in one launch, each on its own share of the GPU
// with its recurrent weights alone on the chip. A layer follows the one below by a chunk of timesteps, whose input
// products it makes itself before it steps through them.
#pragma once

#include <utility>

#include "rnn/cuda/wavefront/chunked_product.cuh"

namespace prnn {

// Row tiles of a block's weights: tile o is the gate kGate of 8 units. Two that follow each other are a pair, the rows
// of one instruction. A group of 2 unit tiles has whole pairs.
template <prnnRNNMode_t MODE, int UNIT_TILES>
struct ChunkedRows {
  static constexpr int kGates = gate_count(MODE);
  static_assert(MODE == PRNN_LSTM || (MODE == PRNN_GRU && UNIT_TILES % 2 == 0));
  static constexpr int kRowTiles = UNIT_TILES * kGates, kPairs = kRowTiles / 2;
  static constexpr int kGroupPairs = kGates;  // of 2 unit tiles
  using Groups = std::make_integer_sequence<int, (UNIT_TILES + 1) / 2>;
  static __device__ __forceinline__ int unit_tile(int o) { return MODE == PRNN_GRU ? o / 6 * 2 + o % 2 : o / 4; }
  static __device__ __forceinline__ int gate(int o) { return MODE == PRNN_GRU ? o % 6 / 2 : o % 4; }
};

// Calls body(f, first pair of the group, pair of the group, k-tile, half) for each operand of a warp's weights in the
// order in which they are multiplied: a group of 2 unit tiles after the other, or of the last one, whose pairs are
// independent sums.
template <class Rows, int GROUP, int K_TILES, class Body>
__device__ __forceinline__ void for_group(const Body& body) {
  constexpr int kFirst = GROUP * Rows::kGroupPairs;
  constexpr int kCount = kFirst + Rows::kGroupPairs <= Rows::kPairs ? Rows::kGroupPairs : Rows::kPairs - kFirst;
#pragma unroll
  for (int i = 0; i < K_TILES * 2 * kCount; ++i) {
    body(kFirst * 2 * K_TILES + i, kFirst, i % kCount, i / kCount / 2, i / kCount % 2);
  }
}

// A warp's weights from [G H, H], aligned to 16 bytes. The loads of a group are in flight together.
template <class T, class Rows, int GROUP, int K_TILES, class Weights>
__device__ __forceinline__ void load_group(Weights& weights, const T* matrix, int first_unit, int hidden, int k_tiles) {
  constexpr int kFirst = GROUP * Rows::kGroupPairs;
  constexpr int kCount = kFirst + Rows::kGroupPairs <= Rows::kPairs ? Rows::kGroupPairs : Rows::kPairs - kFirst;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int k_tile = 0; k_tile < K_TILES; ++k_tile) {
    const int k = (warp + k_tile * kResidentWarps) * k_tile_elements(false) + lane % 4 * 8;
    uint4 rows[2 * kCount];
    const int unit_of_lane = pin_in_register(first_unit) + lane / 4;  // not kept from one k-tile to the next
#pragma unroll
    for (int i = 0; i < 2 * kCount; ++i) {
      const int row_tile = 2 * kFirst + i, unit = unit_of_lane + Rows::unit_tile(row_tile) * kTileRows;
      const int at = (Rows::gate(row_tile) * hidden + unit) * hidden + k;  // H is at most 1024
      const int available = unit < hidden && k_tile < k_tiles ? hidden - k : 0;
      rows[i] = load_aligned_vec(matrix, at, available);
    }
#pragma unroll
    for (int pair = 0; pair < kCount; ++pair) {
      const WeightOperands a = operands_of(rows[2 * pair], rows[2 * pair + 1]);
      const int f = kFirst * 2 * K_TILES + k_tile * 2 * kCount + pair;
      weights.keep(f, a.first);
      weights.keep(f + kCount, a.second);
    }
  }
}
template <class T, class Rows, int K_TILES, class Weights, int... GROUPS>
__device__ __forceinline__ void load_rows(Weights& weights, const T* matrix, int first_unit, int hidden, int k_tiles,
                                          std::integer_sequence<int, GROUPS...>) {
  (load_group<T, Rows, GROUPS, K_TILES>(weights, matrix, first_unit, hidden, k_tiles), ...);
}

// The sums of a warp: multiplies the states of its k-tiles with all its rows, and stores float4 sums, of the gates of a
// unit. `to`: this lane's first one.
template <class T, class Rows, int GROUP, bool HALF, int K_TILES, class Weights>
__device__ __forceinline__ void multiply_group(const Weights& weights, const uint4 (&states)[K_TILES], float4* to) {
  constexpr int kFirst = GROUP * Rows::kGroupPairs, kTileVecs = HALF ? 32 : 64;
  constexpr bool kWhole = kFirst + Rows::kGroupPairs <= Rows::kPairs;
  constexpr int kCount = kWhole ? Rows::kGroupPairs : Rows::kPairs - kFirst;
  constexpr int kSets = kWhole ? 1 : 2;  // of K, so that there are sums enough that do not wait for each other
  float sums[kSets][kCount][4] = {};
  for_group<Rows, GROUP, K_TILES>([&](int f, int, int pair, int k_tile, int half) {
    const uint4 a = weights.operand(f);
    float (&sum)[4] = sums[kSets == 2 ? half : 0][pair];
    if (half == 0) {
      Element<T>::mma(sum, a.x, a.y, a.z, a.w, states[k_tile].x, states[k_tile].y);
    } else {
      Element<T>::mma(sum, a.x, a.y, a.z, a.w, states[k_tile].z, states[k_tile].w);
    }
  });
  if constexpr (kSets == 2) {
#pragma unroll
    for (int pair = 0; pair < kCount; ++pair) {
#pragma unroll
      for (int q = 0; q < 4; ++q) sums[0][pair][q] += sums[kSets - 1][pair][q];
    }
  }
#pragma unroll
  for (int u = 0; u < (kWhole ? 2 : 1); ++u) {
#pragma unroll
    for (int e = 0; e < (HALF ? 1 : 2); ++e) {
      float4 v;
      if constexpr (Rows::kGates == 3) {
        v = {sums[0][0][u * 2 + e], sums[0][1][u * 2 + e], sums[0][kCount - 1][u * 2 + e], 0};
      } else {
        const int first = u * 2;
        v = {sums[0][first][e], sums[0][first][2 + e], sums[0][first + 1][e], sums[0][first + 1][2 + e]};
      }
      to[(GROUP * 2 + u) * kTileVecs + e * 32] = v;
    }
  }
}
template <class T, class Rows, bool HALF, int K_TILES, class Weights, int... GROUPS>
__device__ __forceinline__ void multiply_groups(const Weights& weights, const uint4 (&states)[K_TILES], float4* to,
                                                std::integer_sequence<int, GROUPS...>) {
  (multiply_group<T, Rows, GROUPS, HALF>(weights, states, to), ...);
}

// HALF: up to 4 sequences, which have every other column of a tile.
template <class T, prnnRNNMode_t MODE, int UNIT_TILES, bool HALF>
__global__ void __launch_bounds__(kResidentThreads, 1)
    chunked_forward(const __grid_constant__ WavefrontForwardParams params) {
  if constexpr (!kHasWgmma) return;
  using Rows = ChunkedRows<MODE, UNIT_TILES>;
  constexpr int kGates = Rows::kGates, kPairs = Rows::kPairs;
  constexpr int kUnits = UNIT_TILES * kTileRows;
  constexpr int kKTiles = kChunkedKTiles, kKTile = k_tile_elements(false);
  constexpr int kInRegisters = kChunkedRegisters;
  constexpr int kTileVecs = HALF ? 32 : 64;                // float4 sums of a unit tile
  constexpr int kSumVecs = UNIT_TILES * kTileVecs;         // of a warp
  constexpr int kHalfTiles = UNIT_TILES * (HALF ? 1 : 2);  // 32 states each, a warp finishes one at a time
  constexpr int kRounds = (kHalfTiles + kResidentWarps - 1) / kResidentWarps;
  using Weights = ChunkedWeights<T, kPairs, kKTiles, kInRegisters>;

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const BlockPlace place = place_of_block(sizes, kUnits);
  const WavefrontForwardLayer& layer = params.layer[place.direction];
  const int first_unit = place.first_unit, hidden = sizes.hidden;
  const bool is_fed = layer.below != nullptr;

  extern __shared__ uint4 shared[];
  // Sums of the warps, and, between two chunks, the stages of the next one's product; then weights.
  constexpr int kWeightsAt = chunked_weights_at(kGates, UNIT_TILES, HALF);
  float4* const sums = reinterpret_cast<float4*>(shared);
  Weights weights;
  weights.more = shared + kWeightsAt / 16 + threadIdx.x;
  const int k_tiles = k_tiles_of_warp(hidden / kKTile);

  load_rows<T, Rows, kKTiles>(weights, static_cast<const T*>(layer.recurrent), first_unit, hidden, k_tiles,
                              typename Rows::Groups());

  // What a thread finishes in a round: one unit of one sequence.
  int unit[kRounds], column[kRounds];
  bool exists[kRounds];
  float carry[kRounds];
  __shared__ float4 biases[kRounds][kResidentThreads];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int half_tile = warp + r * kResidentWarps;
    const int tile = HALF ? half_tile : half_tile / 2;
    unit[r] = first_unit + tile * kTileRows + lane / 4;
    column[r] = HALF ? sub : sub * 2 + half_tile % 2;
    exists[r] = half_tile < kHalfTiles && unit[r] < hidden && column[r] < sizes.batch;
    carry[r] = exists[r] ? initial_carried<T, MODE>(layer, int64_t{column[r]} * hidden + unit[r], true) : 0;
    float bias[4];
#pragma unroll
    for (int g = 0; g < 4; ++g) bias[g] = load_bias<T, MODE>(layer, hidden, unit[r], g, exists[r]);
    biases[r][threadIdx.x] = {bias[0], bias[1], bias[2], bias[3]};
  }

  const int tile_columns = sizes.tile_columns();
  const int step_bytes = tile_columns * hidden * 2;
  char* const exchange = static_cast<char*>(layer.exchange);
  // The states that this lane reads: 16 bytes of a column of each of the warp's k-tiles.
  const int read_column = HALF ? lane / 8 : lane / 4;
  const bool read_lane = !HALF || lane / 4 % 2 == 0;
  const char* states_at = exchange + (warp * tile_columns + read_column) * 64 + sub * 16;
  const int k_tile_bytes = tile_columns * 64 * kResidentWarps;
  // Where this thread publishes.
  const auto place_of_state = [&](int r) {
    return exchange + (unit[r] / kKTile * tile_columns + column[r]) * 64 + unit[r] % kKTile * 2;
  };
  char* out_at[kRounds];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) out_at[r] = place_of_state(r);
  const auto word_of = [&](float h) { return Element<T>::pack(h, __shfl_down_sync(kWholeWarp, h, 4)); };
  const bool has_word = lane / 4 % 2 == 0;

#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const float h =
        exists[r] && layer.hx != nullptr ? load_float<T>(layer.hx, int64_t{column[r]} * hidden + unit[r]) : 0;
    publish_word(has_word && exists[r], out_at[r], word_of(h));
  }
  bool timed_out = false;
  unsigned published = 0;
  int buffer = 0;
  int row = 0;        // of the step
  int chunk_row = 0;  // the first of the chunk
  const T* xw = static_cast<const T*>(is_fed ? layer.products : params.xw);
  const int xw_row = is_fed ? kGates * hidden : params.xw_row, xw_gate = is_fed ? hidden : params.xw_gate;
  const int chunk_steps = params.chunk_steps;
  int in_chunk = 0, chunk = 0;

  __syncthreads();
#pragma unroll 1
  for (int t = 0; t < sizes.steps; ++t) {
    if (in_chunk == 0 && is_fed) {
      chunk_row = row;
      if (threadIdx.x == 0) {
        // Of a last chunk of one timestep, a block may be through when another one has not counted the chunk before.
        const int chunks = chunk + 1 + (t + chunk_steps + 1 == sizes.steps);
        wait_for_blocks(layer.below_progress, static_cast<unsigned>(sizes.blocks) * chunks, sizes.timed_out, timed_out);
        if (chunk == 0) wait_poll_delay(clock_low(), params.stagger_cycles);
      }
      __syncthreads();
      // Pinned: what the compiler would work out before all timesteps and keep.
      const int rows_left = min(chunk_steps, sizes.steps - t) * sizes.batch, pinned_unit = pin_in_register(first_unit);
      const int pinned_thread = pin_in_register(static_cast<int>(threadIdx.x));
      float product[kGates * kUnits / 4];
      const T* const below = static_cast<const T*>(layer.below);
      const T* const matrix = static_cast<const T*>(layer.input);
      multiply_rows<T, kGates * kUnits / 2>(
          product, hidden, shared_address(shared), pinned_thread,
          [&](int r) { return below + int64_t{chunk_row + min(r, rows_left - 1)} * hidden; },
          [&](int c) {
            const int gate = c / kUnits, u = min(pinned_unit + c % kUnits, hidden - 1);
            return matrix + (int64_t{gate} * hidden + u) * hidden;
          });
      // Row r of the chunk gate g unit u at (r G + g) H + u.
      const int first = pinned_thread / 32 % 4 * 16 + pinned_thread % 32 / 4;
      const int first_column = pinned_thread / 128 * (kGates * kUnits / 2) + pinned_thread % 4 * 2;
#pragma unroll
      for (int j = 0; j < kGates * kUnits / 16; ++j) {
        const int c = pin_in_register(first_column) + j * 8, gate = c / kUnits, u = pinned_unit + c % kUnits;
        T* const to = static_cast<T*>(layer.products) + (int64_t{first} * kGates + gate) * hidden + u;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (first + e * 8 < rows_left && u < hidden) {
            *reinterpret_cast<uint32_t*>(to + e * 8 * kGates * hidden) =
                Element<T>::pack(product[j * 4 + e * 2], product[j * 4 + e * 2 + 1]);
          }
        }
      }
      __syncthreads();
    }

    // The input products, on their way while the states are.
    uint32_t input[kRounds][kGates];
    const int xw_first = is_fed ? row - chunk_row : row;
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const T* const from = xw + (int64_t{xw_first + column[r]} * xw_row + unit[r]);
#pragma unroll
      for (int g = 0; g < kGates; ++g) input[r][g] = load_element(exists[r], from + g * xw_gate);
    }
    wait_poll_delay(published, sizes.poll_delay_cycles);
    uint4 states[kKTiles];
    const bool reads = read_lane && read_column < sizes.batch;
#pragma unroll
    for (int i = 0; i < kKTiles; ++i) states[i] = load_or_zeros(reads && i < k_tiles, states_at + i * k_tile_bytes);
    poll_words(states, [&](int i) { return states_at + i * k_tile_bytes; }, sizes.timed_out, timed_out);

    float4* const step_sums = sums + (HALF ? buffer : 0) * kResidentWarps * kSumVecs;
    buffer ^= 1;
    if (!HALF && t > 0) asm volatile("bar.sync %0,%1;" ::"n"(kSumsRead), "n"(2 * kResidentThreads) : "memory");
    multiply_groups<T, Rows, HALF>(weights, states, step_sums + warp * kSumVecs + lane, typename Rows::Groups());
    __syncthreads();

    UnitForward done[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int half_tile = warp + r * kResidentWarps;
      const float4* const from = step_sums + (half_tile < kHalfTiles ? half_tile * 32 : 0) + lane;
      float4 value[kResidentWarps];
#pragma unroll
      for (int w = 0; w < kResidentWarps; ++w) value[w] = from[w * kSumVecs];
      add_all(value);
      const float sum[4] = {value[0].x, value[0].y, value[0].z, value[0].w};
      float recurrent[kGates], in[kGates];
      const float4 four = biases[r][threadIdx.x];
      const float bias[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int g = 0; g < kGates; ++g) {
        recurrent[g] = sum[g] + bias[g];
        in[g] = element_value<T>(input[r][g]) + (MODE == PRNN_GRU && g == 2 ? bias[3] : 0);
      }
      done[r] = forward_unit<MODE, false>(recurrent, in, carry[r]);
      carry[r] = done[r].carried;
    }
    if (!HALF) asm volatile("bar.arrive %0,%1;" ::"n"(kSumsRead), "n"(2 * kResidentThreads) : "memory");
    uint32_t word[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      word[r] = word_of(done[r].h);
      out_at[r] += step_bytes;
      publish_word(has_word && exists[r] && t + 1 < sizes.steps, out_at[r], word[r]);
    }
    published = clock_low();
    states_at += step_bytes;

    // Off the critical path.
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      if (!exists[r]) continue;
      const int64_t at = int64_t{row + column[r]} * hidden + unit[r];
      if (has_word) *reinterpret_cast<uint32_t*>(static_cast<T*>(layer.y) + at) = word[r];
      if (layer.gates != nullptr) {
        Four<T> four;
#pragma unroll
        for (int g = 0; g < 4; ++g) four.value[g] = Element<T>::from_float(done[r].saved[g]);
        static_cast<Four<T>*>(layer.gates)[at] = four;
        if (MODE == PRNN_LSTM) store_float<T>(layer.cells, at, done[r].carried);
      }
      if (t + 1 == sizes.steps) {
        store_final_states<T, MODE>(layer, int64_t{column[r]} * hidden + unit[r], done[r].h, done[r].carried,
                                    kWholeUnit);
      }
    }
    row += sizes.batch;
    if (++in_chunk == chunk_steps || t + 1 == sizes.steps) {
      in_chunk = 0;
      ++chunk;
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
  const auto kernel = params.sizes.batch <= kChunkedHalfTile ? chunked_forward<T, MODE, UNIT_TILES, true>
                                                             : chunked_forward<T, MODE, UNIT_TILES, false>;
  return launch_resident(kernel, shape, params, stream);
}

}  // namespace prnn
