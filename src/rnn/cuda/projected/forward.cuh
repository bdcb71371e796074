// The forward kernel of LSTMs with a projection: all timesteps of a layer, both recurrent matrices on the chip. A block
// has the gate rows of its units, for all of h, and the columns of the projection that belong to these units.
#pragma once

#include "rnn/cuda/projected/exchange.cuh"

namespace prnn {

// A tile has 8 sequences: warp w finishes sequence w of it. Its lanes are unit * 4 + gate.
template <class T, prnnRNNMode_t MODE, int UNIT_TILES>
__global__ void __launch_bounds__(kResidentThreads, 1) projected_forward(const __grid_constant__ ForwardParams params) {
  constexpr int kGates = gate_count(MODE);
  constexpr int kRowTiles = UNIT_TILES * kGates;
  constexpr int kUnits = UNIT_TILES * kTileRows;
  constexpr int kStride = kTileFloats + 1;  // the 4 gates of a unit read different banks
  constexpr int kSumFloats = kRowTiles * kStride;
  constexpr int kOwnKTiles = projected_own_k_tiles(false, UNIT_TILES, sizeof(T) == 4);
  constexpr Digits kDigits = digits_of<T>();
  using Product =
      MmaProduct<T, kRowTiles, kStride, false, true, projected_register_k_tiles(false, UNIT_TILES, sizeof(T) == 4)>;
  using OwnProduct = OwnColumnsProduct<T, kOwnKTiles, projected_register_pairs(false, UNIT_TILES, sizeof(T) == 4)>;

  const ResidentSizes& sizes = params.sizes;
  const ForwardDirection& dir = params.direction[0];
  const Projection& projection = params.projection;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  const int first_unit = blockIdx.x * kUnits, hidden = sizes.hidden;

  // The warps' sums, and those that PartialSums::add_up() leaves, in warp 0's place; the block's own m; c.
  extern __shared__ uint4 shared[];
  __shared__ float biases[UNIT_TILES][32];  // of what a lane finishes
  float* const sums = reinterpret_cast<float*>(shared);
  uint4* const own = shared + kResidentWarps * kSumFloats / 4;
  float* const carried = reinterpret_cast<float*>(own + kOwnKTiles * 32);
  const int tiles = sizes.replica_tiles();
  uint4* const weights = reinterpret_cast<uint4*>(carried + tiles * kResidentWarps * kUnits);
  for (int i = threadIdx.x; i < kOwnKTiles * 32; i += kResidentThreads) own[i] = {0, 0, 0, 0};

  Product product;
  const T* const recurrent = static_cast<const T*>(dir.weights);
  const T* const matrix = static_cast<const T*>(projection.weights);
  OwnProduct own_product;
  const auto load = [&](int row_tile, int k) {
    const int unit = first_unit + row_tile / kGates * kTileRows + lane / 4;
    const int64_t row = int64_t{row_tile % kGates} * hidden + unit;
    return load_row_fragment(recurrent, row * projection.states + k, unit < hidden ? projection.states - k : 0);
  };
  const auto load_own_columns = [&](int row, int k) {
    const bool exists = row < projection.states && k < kUnits;
    return load_row_fragment(matrix, int64_t{row} * hidden + first_unit + k, exists ? hidden - first_unit - k : 0);
  };
  load_both_weights<T, kRowTiles>(product, own_product, projection.padded, weights, load, load_own_columns);

  const int unit = first_unit + lane / 4;  // the first one of this lane; the next ones lie 8 further each
  const auto exists = [&](int round) { return unit + round * kTileRows < hidden; };
#pragma unroll
  for (int r = 0; r < UNIT_TILES; ++r) {
    const float bias = load_bias<T, MODE>(dir, hidden, unit + r * kTileRows, sub, exists(r));
    if (warp == 0) biases[r][lane] = bias;
  }
  RowExchange<T> exchange(sizes, projection, dir.exchange);
  product.k_tile_stride = exchange.tile_columns * 64 * kResidentWarps;
  bool timed_out = false;
  unsigned published = 0;  // the clock's low half

  const auto publish_initial = [&](int s, int first, int last) {
    exchange.publish_sequences(s, first, last, [&](int n, int row) {
      return dir.hx != nullptr ? load_float<T>(dir.hx, int64_t{n} * projection.states + row) : 0.0f;
    });
  };

  Step previous, current, next = step_of_pass(sizes, sizes.steps, dir.reverse, 0);
  publish_initial(0, 0, next.batch);
#pragma unroll 1
  for (int s = 0; s < sizes.steps; ++s) {
    previous = current;
    current = next;
    next = step_of_pass(sizes, sizes.steps, dir.reverse, s + 1);
    if (next.batch > current.batch) publish_initial(s + 1, current.batch, next.batch);
    const int columns = min(sizes.columns, current.batch - sizes.first_column);

#pragma unroll 1
    for (int tile = 0; tile * kTileColumns < columns; ++tile) {
      const int column = tile * kTileColumns + warp, n = sizes.first_column + column;
      const bool active = column < columns;
      const int row = active ? current.row + n : 0;
      T input[UNIT_TILES];
#pragma unroll
      for (int r = 0; r < UNIT_TILES; ++r) {
        input[r] = __ldcs(static_cast<const T*>(dir.xw) + (int64_t{row} * params.xw_row + sub * params.xw_gate +
                                                           (exists(r) ? unit + r * kTileRows : 0)));
      }

      const char* const states = exchange.fragment(s, tile);
      if (tile == 0) wait_poll_delay(published, sizes.poll_delay_cycles);
      multiply_all_rows<kSumFloats>(product, states, tile, columns, sizes.timed_out, timed_out, sums);

      LaneForward done[UNIT_TILES];
#pragma unroll
      for (int r = 0; r < UNIT_TILES; ++r) {
        const int at = (r * kGates + sub) * kStride + sum_index(lane / 4, warp);
        const float value = sum_over_warps(sums, kSumFloats, at);
        float* const carry = carried + (column * kUnits + lane / 4 + r * kTileRows);
        float before = *carry;
        if (n >= previous.batch) {
          before = initial_carried<T, MODE>(dir, int64_t{n} * hidden + unit + r * kTileRows, active && exists(r));
        }
        __syncwarp();  // all four lanes have read it
        const float gate = lane_gate<MODE, kDigits>(value, Element<T>::to_float(input[r]), biases[r][lane], sub, 0);
        done[r] = lanes_forward<MODE, kDigits>(gate, before, sub);
        if (sub == 0) {
          *carry = done[r].carried;
          *own_element<T>(own, lane / 4 + r * kTileRows, warp) =
              Element<T>::from_float(active && exists(r) ? done[r].h : 0);
        }
      }
      __syncthreads();

      publish_own_products(own_product, own, exchange.partial_sums(tile));

      // Off the critical path: no block polls these stores.
#pragma unroll
      for (int r = 0; r < UNIT_TILES; ++r) {
        if (!active || !exists(r)) continue;
        const int64_t at = int64_t{row} * hidden + unit + r * kTileRows;
        if (dir.gates != nullptr) {
          store_lane_outputs<T, MODE>(dir, int64_t{row} * params.y_row + unit + r * kTileRows, at, done[r], sub);
        }
        if (n >= next.batch && sub == 2 && dir.cy != nullptr) {
          store_float<T>(dir.cy, int64_t{n} * hidden + unit + r * kTileRows, done[r].carried);
        }
      }
    }

    exchange.add_up(columns, sums, sizes.timed_out, timed_out, [&](int tile, int first_row, float2 rows) {
      const int column = tile * kTileColumns + lane / 4, n = sizes.first_column + column;
      if (column < columns && n < next.batch) exchange.publish(s + 1, column, first_row, rows);
      for (int i = 0; i < 2; ++i) {
        if (column >= columns || first_row + i >= projection.states) continue;
        const float h = i == 0 ? rows.x : rows.y;
        store_float<T>(projection.h, int64_t{current.row + n} * projection.row + first_row + i, h);
        if (n >= next.batch && dir.hy != nullptr) {
          store_float<T>(dir.hy, int64_t{n} * projection.states + first_row + i, h);
        }
      }
    });
    published = clock_low();
  }
}

template <class T, prnnRNNMode_t MODE, int UNIT_TILES>
cudaError_t launch_projected_forward(const ResidentShape& shape, const ForwardParams& params, cudaStream_t stream) {
  return launch_resident(projected_forward<T, MODE, UNIT_TILES>, shape, params, stream);
}

}  // namespace prnn
