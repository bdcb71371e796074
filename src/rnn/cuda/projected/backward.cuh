// The backward kernel of LSTMs with a projection: from dy to the gradients of h and of all gates, timestep after
// timestep, both recurrent matrices transposed on the chip. A block has the rows of the projection that belong to its
// units, for all of dh, and the columns of their gates. Steps run against the forward pass.
#pragma once

#include "rnn/cuda/projected/exchange.cuh"

namespace prnn {

// A tile has 8 sequences: warp w finishes sequence w of it. Its lanes are unit * 4 + gate.
template <class T, prnnRNNMode_t MODE, int UNIT_TILES>
__global__ void __launch_bounds__(kResidentThreads, 1)
    projected_backward(const __grid_constant__ BackwardParams params) {
  constexpr int kUnits = UNIT_TILES * kTileRows;
  constexpr int kSumFloats = UNIT_TILES * kTileFloats + 1;  // of a warp; odd against bank conflicts
  constexpr int kOwnKTiles = projected_own_k_tiles(true, UNIT_TILES, sizeof(T) == 4);
  constexpr Digits kDigits = digits_of<T>();
  using Product =
      MmaProduct<T, UNIT_TILES, kTileFloats, false, true, projected_register_k_tiles(true, UNIT_TILES, sizeof(T) == 4)>;
  using OwnProduct = OwnColumnsProduct<T, kOwnKTiles, projected_register_pairs(true, UNIT_TILES, sizeof(T) == 4)>;

  const ResidentSizes& sizes = params.sizes;
  const BackwardDirection& dir = params.direction[0];
  const Projection& projection = params.projection;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const int first_unit = blockIdx.x * kUnits, hidden = sizes.hidden, padded = sizes.padded;
  const int tiles = sizes.replica_tiles();

  // The warps' sums; those that PartialSums::add_up() leaves; the block's own gradients of gates; those of c; sums for
  // the biases, [tile][warp][unit tile][lane].
  extern __shared__ uint4 shared[];
  float* const sums = reinterpret_cast<float*>(shared);
  float* const added_up = sums + kResidentWarps * kSumFloats;
  uint4* const own = reinterpret_cast<uint4*>(added_up + kResidentWarps * kTileFloats);
  float* const carried = reinterpret_cast<float*>(own + kOwnKTiles * 32);
  float* const bias_sums = carried + tiles * kResidentWarps * kUnits;
  uint4* const weights = reinterpret_cast<uint4*>(bias_sums + tiles * kResidentWarps * UNIT_TILES * 32);
  for (int i = threadIdx.x; i < kOwnKTiles * 32; i += kResidentThreads) own[i] = {0, 0, 0, 0};
  for (int i = threadIdx.x; i < tiles * kResidentWarps * UNIT_TILES * 32; i += kResidentThreads) bias_sums[i] = 0;

  Product product;
  const T* const matrix = static_cast<const T*>(projection.weights);
  const T* const recurrent = static_cast<const T*>(dir.weights);
  OwnProduct own_product;
  const auto load = [&](int row_tile, int k) {
    const int unit = first_unit + row_tile * kTileRows + lane / 4;
    return load_column_fragment(matrix, int64_t{k} * hidden + unit, hidden, unit < hidden ? projection.states - k : 0);
  };
  const auto load_own_columns = [&](int row, int k) {
    const int gate = k / kUnits, unit = first_unit + k % kUnits;
    return load_column_fragment(recurrent, (int64_t{gate} * hidden + unit) * projection.states + row, projection.states,
                                row < projection.states && gate < gate_count(MODE) ? hidden - unit : 0);
  };
  load_both_weights<T, UNIT_TILES>(product, own_product, projection.padded, weights, load, load_own_columns);

  const int unit = first_unit + lane / 4;  // the first one of this lane; the next ones lie 8 further each
  RowExchange<T> exchange(sizes, projection, projection.exchange);
  product.k_tile_stride = exchange.tile_columns * 64 * kResidentWarps;
  bool timed_out = false;
  unsigned published = 0;  // the clock's low half

  const auto dy_at = [&](int64_t row, int p) { return load_float<T>(dir.dy, row * projection.row + p); };
  const auto store_dh = [&](int64_t row, int p, float dh) {
    if (p < projection.states) store_float<T>(projection.dh, row * projection.states + p, dh);
  };
  // Sequences [first, last) begin with `step`, which is step s.
  const auto publish_final = [&](int s, int first, int last, const Step& step) {
    exchange.publish_sequences(s, first, last, [&](int n, int row) {
      const float dhy = dir.dhy != nullptr ? load_float<T>(dir.dhy, int64_t{n} * projection.states + row) : 0.0f;
      const float dh = dy_at(step.row + n, row) + dhy;
      store_dh(step.row + n, row, dh);
      return dh;
    });
  };
  const auto add_bias_sums = [&](bool is_first) {
    add_bias_gradients<MODE, kUnits, UNIT_TILES>(bias_sums, tiles, dir.bias_sums, first_unit, hidden, is_first,
                                                 bias_index<true>);
  };

  const auto step_of = [&](int s) { return step_of_pass(sizes, sizes.steps, !dir.reverse, s); };
  Step previous, current, next = step_of(0);
  publish_final(0, 0, next.batch, next);
#pragma unroll 1
  for (int s = 0; s < sizes.steps; ++s) {
    add_bias_sums_before<T>(s, add_bias_sums);
    previous = current;
    current = next;
    next = step_of(s + 1);
    if (next.batch > current.batch) publish_final(s + 1, current.batch, next.batch, next);
    const int columns = min(sizes.columns, current.batch - sizes.first_column);

#pragma unroll 1
    for (int tile = 0; tile * kTileColumns < columns; ++tile) {
      const int column = tile * kTileColumns + warp, n = sizes.first_column + column;
      const bool active = column < columns, has_before = active && n < next.batch;
      const int row = active ? current.row + n : 0, row_before = has_before ? next.row + n : row;
      // The saved values of this lane's units: a gate, and c (lane 1) or c of the timestep before (lane 2).
      T gates[UNIT_TILES], cells[UNIT_TILES];
#pragma unroll
      for (int r = 0; r < UNIT_TILES; ++r) {
        const int u = active && unit + r * kTileRows < hidden ? unit + r * kTileRows : 0;
        const int64_t at = int64_t{row} * hidden + u;
        const T* const before =
            state_before<T, MODE>(dir, hidden, 0, u, has_before, row_before, active ? int64_t{n} * hidden + u : 0);
        gates[r] = __ldcs(static_cast<const T*>(dir.gates) + at * 4 + sub);
        cells[r] = sub == kBeforeLane<MODE> ? *before : static_cast<const T*>(dir.cells)[at];
      }

      const char* const gradients = exchange.fragment(s, tile);
      if (tile == 0) wait_poll_delay(published, sizes.poll_delay_cycles);
      multiply_all_rows<kSumFloats>(product, gradients, tile, columns, sizes.timed_out, timed_out, sums);

      float da[UNIT_TILES];
#pragma unroll
      for (int r = 0; r < UNIT_TILES; ++r) {
        const int u = unit + r * kTileRows, index = r * kTileFloats + sum_index(lane / 4, warp);
        const bool exists = active && u < hidden;
        const float dm = sum_of_unit<true, 1, 1, kSumFloats, 0>(sums, nullptr, 0, index, sub);
        float* const carry = carried + (column * kUnits + lane / 4 + r * kTileRows);
        float dc = *carry;
        if (n >= previous.batch) {
          dc = exists && dir.dcy != nullptr ? load_float<T>(dir.dcy, int64_t{n} * hidden + u) : 0;
        }
        __syncwarp();  // all four lanes have read it
        const bool has_state = has_state_before<T, MODE>(dir, has_before, false);
        const float cell = sub == 0 ? 0 : Element<T>::to_float(cells[r]);  // lane 0's place is dy's in other kernels
        da[r] = lanes_backward<MODE, kDigits>(Element<T>::to_float(gates[r]), cell, has_state, dm, dc, sub, 0);
        da[r] = exists ? da[r] : 0;
        *own_element<T>(own, sub * kUnits + lane / 4 + r * kTileRows, warp) = Element<T>::from_float(da[r]);
        bias_sums[((tile * kResidentWarps + warp) * UNIT_TILES + r) * 32 + lane] += da[r];
        if (sub == 0) *carry = dc;
        if (sub == 1 && exists && !has_before && dir.dcx != nullptr) {
          store_float<T>(dir.dcx, int64_t{n} * hidden + u, dc);
        }
      }
      __syncthreads();

      publish_own_products(own_product, own, exchange.partial_sums(tile));

      // Off the critical path: no block polls these stores.
#pragma unroll
      for (int r = 0; r < UNIT_TILES; ++r) {
        const int first = first_unit + r * kTileRows;
        T* const out = static_cast<T*>(dir.dgates) + (int64_t{row} * gate_count(MODE) + sub) * padded + first;
        publish_gate_tiles(out, lane, da[r], active && first < padded);
      }
    }

    exchange.add_up(columns, added_up, sizes.timed_out, timed_out, [&](int tile, int first_row, float2 rows) {
      const int column = tile * kTileColumns + lane / 4, n = sizes.first_column + column;
      if (column >= columns) return;
      if (n >= next.batch) {  // the sequence's first timestep
        if (dir.dhx == nullptr) return;
        T* const dhx = static_cast<T*>(dir.dhx) + (int64_t{n} * projection.states + first_row);
        if (first_row < projection.states) dhx[0] = Element<T>::from_float(rows.x);
        if (first_row + 1 < projection.states) dhx[1] = Element<T>::from_float(rows.y);
        return;
      }
      if (first_row < projection.states) rows.x += dy_at(next.row + n, first_row);
      if (first_row + 1 < projection.states) rows.y += dy_at(next.row + n, first_row + 1);
      exchange.publish(s + 1, column, first_row, rows);
      store_dh(next.row + n, first_row, rows.x);
      store_dh(next.row + n, first_row + 1, rows.y);
    });
    published = clock_low();
  }

  __syncthreads();
  add_bias_sums(is_only_bias_sum<T>(sizes.steps - 1));
}

template <class T, prnnRNNMode_t MODE, int UNIT_TILES>
cudaError_t launch_projected_backward(const ResidentShape& shape, const BackwardParams& params, cudaStream_t stream) {
  return launch_resident(projected_backward<T, MODE, UNIT_TILES>, shape, params, stream);
}

}  // namespace prnn
