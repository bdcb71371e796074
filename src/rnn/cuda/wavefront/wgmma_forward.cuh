// The wgmma forward wavefront kernel: LSTM layers in 16 bits, all sequences of a replica at once by wgmma. One
// warpgroup multiplies the neighbour's state and is ahead of the other, which multiplies the own state and finishes the
// step.
#pragma once

#include "rnn/cuda/wavefront/wgmma_product.cuh"

namespace prnn {

// A thread has, of each tile, rows lane / 4 and lane / 4 + 8 of its warp's 16, and columns 8 j + lane % 4 * 2 + e. With
// two tiles, these four rows are the gates of unit warp * 8 + lane / 4, and the thread finishes all of its columns.
// With one tile, a warp has 4 units; the lanes with lane / 4 < 4 have gates 0 and 2 of unit warp * 4 + lane / 4 % 4,
// the others gates 1 and 3: they swap, the former finish the columns of e = 0, the latter those of e = 1.
template <class T, int TILES>
__global__ void __launch_bounds__(kResidentThreads, 1)
    wavefront_wgmma_forward(const __grid_constant__ WavefrontForwardParams params) {
#if PRNN_HAS_WGMMA
  constexpr int kColumns = kWavefrontWgmmaColumns;
  constexpr int kUnits = TILES * 16, kColumnTiles = kColumns / 8, kItems = kColumnTiles * TILES;
  using Product = WavefrontWgmmaProduct<T, TILES>;
  constexpr int kStages = Product::kBatches, kRing = kWavefrontWgmmaRing, kBatches = Product::kBatches;

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, quad = lane % 4;
  const bool is_own = __shfl_sync(kWholeWarp, threadIdx.x / kWarpgroupThreads, 0) == 0;  // uniform: wgmma follows
  const int blocks_per_layer = sizes.blocks * sizes.replicas;
  const WavefrontForwardLayer& layer = params.layer[blockIdx.x / blocks_per_layer];
  const ForwardDropout& dropout = params.dropout[blockIdx.x / blocks_per_layer];
  const int replica = blockIdx.x % blocks_per_layer / sizes.blocks;
  const int first_unit = blockIdx.x % sizes.blocks * kUnits;
  const int hidden = sizes.hidden;
  const int replica_column = replica * sizes.columns_per_replica;
  // A replica's last step is the last one of its first sequence.
  const int steps = steps_of_column(sizes, replica_column);
  const auto columns_of = [&](int batch) { return min(sizes.columns_per_replica, batch - replica_column); };
  int batch = batch_at(sizes, 0), next_batch = batch_at(sizes, 1);  // of this step, and of the next one
  const bool is_fed = layer.below != nullptr;

  // The own state's stages, the neighbour's, the sums that it leaves, the states of a step in their transposition,
  // weights.
  extern __shared__ __align__(1024) char shared[];
  __shared__ Handover handover;
  if (threadIdx.x == 0) handover.init();
  __syncthreads();
  const uint32_t own_stages = shared_address(shared), fed_stages = own_stages + kStages * Product::kStageBytes;
  const uint32_t fed_sums = fed_stages + kRing * Product::kStageBytes;
  const uint32_t transposition = fed_sums + Product::kSumBytes;
  const uint32_t weights = transposition + 4096;

  // The gate and the unit of row `half` * 8 + lane / 4 of the warp's in a tile.
  const auto gate_of = [&](int tile, int half, int row) { return TILES == 2 ? tile * 2 + half : half * 2 + row / 4; };
  const auto unit_of = [&](int in_warp, int row) { return TILES == 2 ? in_warp * 8 + row : in_warp * 4 + row % 4; };

  Product product;
  const T* const matrix = static_cast<const T*>(is_own ? layer.recurrent : layer.input);
  constexpr int kShared = Product::kChunks * TILES - Product::kInRegisters;
  product.begin(is_own ? own_stages : fed_stages, is_own ? kStages : kRing, weights + (is_own ? 0 : kShared * 8192),
                hidden, hidden * 2, [&](int tile, int chunk, int row, int vec) {
                  const int unit = first_unit + unit_of(row / 16, row % 8), gate = gate_of(tile, row / 8 % 2, row % 8);
                  const int k = chunk * kWgmmaChunk + vec * 8;
                  const bool wanted = unit < hidden && (is_own || is_fed);
                  return load_row_fragment(matrix, (int64_t{gate} * hidden + unit) * hidden + k,
                                           wanted ? hidden - k : 0);
                });
  const int unit = first_unit + unit_of(warp, lane / 4);
  const bool exists = unit < hidden;
  const auto states_of_thread = [&](const void* states) {
    const T* const row = static_cast<const T*>(states) + int64_t{replica_column + product.column()} * hidden;
    return reinterpret_cast<const char*>(row + product.first_element());
  };
  bool timed_out = false;

  if (!is_own) {
    float bias[TILES][2];
#pragma unroll
    for (int i = 0; i < TILES * 2; ++i) {
      const int gate = gate_of(i / 2, i % 2, lane / 4);
      const int64_t at = int64_t{gate} * hidden + unit;
      bias[i / 2][i % 2] = exists ? load_float<T>(layer.input_bias, at) + load_float<T>(layer.recurrent_bias, at) : 0;
    }
    const char* below = states_of_thread(layer.below);
    const T* input_at = static_cast<const T*>(params.xw) + int64_t{replica_column + quad * 2} * params.xw_row + unit;
    if (is_fed) product.prefetch_first(below, columns_of(batch));
#pragma unroll 1
    for (int t = 0; t < steps; ++t) {
      const int columns = columns_of(batch);
      if (is_fed) {
        typename Product::Sums sums;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
          for (int i = 0; i < kColumns / 2; ++i) {  // a register each before the first product
            asm volatile("mov.f32 %0,%1;" : "=f"(sums[tile][i]) : "f"(bias[tile][i / 2 % 2]));
          }
        }
        const char* const next = below + int64_t{batch} * hidden * 2;
        product.add_neighbour(sums, t, below, columns, t + 1 < steps ? next : nullptr, columns_of(next_batch),
                              sizes.timed_out, timed_out);
        below = next;
        if (t > 0) Handover::wait(&handover.taken, t - 1);
        product.store_sums(sums, fed_sums);
      } else {
        typename Product::Sums sums;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
          for (int i = 0; i < kColumns / 2; ++i) {
            const int gate = gate_of(tile, i / 2 % 2, lane / 4), column = i / 4 * 8 + i % 2;
            const T* const from = input_at + column * params.xw_row + gate * params.xw_gate;
            const uint32_t input = load_element(exists && column + quad * 2 < columns, from);
            sums[tile][i] = bias[tile][i / 2 % 2] + element_value<T>(input);
          }
        }
        input_at += int64_t{batch} * params.xw_row;
        if (t > 0) Handover::wait(&handover.taken, t - 1);
        product.store_sums(sums, fed_sums);
      }
      Handover::arrive(&handover.there);
      batch = next_batch;
      next_batch = batch_at(sizes, t + 2);
    }
    return;
  }

  const char* own = states_of_thread(layer.initial);
  const char* next = states_of_thread(layer.y);
  // This thread's items: item i is of column first_column + (with two tiles: i / 2 * 8 + i % 2; one: i * 8).
  const int first_column = quad * 2 + (TILES == 1 ? lane / 16 : 0);
  const auto column_of = [](int item) { return TILES == 2 ? item / 2 * 8 + item % 2 : item * 8; };
  const int64_t state_at = int64_t{replica_column + first_column} * hidden + unit;
  float carried[kItems];  // c
  {
    const T* const initial = static_cast<const T*>(layer.cx);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const bool wanted = initial != nullptr && exists && first_column + column_of(i) < columns_of(batch);
      carried[i] = wanted ? Element<T>::to_float(initial[state_at + column_of(i) * hidden]) : 0;
    }
  }
  Four<T>* gates_at = static_cast<Four<T>*>(layer.gates) + state_at;
  T* cells_at = static_cast<T*>(layer.cells) + state_at;
  // Publishing, a lane has a column and the units of its warp.
  constexpr int kWarpUnits = TILES * 4;
  T* out_at = static_cast<T*>(layer.y) + int64_t{replica_column + lane} * hidden + first_unit + warp * kWarpUnits;
  T* dropped_at =
      static_cast<T*>(dropout.dropped) + int64_t{replica_column + lane} * hidden + first_unit + warp * kWarpUnits;
  const uint8_t* kept_at =
      dropout.kept + (int64_t{replica_column + lane} * hidden + first_unit + warp * kWarpUnits) / 8;
  const uint32_t column_at = transposition + (warp * 32 + lane) * (kWarpUnits * 2);
  unsigned published = 0;  // the clock's low half

