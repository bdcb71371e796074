// Around the arithmetic of a unit (Cell of common/cell.cuh): biases, the loads and stores of a timestep, and where
// sequences begin and end. What is of one thread a unit is of gated cells; units whose gates lie in four
// lanes: lanes.cuh.
#pragma once

#include "rnn/cuda/common/cell.cuh"
#include "rnn/cuda/common/exchange.cuh"
#include "rnn/cuda/common/params.h"
#include "rnn/cuda/common/step_io.cuh"

namespace prnn {

// The gate of the weights, biases and input products that gate value `gate` of a unit takes: a GRU's candidate has two
// values, an RNN one, whatever `gate`.
template <prnnRNNMode_t MODE>
__device__ __forceinline__ int input_gate(int gate) {
  return gate_count(MODE) == 1 ? 0 : MODE == PRNN_GRU && gate == 3 ? 2 : gate;
}

// The bias of gate value `gate` of a unit: both biases' sum. A GRU's candidate has them apart: value 2 that of R h,
// value 3 that of W x. 0 where the unit does not exist.
template <class T, prnnRNNMode_t MODE, class Direction>
__device__ __forceinline__ float load_bias(const Direction& dir, int hidden, int unit, int gate, bool exists) {
  const int64_t at = int64_t{input_gate<MODE>(gate)} * hidden + unit;
  const float input = exists ? load_float<T>(dir.input_bias, at) : 0;
  const float recurrent = exists ? load_float<T>(dir.recurrent_bias, at) : 0;
  return MODE == PRNN_GRU && gate == 3 ? input : MODE == PRNN_GRU && gate == 2 ? recurrent : input + recurrent;
}

// The initial states of what is carried, [N, H]: c (LSTM; an sLSTM's first of three) or h. NULL: zeros.
template <class T, prnnRNNMode_t MODE, class Direction>
__device__ __forceinline__ const T* initial_states(const Direction& dir) {
  return static_cast<const T*>(Cell<MODE>::kHasCellState ? dir.cx : dir.hx);
}

// The states of sequences that start anew, [N, H]; NULL: zeros.
template <class T, prnnRNNMode_t MODE, class Direction>
__device__ __forceinline__ const T* reset_states(const Direction& dir) {
  return static_cast<const T*>(Cell<MODE>::kHasCellState ? dir.reset_cx : dir.reset_hx);
}

// The state that a sequence carries before its first timestep, at `index` of [N, H]; 0 unless wanted.
template <class T, prnnRNNMode_t MODE, class Direction>
__device__ __forceinline__ float initial_carried(const Direction& dir, int64_t index, bool wanted) {
  const T* const initial = initial_states<T, MODE>(dir);
  return initial != nullptr && wanted ? Element<T>::to_float(initial[index]) : 0;
}

// The same, or where it starts anew.
template <class T, prnnRNNMode_t MODE, class Direction>
__device__ __forceinline__ Carried<MODE> initial_carried(const Direction& dir, int64_t index, bool wanted,
                                                         bool starts_anew) {
  const T* const initial = starts_anew ? reset_states<T, MODE>(dir) : initial_states<T, MODE>(dir);
  if constexpr (MODE == PRNN_SLSTM) {
    SlstmCarried states{};
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      if (initial != nullptr && wanted) states.of[i] = Element<T>::to_float(initial[index + i * dir.cell_stride]);
    }
    return states;
  } else {
    return initial != nullptr && wanted ? Element<T>::to_float(initial[index]) : 0;
  }
}

// An sLSTM's c / n of such states, 0 where n is.
__device__ __forceinline__ float ratio_of(const SlstmCarried& states) {
  return states.of[1] == 0 ? 0 : states.of[0] / states.of[1];
}
template <class T, class Direction>
__device__ __forceinline__ T initial_ratio(const Direction& dir, int64_t index, bool starts_anew) {
  return Element<T>::from_float(ratio_of(initial_carried<T, PRNN_SLSTM>(dir, index, true, starts_anew)));
}

// h before a sequence's first timestep, or where it starts anew, at `index` of [N, H]; 0 unless wanted.
template <class T>
__device__ __forceinline__ float initial_h(const ForwardDirection& dir, int64_t index, bool wanted, bool starts_anew) {
  const void* const initial = starts_anew ? dir.reset_hx : dir.hx;
  return initial != nullptr && wanted ? load_float<T>(initial, index) : 0;
}

// Both.
template <class T, prnnRNNMode_t MODE>
__device__ __forceinline__ float begin_sequence(const ForwardDirection& dir, int64_t index, bool wanted,
                                                bool starts_anew, Carried<MODE>& carried) {
  const float h = initial_h<T>(dir, index, wanted, starts_anew);
  if constexpr (Cell<MODE>::kHasCellState) {
    carried = initial_carried<T, MODE>(dir, index, wanted, starts_anew);
  } else {
    carried = h;
  }
  return h;
}

