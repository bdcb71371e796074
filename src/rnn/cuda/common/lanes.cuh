// Units whose gates lie in different lanes: lanes 4 u .. 4 u + 3 of a warp have unit u, and `sub`, lane % 4, is the
// index of the lane's gate value in Cell's order. Each lane loads, activates, differentiates and stores its own value;
// the others come by shuffles. An RNN's unit has one value, whatever `sub`; its lane with `sub` 0 stores it.
#pragma once

#include "rnn/cuda/common/unit_io.cuh"
#include "rnn/cuda/common/unroll.cuh"

namespace prnn {

__device__ __forceinline__ float sum_over_subs(float value) {
  value += __shfl_xor_sync(kWholeWarp, value, 1);
  return value + __shfl_xor_sync(kWholeWarp, value, 2);
}

// ---- forward ----

// The lane's gate value from its row's product, its input product and its bias. HAS_INPUT_PRODUCT: lane 3 of a GRU has
// a product of its own, W x of the candidate; else its `product` is ignored.
template <prnnRNNMode_t MODE, Digits DIGITS, bool HAS_INPUT_PRODUCT = false>
__device__ __forceinline__ float lane_gate(float product, float input, float bias, int sub, int kind) {
  if constexpr (MODE == PRNN_GRU) {
    product = !HAS_INPUT_PRODUCT && sub == 3 ? 0 : product;
    input = sub == 2 ? 0 : input;
  }
  return Cell<MODE>::template activate<DIGITS>(product + input + bias, sub, kind);
}

// A lane's state after a timestep. `saved`: its unit's gates' values for the backward pass.
template <class CARRIED>
struct LaneForwardOf {
  float h;
  CARRIED carried;
  float saved;
};
using LaneForward = LaneForwardOf<float>;

template <prnnRNNMode_t MODE, Digits DIGITS>
__device__ __forceinline__ LaneForwardOf<Carried<MODE>> lanes_forward(float own, const Carried<MODE>& carried, int sub,
                                                                      int kind = 0) {
  float gate[4];
#pragma unroll
  for (int g = 0; g < 4; ++g) gate[g] = __shfl_sync(kWholeWarp, own, g, 4);
  const UnitForwardOf<Carried<MODE>> unit = Cell<MODE>::template forward<DIGITS>(gate, carried, kind);
  float saved = own;
#pragma unroll
  for (int g = Cell<MODE>::kSavedAsActivated; g < 4; ++g) saved = sub == g ? unit.saved[g] : saved;
  return {unit.h, unit.carried, saved};
}

// The lane's gate value where an LSTM's h may stay. `input`: its input product.
template <prnnRNNMode_t MODE, bool EXTRAS>
__device__ __forceinline__ float mark_gate(const StateMasks& masks, float gate, float input, int sub) {
  return kCarriesH<MODE, EXTRAS> && sub == 3 && stays(masks, input) ? kStayed : gate;
}

template <prnnRNNMode_t MODE, bool EXTRAS>
__device__ __forceinline__ void zone_out(const StateMasks& masks, float h_before, LaneForward& unit) {
  const bool h_stays = kCarriesH<MODE, EXTRAS> && has_stayed(__shfl_sync(kWholeWarp, unit.saved, 3, 4));
  zone_out<MODE, EXTRAS>(masks, h_before, h_stays, unit);
}

// Stores y and what the backward pass needs, at element `at` of [rows, H].
template <class T, prnnRNNMode_t MODE>
__device__ __forceinline__ void store_lane_outputs(const ForwardDirection& dir, int64_t y_at, int64_t at,
                                                   const LaneForwardOf<Carried<MODE>>& lane, int sub) {
  if (sub == 0) store_float<T>(dir.y, y_at, lane.h);
  if (gate_count(MODE) > 1 && dir.gates != nullptr) {
    store_float<T>(dir.gates, at * 4 + sub, lane.saved);
    if constexpr (Cell<MODE>::kHasCellState) {
      if (sub == 1) store_float<T>(dir.cells, at, Cell<MODE>::in_cells(lane.carried));
    }
  }
}

// ---- backward ----

// A lane's share of the values that the forward pass saved. With gates: gate value `sub`, and one of dy (lane 0), c
// (LSTM, lane 1), c (LSTM) or h (GRU) of the timestep before (lane kBeforeLane), and dcells (LSTM, lane 3). Without: h,
// and dy. An sLSTM has c / n in place of c.
template <class T>
struct LaneSaved {
  T own, other;
};

template <prnnRNNMode_t MODE>
constexpr int kBeforeLane = Cell<MODE>::kHasCellState ? 2 : 1;

// Loads that of unit `u` in row `row`, without a branch, so that no load waits for another. The state before lies in
// `row_before`, or, where that timestep does not exist, at element `initial_at` of the initial state. HAS_EXTRAS: the
// kernel takes dcells.
template <class T, prnnRNNMode_t MODE, bool HAS_EXTRAS = false>
__device__ __forceinline__ LaneSaved<T> load_lane_saved(const BackwardDirection& dir, int hidden, int y_row, int u,
                                                        int64_t row, bool has_before, int64_t row_before,
                                                        int64_t initial_at, int sub) {
  const int64_t y_at = row * y_row + u, at = row * hidden + u;
  const T* const dy = static_cast<const T*>(dir.dy) + y_at;
  if constexpr (gate_count(MODE) == 1) {
    return {static_cast<const T*>(dir.y)[y_at], __ldcs(dy)};
  } else {
    constexpr bool kHasCellState = Cell<MODE>::kHasCellState;
    const T* const before = state_before<T, MODE>(dir, hidden, y_row, u, has_before, row_before, initial_at);
    const bool is_of_cell = HAS_EXTRAS && kHasCellState && sub == 3 && dir.dcells != nullptr;
    const T* const gradient = is_of_cell ? static_cast<const T*>(dir.dcells) + y_at : dy;
    const T* const other = sub == kBeforeLane<MODE>    ? before
                           : kHasCellState && sub == 1 ? static_cast<const T*>(dir.cells) + at
                                                       : gradient;
    LaneSaved<T> saved = {__ldcs(static_cast<const T*>(dir.gates) + at * 4 + sub), *other};
    if constexpr (MODE == PRNN_SLSTM) {  // at the sequence's end, and beyond it
      if (!has_before && sub == kBeforeLane<MODE>) saved.other = initial_ratio<T>(dir, initial_at, false);
    }
    return saved;
  }
}

// Where the sequence starts anew with this timestep: the state before is that of reset_cx (LSTM) or reset_hx (GRU), at
// `at` of [N, H]. For the lane that has it, where the unit exists.
template <class T, prnnRNNMode_t MODE>
__device__ __forceinline__ void load_reset_state(const BackwardDirection& dir, int64_t at, bool exists, int sub,
                                                 LaneSaved<T>& lane) {
  const T* const states = reset_states<T, MODE>(dir);
  if (gate_count(MODE) == 1 || !exists || sub != kBeforeLane<MODE> || states == nullptr) return;
  if constexpr (MODE == PRNN_SLSTM) {
    lane.other = initial_ratio<T>(dir, at, true);
  } else {
    lane.other = states[at];
  }
}

// Whether a timestep has a state before that is not zero.
template <class T, prnnRNNMode_t MODE>
__device__ __forceinline__ bool has_state_before(const BackwardDirection& dir, bool continues, bool starts_anew) {
  if (starts_anew) return reset_states<T, MODE>(dir) != nullptr;
  return continues || initial_states<T, MODE>(dir) != nullptr;
}

// The gradient of the lane's gate sum from that of h; `carried` as for unit_gradients().
template <prnnRNNMode_t MODE>
__device__ __forceinline__ float lane_gradient(const typename Cell<MODE>::Derivatives& d, float dh,
                                               Carried<MODE>& carried, int sub) {
  if constexpr (MODE == PRNN_SLSTM) {
    float out[4];
    unit_gradients<MODE>(d, dh, carried, out);
    return sub == 0 ? out[0] : sub == 1 ? out[1] : sub == 2 ? out[2] : out[3];
  } else {
    const float gate = sub == 0 ? d.gate[0] : sub == 1 ? d.gate[1] : sub == 2 ? d.gate[2] : d.gate[3];
    const float through = Cell<MODE>::kHasCellState ? carried + dh * d.state : carried + dh;
    carried = through * d.carry;
    return (Cell<MODE>::kHasCellState && sub == 3 ? dh : through) * gate;
  }
}

// The values that a gated unit's lanes loaded: its gate values, and c (LSTM) and the state before.
template <prnnRNNMode_t MODE>
__device__ __forceinline__ void gather_saved(float own, float other, float (&saved)[4], float& state, float& before) {
#pragma unroll
  for (int g = 0; g < 4; ++g) saved[g] = __shfl_sync(kWholeWarp, own, g, 4);
  state = Cell<MODE>::kHasCellState ? __shfl_sync(kWholeWarp, other, 1, 4) : 0;
  before = __shfl_sync(kWholeWarp, other, kBeforeLane<MODE>, 4);
}

// The derivatives from what the lanes loaded, for the gated cells: those of lane_gradient() that need no incoming
// gradient. `has_before`: the state before is not zero.
template <prnnRNNMode_t MODE, Digits DIGITS>
__device__ __forceinline__ UnitDerivatives lanes_derivatives(float own, float other, bool has_before, int sub) {
  float saved[4], state, before;
  gather_saved<MODE>(own, other, saved, state, before);
  UnitDerivatives d = Cell<MODE>::template derivatives<DIGITS>(saved, state, has_before ? before : 0);
  const float gate = sub == 0 ? d.gate[0] : sub == 1 ? d.gate[1] : sub == 2 ? d.gate[2] : d.gate[3];
  for (float& each : d.gate) each = gate;  // the lane's alone takes a register
  return d;
}

// Computes as lane_gradient() does, from the values that the lanes loaded. `dh` is without dy; `has_before`: the state
// before is not zero; `has_dcells`: lane 3 has some. EXTRAS: with `masks`, and of an LSTM `past`, the gradient of the h
// before that does not go through the matrix.
template <prnnRNNMode_t MODE, Digits DIGITS, bool EXTRAS = false>
__device__ __forceinline__ float lanes_backward(float own, float other, bool has_before, float dh,
                                                Carried<MODE>& carried, int sub, int relu, bool has_dcells = false,
                                                const StateMasks* masks = nullptr, float* past = nullptr) {
  if constexpr (gate_count(MODE) == 1) {
    return Cell<MODE>::gradient(own, dh + other, relu);
  } else {
    float saved[4], state, before;
    gather_saved<MODE>(own, other, saved, state, before);
    dh += __shfl_sync(kWholeWarp, other, 0, 4);
    if constexpr (MODE == PRNN_LSTM) {
      if (has_dcells) carried += __shfl_sync(kWholeWarp, other, 3, 4);
    }
    typename Cell<MODE>::Derivatives derivatives =
        Cell<MODE>::template derivatives<DIGITS>(saved, state, has_before ? before : 0);
    if constexpr (kCarriesH<MODE, EXTRAS>) {
      split_gradient(*masks, saved[3], dh, *past);
    } else if constexpr (kZonesOut<MODE, EXTRAS>) {
      derivatives = zoned_out(derivatives, masks->zoneout);
    }
    return lane_gradient<MODE>(derivatives, dh, carried, sub);
  }
}

// Adds a block's bias gradients, over the sequences of its replica, to those of earlier timesteps, and begins new sums.
// `lane_sums`: [tiles][warps][ROUNDS][32], of each lane; index_of(unit of the block, bias) is a lane's index in
// [ROUNDS][32]. `replica_sums`: [biases, H].
template <prnnRNNMode_t MODE, int UNITS, int ROUNDS, class IndexOf>
__device__ __forceinline__ void add_bias_gradients(float* lane_sums, int tiles, float* replica_sums, int first_unit,
                                                   int hidden, bool is_first, const IndexOf& index_of) {
#pragma unroll 1
  for (int i = pin_in_register(threadIdx.x); i < Cell<MODE>::kBiases * UNITS; i += kResidentThreads) {
    const int own = i % UNITS, bias = i / UNITS, from = index_of(own, bias);
    if (first_unit + own >= hidden) continue;
    float* const to = replica_sums + (bias * hidden + first_unit + own);
    float sum = 0;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      float of_tile = 0;
      for (int w = 0; w < kResidentWarps; ++w) {
        float& value = lane_sums[(tile * kResidentWarps + w) * ROUNDS * 32 + from];
        of_tile += value;
        value = 0;
      }
      sum += of_tile;
    }
    *to = is_first ? sum : *to + sum;
  }
}

}  // namespace prnn
