// The wgmma backward wavefront kernel: LSTM layers in 16 bits, all sequences of a replica at once by wgmma.
#pragma once

#include "rnn/cuda/wavefront/wgmma_product.cuh"

namespace prnn {

// A cluster of 4 blocks has 128 units, the rows of the product; block r of it reads gate r's gradients, own and of the
// layer above, and finishes 32 units. The warpgroups share the work as in the forward kernel. Half `half` of the rows
// of tile `tile` belongs to block tile * 2 + half, whose thread of the same warp and lane finishes what this thread has
// a share of: unit warp * 8 + lane / 4 and columns 8 j + lane % 4 * 2 + e, item 2 j + e.
template <class T>
__global__ void __launch_bounds__(kResidentThreads, 1)
    wavefront_wgmma_backward(const __grid_constant__ WavefrontBackwardParams params) {
#if PRNN_HAS_WGMMA
  constexpr int kColumns = kWavefrontWgmmaColumns;
  constexpr int kTiles = 2, kUnits = 32, kColumnTiles = kColumns / 8, kItems = kColumns / 4;
  using Product = WavefrontWgmmaProduct<T, kTiles>;
  constexpr int kStages = Product::kBatches, kRing = kWavefrontWgmmaRing;

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, quad = lane % 4;
  const bool is_own = __shfl_sync(kWholeWarp, threadIdx.x / kWarpgroupThreads, 0) == 0;  // uniform: wgmma follows
  const int rank = static_cast<int>(cluster_rank());
  const int blocks_per_layer = sizes.blocks * sizes.replicas;
  const WavefrontBackwardLayer& layer = params.layer[blockIdx.x / blocks_per_layer];
  const uint8_t* const dropout_kept = params.kept[blockIdx.x / blocks_per_layer];
  const int replica = blockIdx.x % blocks_per_layer / sizes.blocks;
  const int first_unit = blockIdx.x % sizes.blocks * kUnits, cluster_unit = first_unit - rank * kUnits;
  const int hidden = sizes.hidden;
  const int replica_column = replica * sizes.columns_per_replica;
  // The replica begins with the last timestep of its first sequence, `last`; step s does timestep last - s.
  const int last = steps_of_column(sizes, replica_column) - 1;
  const auto columns_of = [&](int batch) { return min(sizes.columns_per_replica, batch - replica_column); };
  int batch = batch_at(sizes, last), next_batch = batch_at(sizes, last - 1);  // of this step's timestep, and the next's
  const bool is_fed = layer.above != nullptr;

  // The own gradients' stages, the neighbour's, the sums that it leaves, the shares of the cluster's blocks, weights.
  extern __shared__ __align__(1024) char shared[];
  __shared__ uint64_t shares_are_there;
  __shared__ Handover handover;
  const uint32_t own_stages = shared_address(shared), fed_stages = own_stages + kStages * Product::kStageBytes;
  const uint32_t fed_sums = fed_stages + kRing * Product::kStageBytes, shares = fed_sums + Product::kSumBytes;
  constexpr int kShareBytes = kItems / 4 * kWarpgroupThreads * 16;  // of a block
  const uint32_t weights = shares + kWgmmaCluster * kShareBytes;
  if (threadIdx.x == 0) {
    init_barrier(&shares_are_there);
    handover.init();
  }

  Product product;
  const T* const matrix = static_cast<const T*>(is_own ? layer.recurrent : layer.input_above);
  constexpr int kShared = Product::kChunks * kTiles - Product::kInRegisters;
  product.template begin<true>(
      is_own ? own_stages : fed_stages, is_own ? kStages : kRing, weights + (is_own ? 0 : kShared * 8192), hidden,
      hidden * 8, [&](int tile, int chunk, int row, int vec) {
        const int unit = cluster_unit + (tile * 2 + vec % 2) * kUnits + vec / 2 * 8, k = chunk * kWgmmaChunk + row;
        const bool wanted = k < hidden && (is_own || is_fed);
        return load_row_fragment(matrix, (int64_t{rank} * hidden + k) * hidden + unit, wanted ? hidden - unit : 0);
      });
  __syncthreads();
  sync_cluster();

  const int unit = first_unit + warp * 8 + lane / 4, first_column = quad * 2;
  const bool exists = unit < hidden;
  const auto column_of = [](int item) { return item / 2 * 8 + item % 2; };
  const int64_t last_row = step_at(sizes, last).row;
  const int64_t state_at = int64_t{replica_column + first_column} * hidden + unit;
  const auto states_of_thread = [&](const void* gradients) {
    const int64_t row = last_row + replica_column + product.column();
    return reinterpret_cast<const char*>(static_cast<const T*>(gradients) + (row * 4 + rank) * hidden +
                                         product.first_element());
  };
  // One more step than timesteps, for the gradients of the initial states.
  const int steps = layer.dhx == nullptr && layer.dcx == nullptr ? last + 1 : last + 2;
  bool timed_out = false;

  if (!is_own) {
    const char* above = states_of_thread(layer.above);
    const T* dy_at = static_cast<const T*>(params.dy) + last_row * hidden + state_at;
    const uint8_t* kept_at = dropout_kept + (last_row * hidden + state_at - unit + cluster_unit) / 8 + warp;
    if (is_fed) product.prefetch_first(above, columns_of(batch));
#pragma unroll 1
    for (int s = 0; s < steps; ++s) {
      const int columns = columns_of(batch);
      if (is_fed && s <= last) {
        typename Product::Sums sums;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int i = 0; i < kColumns / 2; ++i) {
            asm volatile("mov.f32 %0,0f00000000;" : "=f"(sums[tile][i]));  // a register each before the first product
          }
        }
        const char* const next = above - int64_t{next_batch} * hidden * 8;
        product.add_neighbour(sums, s, above, columns, s < last ? next : nullptr, columns_of(next_batch),
                              sizes.timed_out, timed_out);
        above = next;
        if (dropout_kept != nullptr) {
          // The units of row `half` * 8 + lane / 4 of a tile are those of block tile * 2 + half.
#pragma unroll
          for (int i = 0; i < kColumns / 2; i += 4) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int column = i * 2 + e;
#pragma unroll
              for (int owner = 0; owner < kWgmmaCluster; ++owner) {
                const bool wanted =
                    first_column + column < columns && cluster_unit + owner * kUnits + warp * 8 < hidden;
                const uint32_t bits = load_kept<1>(wanted, kept_at + (column * hidden + owner * kUnits) / 8);
                sums[owner / 2][i + owner % 2 * 2 + e] *= bits >> (lane / 4) & 1 ? params.dropout_scale : 0;
              }
            }
          }
        }
        if (s > 0) Handover::wait(&handover.taken, s - 1);
        product.store_sums(sums, fed_sums);
      } else {  // the highest layer: dy, for the units that this block finishes; beyond the timesteps nothing
        typename Product::Sums sums;
        uint32_t dy[kItems];
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          const bool wanted = s <= last && exists && first_column + column_of(i) < columns;
          dy[i] = load_element(wanted, dy_at + column_of(i) * hidden);
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int i = 0; i < kColumns / 2; ++i) {
            sums[tile][i] = rank == tile * 2 + i / 2 % 2 ? element_value<T>(dy[i / 4 * 2 + i % 2]) : 0;
          }
        }
        dy_at -= int64_t{next_batch} * hidden;
        if (s > 0) Handover::wait(&handover.taken, s - 1);
        product.store_sums(sums, fed_sums);
      }
      Handover::arrive(&handover.there);
      kept_at -= int64_t{next_batch} * hidden / 8;
      batch = next_batch;
      next_batch = batch_at(sizes, last - s - 2);
    }
    sync_cluster();
    return;
  }

  const char* own = nullptr;
  const char* next = states_of_thread(layer.dgates);
  int row = static_cast<int>(last_row);  // of this step's timestep
  const T* const initial = static_cast<const T*>(layer.cx);
  float carried[kItems], bias_sum[4] = {0, 0, 0, 0};  // carried: dc
  uint32_t cell[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const bool wanted = exists && first_column + column_of(i) < columns_of(batch);
    carried[i] = 0;
    cell[i] =
        load_element(wanted, static_cast<const T*>(layer.cells) + last_row * hidden + state_at + column_of(i) * hidden);
  }
  int begun = 0;           // columns whose sequences began in an earlier step
  unsigned published = 0;  // the clock's low half