// Whether a kernel looks at the zoneout of StateMasks, and whether it carries h, or its gradient, for that beside what
// the cell carries.
template <prnnRNNMode_t MODE, bool EXTRAS>
constexpr bool kZonesOut = EXTRAS && MODE != PRNN_RNN_TANH && MODE != PRNN_SLSTM;
template <prnnRNNMode_t MODE, bool EXTRAS>
constexpr bool kCarriesH = EXTRAS && MODE == PRNN_LSTM;

// The mask's value of h at element `at` of [N, H], a factor before the recurrent product and of the product's gradient;
// 1 where there is no mask, or unless wanted.
template <class T, bool EXTRAS>
__device__ __forceinline__ float load_mask(const StateMasks& masks, int direction, int64_t at, bool wanted) {
  if constexpr (!EXTRAS) return 1;
  const void* const mask = masks.recurrent[direction];
  return mask != nullptr && wanted ? load_float<T>(mask, at) : 1;
}

// Whether the input product of an LSTM's gate o says that h stays.
__device__ __forceinline__ bool stays(const StateMasks& masks, float input_of_o) {
  return masks.marked && __float_as_uint(input_of_o) == 0xFF800000u;
}

// The value that o takes then, and is saved as: no other o has this sign.
constexpr float kStayed = -0.0f;
__device__ __forceinline__ bool has_stayed(float o) { return __float_as_uint(o) == 0x80000000u; }

// Zoneout of a UnitForward or LaneForward. `h_stays`: an LSTM's, as a mask says; else the expectation.
template <prnnRNNMode_t MODE, bool EXTRAS, class Unit>
__device__ __forceinline__ void zone_out(const StateMasks& masks, float h_before, bool h_stays, Unit& unit) {
  if constexpr (kZonesOut<MODE, EXTRAS>) {
    if (masks.zoneout > 0) unit.h += masks.zoneout * (h_before - unit.h);
    if constexpr (kCarriesH<MODE, EXTRAS>) {
      unit.h = h_stays ? h_before : unit.h;
    } else {
      unit.carried = unit.h;
    }
  }
}

// Splits an LSTM's gradient of h, backward: the part that belongs to the h before becomes `past`.
__device__ __forceinline__ void split_gradient(const StateMasks& masks, float saved_o, float& dh, float& past) {
  const bool h_stays = has_stayed(saved_o);
  past = h_stays ? dh : masks.zoneout * dh;
  dh = h_stays ? 0 : dh - past;
}

// A timestep of a unit from the sums of its gates: those of R h, and those of W x. Each has the biases that belong to
// its side of a GRU's candidate; else either has them.
template <prnnRNNMode_t MODE, Digits DIGITS, int GATES>
__device__ __forceinline__ UnitForwardOf<Carried<MODE>> forward_unit(const float (&recurrent)[GATES],
                                                                     const float (&input)[GATES],
                                                                     const Carried<MODE>& carried, int kind = 0) {
  static_assert(GATES == Cell<MODE>::kGates, "a gated cell's");
  float gate[4];
#pragma unroll
  for (int g = 0; g < 4; ++g) {
    const float sum = MODE == PRNN_GRU && g == 2   ? recurrent[GATES - 1]
                      : MODE == PRNN_GRU && g == 3 ? input[GATES - 1]
                                                   : recurrent[g % GATES] + input[g % GATES];
    gate[g] = Cell<MODE>::template activate<DIGITS>(sum, g, kind);
  }
  return Cell<MODE>::template forward<DIGITS>(gate, carried, kind);
}

// Saves the gates and, of an LSTM, c, of an sLSTM c / n, for the backward pass at element `at` of [rows, H]; off the
// critical path: no block polls these stores.
template <class T, prnnRNNMode_t MODE>
__device__ __forceinline__ void save_unit(const ForwardDirection& dir, int64_t at,
                                          const UnitForwardOf<Carried<MODE>>& unit) {
  if (dir.gates == nullptr) return;
  Four<T> four;
#pragma unroll
  for (int g = 0; g < 4; ++g) four.value[g] = Element<T>::from_float(unit.saved[g]);
  static_cast<Four<T>*>(dir.gates)[at] = four;
  if constexpr (Cell<MODE>::kHasCellState) store_float<T>(dir.cells, at, Cell<MODE>::in_cells(unit.carried));
}

// In place of the number of the lane that shares a unit's stores with others: one thread has the unit.
constexpr int kWholeUnit = -1;

