// How the lanes of the wgmma kernels begin and finish a step. A lane has one unit of several columns, the sequences of
// its replica.
#pragma once

#include "rnn/cuda/common/block.cuh"
#include "rnn/cuda/common/dsmem.cuh"
#include "rnn/cuda/common/launch.cuh"
#include "rnn/cuda/common/sequence.cuh"
#include "rnn/cuda/common/unit_io.cuh"
#include "rnn/cuda/common/unroll.cuh"
#include "rnn/cuda/common/weights.cuh"

namespace prnn {

// A lane's unit: one, which may be padding, of ROUNDS columns STRIDE apart.
template <int ROUNDS, int STRIDE>
struct LaneColumns {
  int unit, first, replica_column;
  bool exists;  // the unit

  __device__ __forceinline__ int column(int r) const { return first + r * STRIDE; }
  __device__ __forceinline__ int sequence(int r) const { return replica_column + column(r); }
};

// A pass's step and its neighbours.
struct StepWindow {
  Step previous, current, next;
};

// ---- forward ----

// The states before a step, of the first `columns` columns, for the block whose share of K begins at `first_k`.
template <class T, class Loads>
__device__ __forceinline__ void point_at_states(Loads& loads, const ForwardDirection& dir, int padded, int first_k,
                                                int replica_column, int columns, const Step& before) {
#pragma unroll
  for (int i = 0; i < Loads::kLoadColumns; ++i) {
    const int column = Loads::column(i), n = replica_column + column;
    const T* const row = n < before.batch ? static_cast<const T*>(dir.exchange) + int64_t{before.row + n} * padded
                                          : static_cast<const T*>(dir.initial) + int64_t{n} * padded;
    loads.point_at(i, row + first_k, padded - first_k, column < columns);
  }
}

// From the sums of R h and of W x, with their biases, to the new states, which are published, and all other outputs.
// `carried`: c (LSTM), h before rounding (GRU). Returns the clock's low half after publishing.
template <class T, prnnRNNMode_t MODE, int ROUNDS, int STRIDE>
__device__ __forceinline__ unsigned finish_forward(const ForwardParams& params, const ForwardDirection& dir,
                                                   const LaneColumns<ROUNDS, STRIDE>& lane, const StepWindow& steps,
                                                   int columns, const float (&recurrent)[ROUNDS][gate_count(MODE)],
                                                   const float (&input)[ROUNDS][gate_count(MODE)],
                                                   float (&carried)[ROUNDS]) {
  const int hidden = params.sizes.hidden, padded = params.sizes.padded;
  UnitForward done[ROUNDS];
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    if (lane.sequence(r) >= steps.previous.batch) {  // a sequence starts
      const bool wanted = lane.exists && lane.column(r) < columns;
      carried[r] = initial_carried<T, MODE>(dir, int64_t{lane.sequence(r)} * hidden + lane.unit, wanted);
    }
    done[r] = forward_unit<MODE, digits_of<T>()>(recurrent[r], input[r], carried[r]);
    carried[r] = done[r].carried;
  }
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    const float own = lane.exists ? done[r].h : 0, beside = __shfl_down_sync(kWholeWarp, own, 1);
    publish_word(lane.column(r) < columns && lane.unit % 2 == 0 && lane.unit < padded,
                 static_cast<T*>(dir.exchange) + int64_t{steps.current.row + lane.sequence(r)} * padded + lane.unit,
                 Element<T>::pack(own, beside));
  }
  const unsigned published = clock_low();

  // Off the critical path: no block polls these stores.
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    const int n = lane.sequence(r);
    const int64_t row = steps.current.row + n;
    if (lane.column(r) >= columns || !lane.exists) continue;
    save_unit<T, MODE>(dir, row * hidden + lane.unit, done[r]);
    if (dir.y != nullptr) store_float<T>(dir.y, row * params.y_row + lane.unit, done[r].h);
    if (n >= steps.next.batch)
      store_final_states<T, MODE>(dir, int64_t{n} * hidden + lane.unit, done[r].h, carried[r], kWholeUnit);
  }
  return published;
}

// ---- backward: steps run against the forward pass ----

// The gates' gradients of the step before, of the first `columns` columns. The block's share of K is elements
// [first_k, end_k) of a row.
template <class T, class Loads>
__device__ __forceinline__ void point_at_gradients(Loads& loads, const BackwardDirection& dir, int row_elements,
                                                   int first_k, int end_k, int replica_column, int columns,
                                                   const Step& before) {
#pragma unroll
  for (int i = 0; i < Loads::kLoadColumns; ++i) {
    const int column = Loads::column(i), n = replica_column + column;
    const T* const row = static_cast<const T*>(dir.dgates) + int64_t{before.row + n} * row_elements;
    loads.point_at(i, row + first_k, end_k - first_k, column < columns && n < before.batch);
  }
}

// A unit's saved values, and dy. `state`: c of an LSTM; `before`: c (LSTM) or h (GRU) of the timestep
// before.
template <class T>
struct SavedUnit {
  Four<T> gates;
  float dy, state, before;
};

// From the gradient of h through the matrix to those of the gates, which are published, and all other outputs.
// `saved(r)`: a SavedUnit. `carried`: the gradient that goes past the matrix. `bias_sums` grow. published() is called
// after publishing. Returns the clock's low half then.
template <class T, prnnRNNMode_t MODE, int ROUNDS, int STRIDE, class Saved, class Published>
__device__ __forceinline__ unsigned finish_backward(const BackwardParams& params, const BackwardDirection& dir,
                                                    const LaneColumns<ROUNDS, STRIDE>& lane, const StepWindow& steps,
                                                    int columns, const float (&through_matrix)[ROUNDS],
                                                    const Saved& saved, float (&carried)[ROUNDS], float (&bias_sums)[4],
                                                    const Published& published) {
  constexpr int kGates = gate_count(MODE);
  const int hidden = params.sizes.hidden, padded = params.sizes.padded;
  float da[ROUNDS][4];
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    const int n = lane.sequence(r);
    const bool in_replica = lane.column(r) < columns;
    const bool is_active = in_replica && n < steps.current.batch, was_active = in_replica && n < steps.previous.batch;
    float dh = through_matrix[r];
    begin_or_end_sequence<T, MODE>(dir, int64_t{n} * hidden + lane.unit, lane.exists, is_active, was_active, dh,
                                   carried[r], kWholeUnit);
    const SavedUnit<T> unit = saved(r);
    backward_unit<T, MODE>(unit.gates, unit.state, unit.before, dh + unit.dy, is_active && lane.exists, carried[r],
                           da[r]);
  }
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    const bool is_active = lane.column(r) < columns && lane.sequence(r) < steps.current.batch;
    T* const row = static_cast<T*>(dir.dgates) + int64_t{steps.current.row + lane.sequence(r)} * (kGates * padded);
    publish_gradients<T, kGates>(is_active && lane.unit % 2 == 0 && lane.unit < padded, row + lane.unit, padded, da[r]);
  }
  const unsigned clock = clock_low();
  published();
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    if (MODE == PRNN_GRU && lane.exists && lane.column(r) < columns && lane.sequence(r) < steps.current.batch) {
      const int64_t row = steps.current.row + lane.sequence(r);
      store_float<T>(dir.dcandidate, row * hidden + lane.unit, da[r][3]);
    }
#pragma unroll
    for (int g = 0; g < 4; ++g) bias_sums[g] += da[r][g];
  }
  return clock;
}

}  // namespace prnn
