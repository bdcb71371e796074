// The multicast wgmma forward kernel: gated cells in 16 bits and tf32, many sequences a replica.
#pragma once

#include "rnn/cuda/common/launch.cuh"
#include "rnn/cuda/wgmma/multicast_forward_io.cuh"

namespace prnn {

// A block owns kMulticastUnits units, each of its two warpgroups kWgmmaUnits of them: a tile of 64 rows, times all
// states. A warp has all gates of 4 units: tile row 16 w + 8 (g / 2) + 2 u + g % 2 is gate g of unit 4 w + u. A ninth
// warp fetches the states, a warp for each warpgroup moves the rest from and to global memory. The sequences of a
// replica are GROUPS groups of up to COLUMNS, which take turns: while the states of one are exchanged, those of the
// other are multiplied. RESETS: with prnnRNNExtras_t::reset.
template <class T, prnnRNNMode_t MODE, int COLUMNS, int GROUPS, bool RESETS>
__global__ void __launch_bounds__(kMulticastThreads, 1)
    wgmma_multicast_forward(const __grid_constant__ ForwardParams params) {
  if constexpr (!kHasWgmma) return;
  constexpr int kGates = gate_count(MODE);
  constexpr int kRounds = COLUMNS / 8;  // columns that a thread finishes of a group
  constexpr int kChunk = multicast_chunk(sizeof(T)), kVec = 16 / sizeof(T),
                kOfColumn = multicast_forward_column(sizeof(T), GROUPS);

  const ResidentSizes& sizes = params.sizes;
  const BlockPlace place = place_of_block(sizes, kMulticastUnits);
  const ForwardDirection& dir = params.direction[place.direction];
  const int hidden = sizes.hidden, chunks = hidden / kChunk,
            in_shared = multicast_shared_chunks(sizeof(T), false, chunks);
  if (place.columns <= 0) return;

  extern __shared__ __align__(1024) char ring[];
  __shared__ RingBarriers barriers;
  const int slots = multicast_slots(in_shared, COLUMNS, kOfColumn);
  const uint32_t ring_at = shared_address(ring);
  const uint32_t weights_at = ring_at + multicast_ring_bytes(slots, COLUMNS);
  const MulticastExchange<T, COLUMNS, GROUPS> exchange{
      static_cast<char*>(dir.exchange) + place.replica * multicast_exchange_bytes(chunks, chunks, COLUMNS, GROUPS),
      chunks, chunks, kEmpty};
  const GroupColumns<GROUPS> group_columns(place);
  const int count = steps_of_column(sizes, place.first_column);
  const auto io_of = [&](int warpgroup) {
    const uint32_t room = weights_at + 2 * in_shared * 8192 + warpgroup * COLUMNS * kOfColumn;
    return ForwardIo<T, MODE, COLUMNS, GROUPS, RESETS>{
        {exchange, group_columns, warpgroup, place.first_unit + warpgroup * kWgmmaUnits, room}, params, dir};
  };

  if (threadIdx.x >= kResidentThreads) {
    take_registers<false>();
    if (threadIdx.x == kResidentThreads) barriers.init(slots, 2 * COLUMNS * 128, kMulticastCluster);
    __syncthreads();
    sync_cluster();
    const int warp = __shfl_sync(kWholeWarp, threadIdx.x / 32, 0) - kResidentWarps;
    if (warp == 0) {
      fetch_states(exchange, 0, chunks, Ring(ring_at, barriers, slots, true), count, sizes.timed_out,
                   [](int, int, int) { return true; });
    } else if (warp < 3) {
      io_of(warp - 1).run(count);
    }
    __syncwarp();
    sync_cluster();
    return;
  }
  take_registers<true>();

  constexpr int kRegisters = multicast_register_chunks(sizeof(T), false);
  MulticastProduct<T, COLUMNS, kRegisters, kRegisters> product{{}, Ring(ring_at, barriers, slots, true)};
  const Warpgroup& warpgroup = product.warpgroup;
  const int lane = threadIdx.x % 32, warp = warpgroup.thread / 32;
  const ForwardIo<T, MODE, COLUMNS, GROUPS, RESETS> io = io_of(warpgroup.index);
  product.chunks = chunks;
  product.more_weights = weights_at + warpgroup.index * in_shared * 8192;
  const T* const matrix = static_cast<const T*>(dir.weights);
  load_weight_tiles<false>(product.weights, chunks, ring_at + warpgroup.index * 8192, product.more_weights, warpgroup,
                           [&](int chunk, int row, int vec) {
                             const int unit = io.first_unit + row / 16 * 4 + row % 8 / 2,
                                       gate = row % 16 / 8 * 2 + row % 2;
                             const int k = chunk * kChunk + vec * kVec;
                             const int64_t index = (int64_t{gate} * hidden + unit) * hidden + k;
                             return factors_of<T>(load_row_fragment(matrix, index, gate < kGates ? kVec : 0));
                           });
  __syncthreads();
  sync_cluster();

  // A thread's sums are of its unit's gates `pair` and pair + 2, and of two columns, of which it finishes the one of
  // number `pair`.
  const int pair = lane / 4 % 2;
  const int own_unit = warp * 4 + lane / 8, unit = io.first_unit + own_unit;
  const float bias[2] = {load_bias<T, MODE>(dir, hidden, unit, pair, true),
                         load_bias<T, MODE>(dir, hidden, unit, pair + 2, true)};
  const bool saves = dir.gates != nullptr;
  float carried[GROUPS][kRounds];  // c (LSTM), h before rounding (GRU)
#pragma unroll
  for (int i = 0; i < GROUPS * kRounds; ++i) carried[i / kRounds][i % kRounds] = 0;
  bool timed_out = false;

  int batch_before = 0;
#pragma unroll 1
  for (int s = 0; s < count; ++s) {
    const Step current = step_of_pass(sizes, count, dir.reverse, s);
#pragma unroll 1
    for (int group = 0; group < GROUPS; ++group) {
      const bool is_first = s == 0 && group == 0;
      if (GROUPS == 1 || is_first) io.wait();
      // The sums begin with the input products and the biases.
      float sums[COLUMNS / 2];
#pragma unroll
      for (int i = 0; i < COLUMNS / 2; ++i) {
        const int column = i / 4 * 8 + lane % 4 * 2 + i % 2, gate_value = pair + i % 4 / 2 * 2;
        const float input = load_shared_element<T>(io.inputs(group) + column * io.kInputColumn +
                                                   gate_value * io.kUnits + own_unit * sizeof(T));
        sums[i] = (MODE == PRNN_GRU && gate_value == 2 ? 0 : input) + bias[i % 4 / 2];
      }
      product.run(sums, sizes.timed_out, timed_out);
      if (GROUPS > 1 && !is_first) io.wait();  // for what the other group has staged
      warpgroup.sync();                        // all inputs have been read: what is saved takes their place

#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const float kept0 = pair == 0 ? sums[4 * r] : sums[4 * r + 1];
        const float kept1 = pair == 0 ? sums[4 * r + 2] : sums[4 * r + 3];
        const float got0 = __shfl_xor_sync(kWholeWarp, pair == 0 ? sums[4 * r + 1] : sums[4 * r], 4);
        const float got1 = __shfl_xor_sync(kWholeWarp, pair == 0 ? sums[4 * r + 3] : sums[4 * r + 2], 4);
        float gate[4] = {pair == 0 ? kept0 : got0, pair == 0 ? got0 : kept0, pair == 0 ? kept1 : got1,
                         pair == 0 ? got1 : kept1};
        const int column = r * 8 + lane % 4 * 2 + pair, n = group_columns.sequence(group, column);
        const bool starts_anew = io.starts_anew(group, column);
        if (n >= batch_before || starts_anew) {
          carried[0][r] = initial_carried<T, MODE>(dir, int64_t{pin_in_register(n)} * hidden + unit,
                                                   column < group_columns.count(group, current.batch), starts_anew);
        }
#pragma unroll
        for (int g = 0; g < 4; ++g) gate[g] = Cell<MODE>::template activate<digits_of<T, true>()>(gate[g], g, 0);
        const UnitForward done = Cell<MODE>::template forward<digits_of<T, true>()>(gate, carried[0][r]);
        carried[0][r] = done.carried;
        const uint32_t staged = column * io.kStagedColumn + own_unit * sizeof(T);
        store_shared_element<T>(io.staged_h() + staged, done.h);
        if (MODE == PRNN_LSTM) store_shared_element<T>(io.staged_c() + staged, done.carried);
        if (saves) {
          store_shared_four<T>(io.inputs(group) + column * io.kInputColumn + own_unit * (4 * sizeof(T)), done.saved);
        }
      }
      io.hand_over();
      // The next group's come first.
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const float own = carried[0][r];
#pragma unroll
        for (int i = 0; i + 1 < GROUPS; ++i) carried[i][r] = carried[i + 1][r];
        carried[GROUPS - 1][r] = own;
      }
    }
    batch_before = current.batch;
  }
  sync_cluster();  // no block leaves while others may still write to its shared memory
}

template <class T, prnnRNNMode_t MODE, int COLUMNS, int GROUPS>
cudaError_t launch_wgmma_multicast_forward(const ResidentShape& shape, const ForwardParams& params,
                                           cudaStream_t stream) {
  const auto kernel = params.has_extras() ? wgmma_multicast_forward<T, MODE, COLUMNS, GROUPS, true>
                                          : wgmma_multicast_forward<T, MODE, COLUMNS, GROUPS, false>;
  return launch_resident(kernel, shape, params, stream, kMulticastThreads);
}

}  // namespace prnn
