// The multicast wgmma backward kernel: gated cells in 16 bits and tf32, many sequences a replica.
#pragma once

#include "rnn/cuda/common/launch.cuh"
#include "rnn/cuda/common/unroll.cuh"
#include "rnn/cuda/wgmma/multicast_backward_io.cuh"

namespace prnn {

// K, the gates' gradients, is split in kMulticastParts. A set of so many blocks, one for each part, owns 128 units: a
// warpgroup multiplies its part with the rows of 64 of them. A block finishes kMulticastUnits units of its set, with
// the sums of all parts, which go through L2: words there say by their lowest bit of which step they are, of the two
// that may be in one place. The blocks of a cluster are of different sets and have the same part, and share what they
// fetch. Where the number of sets is odd, clusters of the last set have two of its parts, and each block fetches its
// own. Groups and RESETS as forward.
template <class T, prnnRNNMode_t MODE, int COLUMNS, int GROUPS, bool RESETS>
__global__ void __launch_bounds__(kMulticastThreads, 1)
    wgmma_multicast_backward(const __grid_constant__ BackwardParams params) {
  if constexpr (!kHasWgmma) return;
  constexpr int kGates = gate_count(MODE);
  constexpr int kSetUnits = kMulticastParts * kMulticastUnits;
  constexpr int kElement = sizeof(T), kPerWord = Element<T>::kPerWord, kChunk = multicast_chunk(kElement),
                kVec = 16 / kElement;
  constexpr int kCells = COLUMNS / 8;  // a thread finishes so many of a group
  static_assert(kCells % 4 == 0);

  const ResidentSizes& sizes = params.sizes;
  const BlockPlace place = place_of_block(sizes, kMulticastUnits);
  const BackwardDirection& dir = params.direction[place.direction];
  if (place.columns <= 0) return;
  const int hidden = sizes.hidden, unit_chunks = hidden / kChunk;
  constexpr int kBlocksOfSets = kMulticastParts * kMulticastCluster;  // of two sets
  const int block = blockIdx.x % sizes.blocks, first_of_sets = block / kBlocksOfSets * kBlocksOfSets;
  const bool shares = first_of_sets + kMulticastParts < sizes.blocks;
  const int part = shares ? block % kBlocksOfSets / kMulticastCluster : block % kMulticastParts;
  const int rank_of_set = shares ? static_cast<int>(cluster_rank()) : 0;
  const int first_of_set = (first_of_sets / kMulticastParts + rank_of_set) * kSetUnits;
  // The chunks of this part, and, for sizes that all blocks have alike, of the largest one.
  const int all_chunks = kGates * unit_chunks, first_chunk = multicast_part_begin(all_chunks, part),
            own_chunks = multicast_part_begin(all_chunks, part + 1) - first_chunk,
            in_shared = multicast_shared_chunks(kElement, true, multicast_part_chunks(all_chunks));

  extern __shared__ __align__(1024) char ring[];
  __shared__ RingBarriers barriers;
  const int of_column = multicast_backward_column(kElement, in_shared, COLUMNS, GROUPS),
            rooms = multicast_rooms(kElement, in_shared, COLUMNS, GROUPS);
  const int slots = multicast_slots(in_shared, COLUMNS, of_column);
  const uint32_t ring_at = shared_address(ring), weights_at = ring_at + multicast_ring_bytes(slots, COLUMNS);
  // The exchange and the sums of a replica and direction.
  const int64_t exchange_bytes = multicast_exchange_bytes(unit_chunks, all_chunks, COLUMNS, GROUPS);
  constexpr int kPlaces = multicast_sums_places(kGates, GROUPS);
  const int64_t sums_bytes = multicast_sums_bytes(sizes.blocks, kGates, COLUMNS, GROUPS);
  char* const of_replica = reinterpret_cast<char*>(params.sums) +
                           (place.direction * sizes.replicas + place.replica) * (exchange_bytes + sums_bytes);
  const MulticastExchange<T, COLUMNS, GROUPS> exchange{of_replica + sums_bytes, all_chunks, unit_chunks, 0};
  const int timesteps = steps_of_column(sizes, place.first_column),
            last_step = last_backward_step(dir, sizes, timesteps);

  const GroupColumns<GROUPS> group_columns(place);
  const int room_offset = static_cast<int>(weights_at - ring_at) + 2 * in_shared * 8192;
  const auto io_of = [&](int warpgroup) {
    const uint32_t room = ring_at + room_offset + warpgroup * COLUMNS * of_column;
    return BackwardIo<T, MODE, COLUMNS, GROUPS, RESETS>{
        {exchange, group_columns, warpgroup, first_of_set + part * kMulticastUnits + warpgroup * kWgmmaUnits, room},
        params,
        dir,
        rooms};
  };

  if (threadIdx.x >= kResidentThreads) {
    take_registers<false>();
    if (threadIdx.x == kResidentThreads) {
      barriers.init(slots, 2 * COLUMNS * 128, shares ? kMulticastCluster : 1);
    }
    __syncthreads();
    sync_cluster();
    const int warp = __shfl_sync(kWholeWarp, threadIdx.x / 32, 0) - kResidentWarps;
    if (warp == 0) {
      // With one place, a product must not end, and its sums overwrite those of the step before, until the set's have
      // read these, as they have when they have published what the step multiplies. A part of four gates has that from
      // all blocks; others may lack the chunks of the units of the set, or of both sets of a cluster: a lane waits for
      // half.
      const int first_of_lanes = first_of_sets / kMulticastParts * (kSetUnits / kChunk),
                of_lane = (shares ? kMulticastCluster : 1) * kSetUnits / kChunk / 2;
      fetch_states(exchange, first_chunk, own_chunks, Ring(ring_at, barriers, slots, shares), last_step + 1,
                   sizes.timed_out, [&](int s, int group, int lane_of_pair) {
                     if constexpr (kGates == kMulticastParts || kPlaces > 1) return true;
                     bool all = true;
                     for (int i = 0; i < of_lane; ++i) {
                       all = all && exchange.has_states(s, group, first_of_lanes + lane_of_pair * of_lane + i);
                     }
                     return all;
                   });
    } else if (warp < 3) {
      io_of(warp - 1).run(timesteps, last_step);
    }
    __syncwarp();
    sync_cluster();
    return;
  }
  take_registers<true>();

  constexpr int kFewest = multicast_part_begin(kMulticastMinHidden / kChunk * kGates, 1);
  MulticastProduct<T, COLUMNS, multicast_register_chunks(kElement, true), kFewest> product{
      {}, Ring(ring_at, barriers, slots, shares)};
  const Warpgroup& warpgroup = product.warpgroup;
  const int lane = threadIdx.x % 32, warp = warpgroup.thread / 32;
  product.chunks = own_chunks;
  product.more_weights = weights_at + warpgroup.index * in_shared * 8192;
  const BackwardIo<T, MODE, COLUMNS, GROUPS, RESETS> io = io_of(warpgroup.index);
  char* const saved_here = ring + room_offset + warpgroup.index * COLUMNS * of_column;
  const T* const matrix = static_cast<const T*>(dir.weights);
  const auto weight_at = [&](int chunk, int k, int row) {
    return int64_t{(first_chunk + chunk) * kChunk + k} * hidden + (first_of_set + warpgroup.index * 64 + row);
  };
  if constexpr (kElement == 4) {
    gather_weight_tiles(product.weights, own_chunks, product.more_weights, warpgroup, [&](int chunk, int k, int row) {
      const float weight = chunk < own_chunks ? load_float<T>(matrix, weight_at(chunk, k, row)) : 0;
      return Element<T>::factor(__float_as_uint(weight));
    });
  } else {
    load_weight_tiles<true>(product.weights, own_chunks, ring_at + warpgroup.index * 8192, product.more_weights,
                            warpgroup, [&](int chunk, int k, int vec) {
                              return load_row_fragment(matrix, weight_at(chunk, k, vec * kVec),
                                                       chunk < own_chunks ? kVec : 0);
                            });
  }
  __syncthreads();
  sync_cluster();

  // Sums that blocks of a set give each other: [block][place][group][half of its units][part][kCells / 4][thread][4].
  // A warp's sums are of one block's half. Why nobody overwrites sums that are still to be read:
  // docs/resident_kernels.md.
  constexpr int kPartSums = kCells / 4 * kWarpgroupThreads * 16, kGroupSums = 2 * kMulticastParts * kPartSums;
  const auto sums_at = [&](int of_part, int half, int from) {
    const int to = first_of_sets + (shares ? of_part * kMulticastCluster + rank_of_set : of_part);
    return of_replica + int64_t{to} * (kPlaces * GROUPS * kGroupSums) + (half * kMulticastParts + from) * kPartSums;
  };
  char* const given_to = sums_at(warpgroup.index * 2 + warp / 2, warp % 2, part) + lane * 16;
  const char* const given_by = sums_at(part, warpgroup.index, 0) + warpgroup.thread * 16;

  // A thread finishes units lane / 4 and 8 more, of columns 8 j + 2 (lane % 4) and the next, for kCells / 4 values of
  // j. The gradient that goes past the matrix lies in shared memory, [group][cell][thread].
  float* const carried = reinterpret_cast<float*>(saved_here + rooms * COLUMNS * io.kSavedColumn) + warpgroup.thread;
  float bias_sums[2][4];
#pragma unroll
  for (int i = 0; i < 8; ++i) bias_sums[i / 4][i % 4] = 0;
#pragma unroll
  for (int group = 0; group < GROUPS; ++group) {
#pragma unroll
    for (int i = 0; i < kCells; ++i) carried[(group * kCells + i) * kWarpgroupThreads] = 0;
  }
  bool timed_out = false;

  int batch_before = 0;
#pragma unroll 1
  for (int s = 0; s <= last_step; ++s) {
    const Step current = step_of_pass(sizes, timesteps, !dir.reverse, s);
    const uint32_t phase = ~(s / kPlaces) & 1;
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) {
      const int place_of_sums = (s % kPlaces * GROUPS + group) * kGroupSums;
      {
        float sums[COLUMNS / 2];
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = 0;
        product.run(sums, sizes.timed_out, timed_out);
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; ++j) {
          const auto word = [&](int i) { return (__float_as_uint(sums[4 * j + i]) & ~1u) | phase; };
          asm volatile("st.relaxed.gpu.global.v4.u32 [%0],{%1,%2,%3,%4};" ::"l"(
                           given_to + place_of_sums + j % (kCells / 4) * 2048 + j / (kCells / 4) * 512),
                       "r"(word(0)), "r"(word(1)), "r"(word(2)), "r"(word(3))
                       : "memory");
        }
      }
      const int columns = group_columns.count(group, current.batch), were = group_columns.count(group, batch_before);
      // The sums of all parts for a value of j. Those of the next value are on their way while one is finished.
      uint4 given[kMulticastParts], next[kMulticastParts];
      const auto load_given = [&](uint4(&to)[kMulticastParts], int i) {
#pragma unroll
        for (int from = 0; from < kMulticastParts; ++from) {
          to[from] =
              load_or_zeros(i < kCells / 4, given_by + place_of_sums + from * kPartSums + i * (kWarpgroupThreads * 16));
        }
      };
      load_given(given, 0);
      char* const saved_of_group = saved_here + io.set_of(group) * (COLUMNS * io.kSavedColumn);
      io.wait(io.set_of(group));
#pragma unroll 1
      for (int i = 0; i < kCells / 4; ++i) {
        load_given(next, i + 1);
        SpinTimeout timeout;
        while (!timed_out) {
          bool all = true;
#pragma unroll
          for (const uint4& v : given) {
            all &= (v.x & 1) == phase && (v.y & 1) == phase && (v.z & 1) == phase && (v.w & 1) == phase;
          }
          if (__all_sync(kWholeWarp, all)) break;
          if (!__all_sync(kWholeWarp, timeout.keeps_spinning(sizes.timed_out))) timed_out = true;
          load_given(given, i);
        }
        float4 sum{0, 0, 0, 0};
#pragma unroll
        for (const uint4& v : given) {
          add_to(sum, float4{__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)});
        }
        const float dh_of[4] = {sum.x, sum.y, sum.z, sum.w};
        uint32_t gradients[4][4 / kPerWord];
        const int first_column = (warp * (kCells / 4) + i) * 8 + lane % 4 * 2;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int own_unit = lane / 4 + c / 2 * 8, unit = io.first_unit + own_unit;
          const int column = first_column + c % 2, n = group_columns.sequence(group, column);
          const bool is_active = column < columns, was_active = column < were;
          float dh = dh_of[c], past = carried[(group * kCells + i * 4 + c) * kWarpgroupThreads];
          if (io.restarted(group, column)) {
            take_reset_gradients<T, MODE>(dir, int64_t{pin_in_register(n)} * hidden + unit, was_active, dh, past,
                                          kWholeUnit);
          }
          begin_or_end_sequence<T, MODE>(dir, int64_t{pin_in_register(n)} * hidden + unit, true, is_active, was_active,
                                         dh, past, kWholeUnit);
          const char* const from = saved_of_group + column * io.kSavedColumn;
          const auto value = [&](int array) {
            return Element<T>::to_float(*reinterpret_cast<const T*>(from + array + own_unit * kElement));
          };
          float da[4];
          backward_unit<T, MODE>(*reinterpret_cast<const Four<T>*>(from + own_unit * (4 * kElement)),
                                 MODE == PRNN_LSTM ? value(io.kSavedState) : 0, value(io.kSavedBefore),
                                 dh + value(io.kSavedDy), is_active, past, da);
          carried[(group * kCells + i * 4 + c) * kWarpgroupThreads] = past;
#pragma unroll
          for (int g = 0; g < 4; ++g) bias_sums[c / 2][g] += da[g];
#pragma unroll
          for (int g = 0; g < 4; g += kPerWord) {
            gradients[c][g / kPerWord] = Element<T>::pack(da[g], da[g + kPerWord - 1]);
          }
        }
        __syncwarp();  // the gates have been read, all of these columns by this warp: gradients take their place
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          char* const to =
              saved_of_group + (first_column + c % 2) * io.kSavedColumn + (lane / 4 + c / 2 * 8) * kElement;
#pragma unroll
          for (int g = 0; g < 4; ++g) {
            using Bits = std::conditional_t<kElement == 4, uint32_t, uint16_t>;
            *reinterpret_cast<Bits*>(to + g * io.kUnits) =
                static_cast<Bits>(gradients[c][g / kPerWord] >> g % kPerWord * 16);
          }
        }