// Stores the states after a sequence's last timestep, at element `at` of [N, H]. `sub`: of the lane, or kWholeUnit.
template <class T, prnnRNNMode_t MODE, class Direction>
__device__ __forceinline__ void store_final_states(const Direction& dir, int64_t at, float h,
                                                   const Carried<MODE>& carried, int sub) {
  if (sub <= 0 && dir.hy != nullptr) store_float<T>(dir.hy, at, h);
  if constexpr (MODE == PRNN_SLSTM) {
    if (sub != 2 && sub != kWholeUnit) return;
    if (dir.cy != nullptr) {
      const T m = Element<T>::from_float(carried.of[2]);  // c e^m and n e^m are as they were
      const float factor = exponential(fmaxf(-1, fminf(carried.of[2] - Element<T>::to_float(m), 1)));
      store_float<T>(dir.cy, at, carried.of[0] * factor);
      store_float<T>(dir.cy, at + dir.cell_stride, carried.of[1] * factor);
      static_cast<T*>(dir.cy)[at + 2 * dir.cell_stride] = m;
    }
    if (dir.last == nullptr) return;
    store_float<T>(dir.last, at, carried.of[1]);
    store_float<T>(dir.last, at + dir.cell_stride, Cell<MODE>::in_cells(carried));
  } else if (Cell<MODE>::kHasCellState && (sub == 2 || sub == kWholeUnit) && dir.cy != nullptr) {
    store_float<T>(dir.cy, at, carried);
  }
}

// ---- backward: steps run against the forward pass, so that a sequence begins with its last timestep ----

// Where the state before a timestep lies that the backward pass needs of a gated unit, c (LSTM), c / n (sLSTM, of the
// initial states c alone) or h (GRU): in row
// `row_before`, or, where that timestep does not exist, at element `initial_at` of the initial states. Where there are
// none either, an address that may be read.
template <class T, prnnRNNMode_t MODE>
__device__ __forceinline__ const T* state_before(const BackwardDirection& dir, int hidden, int y_row, int unit,
                                                 bool has_before, int64_t row_before, int64_t initial_at) {
  const T* const states = static_cast<const T*>(Cell<MODE>::kHasCellState ? dir.cells : dir.y);
  const T* const initial = initial_states<T, MODE>(dir);
  return !has_before && initial != nullptr
             ? initial + initial_at
             : states + (row_before * (Cell<MODE>::kHasCellState ? hidden : y_row) + unit);
}

// The gradients of the states after a sequence's last timestep, at element `at` of [N, H]: of h and of what is carried.
template <class CARRIED>
struct FinalGradientsOf {
  float dh;
  CARRIED dc;
};
using FinalGradients = FinalGradientsOf<float>;

template <class T, prnnRNNMode_t MODE, class Direction>
__device__ __forceinline__ FinalGradientsOf<Carried<MODE>> load_final_gradients(const Direction& dir, int64_t at,
                                                                                bool exists) {
  const float dh = exists && dir.dhy != nullptr ? load_float<T>(dir.dhy, at) : 0;
  if constexpr (MODE == PRNN_SLSTM) {
    if (!exists || dir.dcy == nullptr) return {dh, {}};
    const float n = load_float<T>(dir.last, at), ratio = load_float<T>(dir.last, at + dir.cell_stride);
    const float ndc = n * load_float<T>(dir.dcy, at), ndn = n * load_float<T>(dir.dcy, at + dir.cell_stride);
    const float both = ndc * ratio + ndn;
    return {dh, {ndc, both, load_float<T>(dir.dcy, at + 2 * dir.cell_stride) - both}};
  } else {
    return {dh, Cell<MODE>::kHasCellState && exists && dir.dcy != nullptr ? load_float<T>(dir.dcy, at) : 0};
  }
}

// From what an sLSTM carries backward before these states to the gradients of c, n and m.
__device__ __forceinline__ SlstmCarried state_gradients(const SlstmCarried& carried, const SlstmCarried& states) {
  if (states.of[1] == 0) return carried;
  const float ndc = carried.of[0], both = carried.of[1];
  return {ndc / states.of[1], (both - ndc * ratio_of(states)) / states.of[1], carried.of[2] + both};
}