#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const bool is_active = s <= last;
    const int columns = is_active ? columns_of(batch) : begun, next_columns = columns_of(next_batch);
    product.warpgroup.sync();  // the gradients of the step before have been multiplied
    wait_poll_delay(published, sizes.poll_delay_cycles);
#pragma unroll
    for (int b = 0; b < Product::kBatches; ++b) product.prefetch(b, b, own, begun);
    const int64_t here = int64_t{row} * hidden + state_at;
    const Four<T>* const gates_at = static_cast<const Four<T>*>(layer.gates) + here;
    const T* const cells_at = static_cast<const T*>(layer.cells) + here;
    // What the forward pass kept for the units that this thread finishes: on its way while the gradients are.
    const T* const before_at = s < last             ? cells_at - int64_t{next_batch} * hidden
                               : initial != nullptr ? initial + state_at
                                                    : nullptr;
    const int before_columns = s < last ? next_columns : columns;  // `before` is the next step's cell, too
    uint2 saved[kItems];
    uint32_t before[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const bool wanted = is_active && exists && first_column + column_of(i) < columns;
      saved[i] = load_four_elements(wanted, reinterpret_cast<const T*>(gates_at + column_of(i) * hidden));
      before[i] =
          load_element(is_active && exists && before_at != nullptr && first_column + column_of(i) < before_columns,
                       before_at + column_of(i) * hidden);
    }
    typename Product::Sums sums;
    Handover::wait(&handover.there, s);
    product.load_sums(sums, fed_sums);
    if (s + 1 < steps) Handover::arrive(&handover.taken);
    product.add_own(sums, own, begun, sizes.timed_out, timed_out);

    // To each block of the cluster the sums of its units.
    if (threadIdx.x == 0) expect_bytes(&shares_are_there, kWgmmaCluster * kShareBytes);
