// The arithmetic of the cells on plain floats, forward and backward. Each cell is written here and nowhere else; the
// formulas are those of persistent_rnn.h. Kernels that have a unit in one thread use Cell directly; those that have a
// gate of a unit in each of four lanes use it through lanes.cuh.
//
// A unit has four gate values, in the order of ForwardDirection::gates:
//   LSTM  i, f, g, o
//   GRU   r, z, the candidate's R h + bR, the candidate's W x + bW
//   RNN   h alone
// and carries one float from timestep to timestep: c (LSTM), h before rounding (GRU).
#pragma once

#include "persistent_rnn.h"
#include "rnn/cuda/common/activations.cuh"

namespace prnn {

// What a unit has after a timestep. `saved`: of its gates for the backward pass.
struct UnitForward {
  float h;
  float carried;
  float saved[4];
};

// The derivatives of a unit's gates, which do not depend on the incoming gradient: they are ready before it arrives.
// The gradient of gate g is `gate[g]` times dh, or times dc for an LSTM's i, f and g.
struct UnitDerivatives {
  float gate[4];
  float state;  // LSTM: of c with respect to h
  float carry;  // of what is carried to the timestep before
};

// No cell has this mode.
template <prnnRNNMode_t MODE>
struct Cell {
  static_assert(MODE != MODE, "no cell is written for this mode");
};

template <>
struct Cell<PRNN_LSTM> {
  static constexpr int kGates = 4;             // of the weights, each [H, H]
  static constexpr int kSaved = 4;             // gate values saved for the backward pass
  static constexpr int kSavedAsActivated = 4;  // of them, the first ones that are the activated gates themselves
  static constexpr int kBiases = 4;            // sums for the bias gradients
  static constexpr bool kHasCellState = true;

  // A gate's value from the sum of its products and biases. `relu` is for an RNN.
  template <Digits DIGITS>
  static __device__ __forceinline__ float activate(float sum, int gate, int /*relu*/) {
    return squash<DIGITS>(sum, gate == 2);
  }

  template <Digits DIGITS>
  static __device__ __forceinline__ UnitForward forward(const float (&gate)[4], float c_before) {
    const float c = gate[1] * c_before + gate[0] * gate[2];
    return {gate[3] * hyperbolic_tangent<DIGITS>(c), c, {gate[0], gate[1], gate[2], gate[3]}};
  }

  // `state`: c of this timestep; `before`: c of the one before.
  template <Digits DIGITS>
  static __device__ __forceinline__ UnitDerivatives derivatives(const float (&saved)[4], float state, float before) {
    const float i = saved[0], f = saved[1], g = saved[2], o = saved[3];
    const float squashed = hyperbolic_tangent<DIGITS>(state);
    return {{g * i * (1 - i), before * f * (1 - f), i * (1 - g * g), squashed * o * (1 - o)},
            o * (1 - squashed * squashed),
            f};
  }
};

template <>
struct Cell<PRNN_GRU> {
  static constexpr int kGates = 3;
  static constexpr int kSaved = 4;
  static constexpr int kSavedAsActivated = 2;
  static constexpr int kBiases = 4;  // r, z, the candidate's bR, the candidate's bW
  static constexpr bool kHasCellState = false;

  template <Digits DIGITS>
  static __device__ __forceinline__ float activate(float sum, int gate, int /*relu*/) {
    const float value = sigmoid(sum);
    return gate >= 2 ? sum : value;
  }

  template <Digits DIGITS>
  static __device__ __forceinline__ UnitForward forward(const float (&gate)[4], float h_before) {
    const float candidate = hyperbolic_tangent<DIGITS>(gate[3] + gate[0] * gate[2]);
    const float h = candidate + gate[1] * (h_before - candidate);
    return {h, h, {gate[0], gate[1], candidate, gate[2]}};
  }

  // `before`: h of the timestep before.
  template <Digits DIGITS>
  static __device__ __forceinline__ UnitDerivatives derivatives(const float (&saved)[4], float, float before) {
    const float r = saved[0], z = saved[1], candidate = saved[2], recurrent = saved[3];
    const float of_candidate = (1 - z) * (1 - candidate * candidate);
    return {
        {of_candidate * recurrent * r * (1 - r), (before - candidate) * z * (1 - z), of_candidate * r, of_candidate},
        0,
        z};
  }
};

// tanh or relu, as `relu` says.
template <>
struct Cell<PRNN_RNN_TANH> {
  static constexpr int kGates = 1;
  static constexpr int kSaved = 0;
  static constexpr int kSavedAsActivated = 0;
  static constexpr int kBiases = 1;
  static constexpr bool kHasCellState = false;

  template <Digits DIGITS>
  static __device__ __forceinline__ float activate(float sum, int /*gate*/, int relu) {
    return relu ? (sum < 0 ? 0 : sum) : hyperbolic_tangent<DIGITS>(sum);  // NaN stays NaN
  }

  // The gradient of the sum from that of h; without a table of derivatives, so that relu keeps NaN and 0 * inf apart.
  static __device__ __forceinline__ float gradient(float h, float dh, int relu) {
    return relu ? (h > 0 ? dh : (h <= 0 ? 0 : h)) : dh * (1 - h * h);
  }
};

// The gradients of a unit's four gate sums from that of its h, for the gated cells. `carried` is the gradient of what
// the unit carries: on entry from the timestep after, on return for the one before. A GRU's third and fourth are with
// respect to R h + bR and W x + bW of its candidate.
template <prnnRNNMode_t MODE>
__device__ __forceinline__ void unit_gradients(const UnitDerivatives& d, float dh, float& carried, float (&out)[4]) {
  if constexpr (Cell<MODE>::kHasCellState) {
    const float dc = carried + dh * d.state;
#pragma unroll
    for (int g = 0; g < 3; ++g) out[g] = dc * d.gate[g];
    out[3] = dh * d.gate[3];
    carried = dc * d.carry;
  } else {
    dh += carried;
#pragma unroll
    for (int g = 0; g < 4; ++g) out[g] = dh * d.gate[g];
    carried = dh * d.carry;
  }
}

}  // namespace prnn