#pragma unroll 1
  for (int t = 0; t < steps; ++t) {
    const int columns = columns_of(batch), next_columns = columns_of(next_batch);
    const bool publishes = lane < columns && first_unit + warp * kWarpUnits < hidden;
    product.warpgroup.sync();  // the states of the step before have been multiplied
    wait_poll_delay(published, sizes.poll_delay_cycles);
#pragma unroll
    for (int b = 0; b < kBatches; ++b) product.prefetch(b, b, own, columns);
    const uint32_t kept = load_kept<1>(publishes && dropout.dropped != nullptr, kept_at);
    typename Product::Sums sums;
    Handover::wait(&handover.there, t);
    product.load_sums(sums, fed_sums);
    if (t + 1 < steps) Handover::arrive(&handover.taken);
    product.add_own(sums, own, columns, sizes.timed_out, timed_out);

    float gate[kItems][4], h[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if constexpr (TILES == 2) {
#pragma unroll
        for (int g = 0; g < 4; ++g) gate[i][g] = sums[g / 2][i / 2 * 4 + g % 2 * 2 + i % 2];
      } else {
        const bool is_first = lane < 16;  // has gates 0 and 2, finishes e = 0
        const float (&s)[kColumns / 2] = sums[0];
        const float low = __shfl_xor_sync(kWholeWarp, is_first ? s[i * 4 + 1] : s[i * 4], 16);
        const float high = __shfl_xor_sync(kWholeWarp, is_first ? s[i * 4 + 3] : s[i * 4 + 2], 16);
        gate[i][0] = is_first ? s[i * 4] : low;
        gate[i][1] = is_first ? low : s[i * 4 + 1];
        gate[i][2] = is_first ? s[i * 4 + 2] : high;
        gate[i][3] = is_first ? high : s[i * 4 + 3];
      }
#pragma unroll
      for (int g = 0; g < 4; ++g) gate[i][g] = Cell<PRNN_LSTM>::activate<digits_of<T>()>(gate[i][g], g, 0);
      const UnitForward done = Cell<PRNN_LSTM>::forward<digits_of<T>()>(gate[i], carried[i]);
      carried[i] = done.carried;
      h[i] = done.h;
    }
    if constexpr (TILES == 2) {
      uint32_t words[kColumnTiles];
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) words[j] = Element<T>::pack(h[2 * j], h[2 * j + 1]);
      store_transposed(column_at, words);
      __syncwarp();
      const uint4 v = load_shared(column_at);
      if (publishes) publish_16_bytes(out_at, v);
      if (publishes && dropout.dropped != nullptr) {
        publish_16_bytes(dropped_at, {dropped_word<T>(v.x, kept, params.dropout_scale),
                                      dropped_word<T>(v.y, kept >> 2, params.dropout_scale),
                                      dropped_word<T>(v.z, kept >> 4, params.dropout_scale),
                                      dropped_word<T>(v.w, kept >> 6, params.dropout_scale)});
      }
    } else {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const uint32_t to = transposition + (warp * 32 + first_column + i * 8) * 8 + lane / 4 % 4 * 2;
        asm volatile("st.shared.u16 [%0],%1;" ::"r"(to), "h"(static_cast<uint16_t>(Element<T>::pack(h[i], 0)))
                     : "memory");
      }
      __syncwarp();
      uint2 v;
      asm volatile("ld.shared.v2.u32 {%0,%1},[%2];" : "=r"(v.x), "=r"(v.y) : "r"(column_at) : "memory");
      if (publishes) publish_8_bytes(out_at, v);
      if (publishes && dropout.dropped != nullptr) {
        const uint32_t bits = kept >> (warp % 2 * 4);
        publish_8_bytes(dropped_at, {dropped_word<T>(v.x, bits, params.dropout_scale),
                                     dropped_word<T>(v.y, bits >> 2, params.dropout_scale)});
      }
    }
    published = clock_low();

    // Off the critical path: no block polls these stores.
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (!exists || first_column + column_of(i) >= columns) continue;
      const int at = column_of(i) * hidden;
      if (layer.gates != nullptr) {
        Four<T> four;
#pragma unroll
        for (int g = 0; g < 4; ++g) four.value[g] = Element<T>::from_float(gate[i][g]);
        gates_at[at] = four;
        store_float<T>(cells_at, at, carried[i]);
      }
      if (first_column + column_of(i) >= next_columns) {  // the last states of a sequence that ends here
        if (layer.hy != nullptr) store_float<T>(layer.hy, state_at + at, h[i]);
        if (layer.cy != nullptr) store_float<T>(layer.cy, state_at + at, carried[i]);
      }
    }
    const int64_t step_elements = int64_t{batch} * hidden;
    own = next;
    next += step_elements * 2;
    out_at += step_elements;
    dropped_at += step_elements;
    kept_at += step_elements / 8;
    gates_at += step_elements;
    cells_at += step_elements;
    batch = next_batch;
    next_batch = batch_at(sizes, t + 2);
  }
#endif
}

template <class T, prnnRNNMode_t MODE, int TILES>
cudaError_t launch_wavefront_wgmma_forward(const ResidentShape& shape, const WavefrontForwardParams& params,
                                           cudaStream_t stream) {
  static_assert(MODE == PRNN_LSTM, "the cell of wavefront_wgmma_forward");
  return launch_resident(wavefront_wgmma_forward<T, TILES>, shape, params, stream);
}

}  // namespace prnn