#pragma unroll
        for (int from = 0; from < kMulticastParts; ++from) given[from] = next[from];
      }
      io.hand_over(io.set_of(group));
    }
    batch_before = current.batch;
  }
  // The columns of shared memory are free.
  io.wait();
  if (io.has_rooms()) io.wait(1);

  // The bias gradients: lanes of the same lane / 4, and the four warps, have the same units.
  float* const partial = reinterpret_cast<float*>(saved_here);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float sum = bias_sums[i / 4][i % 4];
    sum += __shfl_xor_sync(kWholeWarp, sum, 1);
    sum += __shfl_xor_sync(kWholeWarp, sum, 2);
    if (lane % 4 == 0) partial[(warp * 4 + i % 4) * kWgmmaUnits + lane / 4 + i / 4 * 8] = sum;
  }
  warpgroup.sync();
  if (warpgroup.thread < 4 * kWgmmaUnits) {
    const int g = warpgroup.thread / kWgmmaUnits, u = warpgroup.thread % kWgmmaUnits;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) sum += partial[(w * 4 + g) * kWgmmaUnits + u];
    dir.bias_sums[(int64_t{place.replica} * 4 + g) * hidden + io.first_unit + u] = sum;
  }
  sync_cluster();  // no block leaves while others may still write to its shared memory
}

template <class T, prnnRNNMode_t MODE, int COLUMNS, int GROUPS>
cudaError_t launch_wgmma_multicast_backward(const ResidentShape& shape, const BackwardParams& params,
                                            cudaStream_t stream) {
  const auto kernel = params.has_extras() ? wgmma_multicast_backward<T, MODE, COLUMNS, GROUPS, true>
                                          : wgmma_multicast_backward<T, MODE, COLUMNS, GROUPS, false>;
  return launch_resident(kernel, shape, params, stream, kMulticastThreads);
}

}  // namespace prnn