// Stores the gradients of a unit's initial states; `dh`: through the matrix alone. `sub` as for store_final_states().
template <class T, prnnRNNMode_t MODE, class Direction>
__device__ __forceinline__ void store_initial_gradients(const Direction& dir, int64_t at, float dh,
                                                        const Carried<MODE>& carried, int sub) {
  if constexpr (MODE == PRNN_SLSTM) {
    if (sub <= 0 && dir.dhx != nullptr) store_float<T>(dir.dhx, at, dh);
    if ((sub != 1 && sub != kWholeUnit) || dir.dcx == nullptr) return;
    const SlstmCarried found = state_gradients(carried, initial_carried<T, MODE>(dir, at, true, false));
#pragma unroll
    for (int i = 0; i < 3; ++i) store_float<T>(dir.dcx, at + i * dir.cell_stride, found.of[i]);
  } else {
    if (sub <= 0 && dir.dhx != nullptr) store_float<T>(dir.dhx, at, MODE == PRNN_GRU ? dh + carried : dh);
    if (Cell<MODE>::kHasCellState && (sub == 1 || sub == kWholeUnit) && dir.dcx != nullptr) {
      store_float<T>(dir.dcx, at, carried);
    }
  }
}

// Where a sequence begins or is over. `dh` and `carried` are the gradients from the timestep after: a sequence that
// begins has dhy and dcy instead, and of one that is over what is left belongs to the initial states. `at`: of [N, H].
template <class T, prnnRNNMode_t MODE, class Direction>
__device__ __forceinline__ void begin_or_end_sequence(const Direction& dir, int64_t at, bool exists, bool is_active,
                                                      bool was_active, float& dh, Carried<MODE>& carried, int sub) {
  if (!was_active) {
    const FinalGradientsOf<Carried<MODE>> last = load_final_gradients<T, MODE>(dir, at, is_active && exists);
    dh = last.dh;
    carried = last.dc;
  } else if (!is_active && exists) {
    store_initial_gradients<T, MODE>(dir, at, dh, carried, sub);
  }
}

// Where a sequence started anew after this timestep: `dh` and `carried`, which would be gradients of this timestep's
// states, are reset_hx's and reset_cx's. One lane has a unit of a sequence in all timesteps. Arguments as above.
template <class T, prnnRNNMode_t MODE, class Direction>
__device__ __forceinline__ void take_reset_gradients(const Direction& dir, int64_t at, bool exists, float& dh,
                                                     Carried<MODE>& carried, int sub) {
  if constexpr (MODE == PRNN_SLSTM) {
    if (exists && sub <= 0 && dir.dreset_hx != nullptr) dir.dreset_hx[at] += dh;
    if (exists && (sub == 1 || sub == kWholeUnit) && dir.dreset_cx != nullptr) {
      const SlstmCarried found = state_gradients(carried, initial_carried<T, MODE>(dir, at, true, true));
#pragma unroll
      for (int i = 0; i < 3; ++i) dir.dreset_cx[at + i * dir.cell_stride] += found.of[i];
    }
    dh = 0;
    carried = {};
  } else {
    if (exists && sub <= 0 && dir.dreset_hx != nullptr) dir.dreset_hx[at] += MODE == PRNN_GRU ? dh + carried : dh;
    if (Cell<MODE>::kHasCellState && exists && (sub == 1 || sub == kWholeUnit) && dir.dreset_cx != nullptr) {
      dir.dreset_cx[at] += carried;
    }
    dh = carried = 0;
  }
}

// A GRU's derivatives with respect to h with the expectation of zoneout, from those without.
__device__ __forceinline__ UnitDerivatives zoned_out(UnitDerivatives d, float zoneout) {
#pragma unroll
  for (int g = 0; g < 4; ++g) d.gate[g] *= 1 - zoneout;
  d.carry = zoneout + (1 - zoneout) * d.carry;
  return d;
}

// Has the derivatives computed here, before the gradient arrives.
__device__ __forceinline__ void pin_derivatives(UnitDerivatives& d) {
#pragma unroll
  for (int g = 0; g < 4; ++g) pin_in_register(d.gate[g]);
  pin_in_register(d.state);
  pin_in_register(d.carry);
}
__device__ __forceinline__ void pin_derivatives(SlstmDerivatives& d) {
  pin_in_register(d.phi);
  pin_in_register(d.iota);
  pin_in_register(d.moved);
  pin_in_register(d.z);
  pin_in_register(d.o);
  pin_in_register(d.slope);
  pin_in_register(d.fresh);
}

// The gradients of a unit's gate sums, zeros unless `wanted`; see unit_gradients(). `state`: c of an LSTM; `before`: c
// (LSTM) or h (GRU) of the timestep before.
template <class T, prnnRNNMode_t MODE>
__device__ __forceinline__ void backward_unit(const Four<T>& gates, float state, float before, float dh, bool wanted,
                                              float& carried, float (&out)[4]) {
  float saved[4];
#pragma unroll
  for (int g = 0; g < 4; ++g) saved[g] = Element<T>::to_float(gates.value[g]);
  unit_gradients<MODE>(Cell<MODE>::template derivatives<digits_of<T, true>()>(saved, state, before), dh, carried, out);
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
// is free. A GRU's third and fourth are those of its candidate's bR and bW.
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