#pragma unroll
    for (int owner = 0; owner < kWgmmaCluster; ++owner) {
      const uint32_t barrier = address_in_rank(shared_address(&shares_are_there), owner);
      const uint32_t to = address_in_rank(shares + rank * kShareBytes + product.warpgroup.thread * 16, owner);
#pragma unroll
      for (int i = 0; i < kItems / 4; ++i) {
        const float* const from = &sums[owner / 2][i * 8 + owner % 2 * 2];
        send_to_rank(to + i * (kWarpgroupThreads * 16), barrier, {from[0], from[1], from[4], from[5]});
      }
    }
    wait_for_arrival_by_warp(shared_address(&shares_are_there), s & 1, sizes.timed_out, timed_out);
    float dh[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) dh[i] = 0;
#pragma unroll
    for (int from = 0; from < kWgmmaCluster; ++from) {
#pragma unroll
      for (int i = 0; i < kItems / 4; ++i) {
        const uint4 v =
            load_shared(shares + from * kShareBytes + (i * kWarpgroupThreads + product.warpgroup.thread) * 16);
        dh[i * 4] += __uint_as_float(v.x);
        dh[i * 4 + 1] += __uint_as_float(v.y);
        dh[i * 4 + 2] += __uint_as_float(v.z);
        dh[i * 4 + 3] += __uint_as_float(v.w);
      }
    }
    if (!is_active) {  // what is left belongs to the initial state
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int64_t at = state_at + column_of(i) * hidden;
        if (!exists || first_column + column_of(i) >= columns) continue;
        if (layer.dhx != nullptr) store_float<T>(layer.dhx, at, dh[i]);
        if (layer.dcx != nullptr) store_float<T>(layer.dcx, at, carried[i]);
      }
      break;
    }

    float da[4][kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const bool wanted = exists && first_column + column_of(i) < columns;
      if (wanted && first_column + column_of(i) >= begun) {  // a sequence begins
        const int64_t at = state_at + column_of(i) * hidden;
        if (layer.dhy != nullptr) dh[i] += load_float<T>(layer.dhy, at);
        carried[i] = layer.dcy != nullptr ? load_float<T>(layer.dcy, at) : 0;
      }
      const float gates[4] = {element_value<T>(saved[i].x), element_value<T>(saved[i].x >> 16),
                              element_value<T>(saved[i].y), element_value<T>(saved[i].y >> 16)};
      const UnitDerivatives derivatives =
          Cell<PRNN_LSTM>::derivatives<false>(gates, element_value<T>(cell[i]), element_value<T>(before[i]));
      float own_da[4];
      unit_gradients<PRNN_LSTM>(derivatives, dh[i], carried[i], own_da);
#pragma unroll
      for (int g = 0; g < 4; ++g) da[g][i] = own_da[g];
      cell[i] = before[i];
#pragma unroll
      for (int g = 0; g < 4; ++g) bias_sum[g] += wanted ? da[g][i] : 0;
    }
    // Transposed where this warp's shares were; the other blocks send the next ones after they have seen what follows.
    __syncwarp();
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      const uint32_t at = shares + g * kShareBytes + (warp * 32 + lane) * 16;
      uint32_t words[kColumnTiles];
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) words[j] = Element<T>::pack(da[g][2 * j], da[g][2 * j + 1]);
      store_transposed(at, words);
    }
    __syncwarp();
    // Publishing, a lane has a column and the 8 units of its warp.
    T* const out_at =
        static_cast<T*>(layer.dgates) + (int64_t{row} + replica_column + lane) * 4 * hidden + first_unit + warp * 8;
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      const uint4 v = load_shared(shares + g * kShareBytes + (warp * 32 + lane) * 16);
      if (lane < columns && first_unit + warp * 8 < hidden) publish_16_bytes(out_at + g * hidden, v);
    }
    published = clock_low();
    own = next;
    next -= int64_t{next_batch} * hidden * 8;
    row -= next_batch;
    begun = columns;
    batch = next_batch;
    next_batch = batch_at(sizes, last - s - 2);
  }

  // The sums for the biases, over the sequences of this replica.
#pragma unroll
  for (int g = 0; g < 4; ++g) {
    float sum = bias_sum[g];
    sum += __shfl_xor_sync(kWholeWarp, sum, 1);
    sum += __shfl_xor_sync(kWholeWarp, sum, 2);
    if (quad == 0 && exists) layer.bias_sums[(int64_t{replica} * 4 + g) * hidden + unit] = sum;
  }
  // No block leaves while others may still write to its shared memory.
  sync_cluster();
#endif
}

template <class T, prnnRNNMode_t MODE, int TILES>
cudaError_t launch_wavefront_wgmma_backward(const ResidentShape& shape, const WavefrontBackwardParams& params,
                                            cudaStream_t stream) {
  static_assert(MODE == PRNN_LSTM, "the cell of wavefront_wgmma_backward");
  static_assert(TILES == 2);
  return launch_resident(wavefront_wgmma_backward<T>, shape, params, stream);
}

}  // namespace prnn
