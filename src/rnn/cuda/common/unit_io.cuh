// Around the arithmetic of a unit that one thread has (Cell of common/cell.cuh): biases, the loads and stores of a
// timestep, and where sequences begin and end. Gated cells, 16 bits.
#pragma once

#include "rnn/cuda/common/cell.cuh"
#include "rnn/cuda/common/exchange.cuh"
#include "rnn/cuda/common/params.h"
#include "rnn/cuda/common/step_io.cuh"

namespace prnn {

// The bias of gate `gate` of a unit: both biases' sum. A GRU's candidate has them apart: gate 2 is that of R h, gate 3
// that of W x. 0 where the unit does not exist.
template <class T, prnnRNNMode_t MODE>
__device__ __forceinline__ float load_bias(const ForwardDirection& dir, int hidden, int unit, int gate, bool exists) {
  const int64_t at = int64_t{MODE == PRNN_GRU && gate == 3 ? 2 : gate} * hidden + unit;
  const float of_input = exists ? load_float<T>(dir.input_bias, at) : 0;
  const float of_recurrent = exists ? load_float<T>(dir.recurrent_bias, at) : 0;
  return MODE == PRNN_GRU && gate == 3   ? of_input
         : MODE == PRNN_GRU && gate == 2 ? of_recurrent
                                         : of_input + of_recurrent;
}

// c (LSTM) or h (GRU) before the first timestep of sequence n, at `index` of cx or hx.
template <class T, prnnRNNMode_t MODE>
__device__ __forceinline__ float initial_carried(const ForwardDirection& dir, int64_t index, bool wanted) {
  const T* const initial = static_cast<const T*>(MODE == PRNN_LSTM ? dir.cx : dir.hx);
  return initial != nullptr && wanted ? Element<T>::to_float(initial[index]) : 0;
}

// A timestep of a unit from the sums of its gates: those of R h, and those of W x. Each has the biases that belong to
// its side of a GRU's candidate; else either has them.
template <prnnRNNMode_t MODE, int GATES>
__device__ __forceinline__ UnitForward forward_unit(const float (&recurrent)[GATES], const float (&input)[GATES],
                                                    float carried) {
  static_assert(GATES == Cell<MODE>::kGates, "a gated cell's");
  float gate[4];
#pragma unroll
  for (int g = 0; g < 4; ++g) {
    const float sum = MODE == PRNN_GRU && g == 2   ? recurrent[GATES - 1]
                      : MODE == PRNN_GRU && g == 3 ? input[GATES - 1]
                                                   : recurrent[g % GATES] + input[g % GATES];
    gate[g] = Cell<MODE>::template activate<false>(sum, g, 0);
  }
  return Cell<MODE>::template forward<false>(gate, carried);
}

// Saves the gates and, of an LSTM, c for the backward pass at element `at` of [rows, H]; off the critical path: no
// block polls these stores.
template <class T, prnnRNNMode_t MODE>
__device__ __forceinline__ void save_unit(const ForwardDirection& dir, int64_t at, const UnitForward& unit) {
  if (dir.gates == nullptr) return;
  Four<T> four;
#pragma unroll
  for (int g = 0; g < 4; ++g) four.value[g] = Element<T>::from_float(unit.saved[g]);
  static_cast<Four<T>*>(dir.gates)[at] = four;
  if (MODE == PRNN_LSTM) store_float<T>(dir.cells, at, unit.carried);
}

// hy and cy of a sequence that ends, at `index` of [N, H].
template <class T, prnnRNNMode_t MODE>
__device__ __forceinline__ void store_last_states(const ForwardDirection& dir, int64_t index, const UnitForward& unit) {
  if (dir.hy != nullptr) store_float<T>(dir.hy, index, unit.h);
  if (MODE == PRNN_LSTM && dir.cy != nullptr) store_float<T>(dir.cy, index, unit.carried);
}

// ---- backward: steps run against the forward pass, so that a sequence begins with its last timestep ----

// Where a sequence begins or is over. `dh` and `carried` are the gradients from the timestep after: a sequence that
// begins has dhy and dcy instead, and of one that is over what is left belongs to the initial states. `index`: of
// [N, H].
template <class T, prnnRNNMode_t MODE>
__device__ __forceinline__ void begin_or_end_sequence(const BackwardDirection& dir, int64_t index, bool exists,
                                                      bool is_active, bool was_active, float& dh, float& carried) {
  if (!was_active) {
    dh = is_active && exists && dir.dhy != nullptr ? load_float<T>(dir.dhy, index) : 0;
    carried = 0;
    if (MODE == PRNN_LSTM && is_active && exists && dir.dcy != nullptr) carried = load_float<T>(dir.dcy, index);
  } else if (!is_active && exists) {
    if (dir.dhx != nullptr) store_float<T>(dir.dhx, index, MODE == PRNN_GRU ? dh + carried : dh);
    if (MODE == PRNN_LSTM && dir.dcx != nullptr) store_float<T>(dir.dcx, index, carried);
  }
}

// The gradients of a unit's gate sums, zeros unless `wanted`; see unit_gradients(). `state`: c of an LSTM; `before`: c
// (LSTM) or h (GRU) of the timestep before.
template <class T, prnnRNNMode_t MODE>
__device__ __forceinline__ void backward_unit(const Four<T>& gates, float state, float before, float dh, bool wanted,
                                              float& carried, float (&out)[4]) {
  float saved[4];
#pragma unroll
  for (int g = 0; g < 4; ++g) saved[g] = Element<T>::to_float(gates.value[g]);
  unit_gradients<MODE>(Cell<MODE>::template derivatives<false>(saved, state, before), dh, carried, out);
#pragma unroll
  for (int g = 0; g < 4; ++g) out[g] = wanted ? out[g] : 0;
}

// Publishes the gradients of the gate sums of two units, which a lane and the next one have, in a row of dgates: `out`
// is where the lane's unit has its first gate, `gate_stride` elements from there the next.
template <class T, int GATES>
__device__ __forceinline__ void publish_gradients(bool valid, T* out, int gate_stride, const float (&gradients)[4]) {
#pragma unroll
  for (int g = 0; g < GATES; ++g) {
    const float beside = __shfl_down_sync(kWholeWarp, gradients[g], 1);
    publish_word(valid, out + g * gate_stride, Element<T>::pack(gradients[g], beside));
  }
}

// The bias gradients of a block whose lanes have unit lane % 16 each: adds `sums`, of the four gates, over the lanes
// and warps that have the same unit, and stores them for this replica. `shared` has room for 64 floats a warp, and
// nobody uses it any more. A GRU's third and fourth are those of its candidate's bR and bW.
__device__ __forceinline__ void store_bias_gradients(const float (&sums)[4], float* shared, float* bias_sums,
                                                     int64_t replica, int hidden, int unit, bool exists) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int g = 0; g < 4; ++g) {
    const float both = sums[g] + __shfl_xor_sync(kWholeWarp, sums[g], 16);
    if (lane < 16) shared[(threadIdx.x / 32 * 4 + g) * 16 + lane] = both;
  }
  __syncthreads();
  if (threadIdx.x < 64) {
    const int g = threadIdx.x / 16;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kResidentWarps; ++w) sum += shared[(w * 4 + g) * 16 + lane % 16];
    if (exists) bias_sums[(replica * 4 + g) * hidden + unit] = sum;
  }
}

}  // namespace prnn
