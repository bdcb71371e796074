// The arithmetic of the cells on plain floats, forward and backward. Each cell is written here and nowhere else; the
// formulas are those of persistent_rnn.h. Kernels that have a unit in one thread use Cell directly; those that have a
// gate of a unit in each of four lanes use it through lanes.cuh.
//
// A unit has four gate values, in the order of ForwardDirection::gates:
//   LSTM  i, f, g, o
//   GRU   r, z, the candidate's R h + bR, the candidate's W x + bW
//   RNN   h alone
//   sLSTM i, log(sigmoid(f)) or f, tanh(z), sigmoid(o); saved are others, those of rnn/cpu/cells.h
// and carries from timestep to timestep: c (LSTM), h before rounding (GRU), SlstmCarried (sLSTM).
#pragma once

#include "persistent_rnn.h"
#include "rnn/cuda/common/activations.cuh"
#include "rnn/cuda/common/params.h"

namespace prnn {

// A unit's state after a timestep. `saved`: its gates' values for the backward pass.
template <class CARRIED>
struct UnitForwardOf {
  float h;
  CARRIED carried;
  float saved[4];
};
using UnitForward = UnitForwardOf<float>;

// The derivatives of a unit's gates, which do not depend on the incoming gradient: they are ready before it arrives.
// The gradient of gate g is `gate[g]` times dh, or times dc for an LSTM's i, f and g.
struct UnitDerivatives {
  float gate[4];
  float state;  // LSTM: of c with respect to h
  float carry;  // of what is carried to the timestep before
};

// Which of two cells of one mode: the activation of an RNN, the forget gate of an sLSTM.
template <prnnRNNMode_t MODE>
__device__ __forceinline__ int cell_kind(const ResidentSizes& sizes) {
  return MODE == PRNN_SLSTM ? sizes.exponential : sizes.relu;
}

// An sLSTM carries three numbers: forward c, n and m; backward, as rnn/cpu/cells.h has it, n dc, c dc + n dn and
// dm - c dc - n dn.
struct SlstmCarried {
  float of[3];
};

// An sLSTM's UnitDerivatives: the gradients follow from dh and what is carried as unit_gradients() says.
struct SlstmDerivatives {
  float phi, iota;  // f' n / n' and i' / n'
  float moved;      // of f and of i, with respect to n dc
  float z, o;       // of z with respect to n dc, and of o with respect to dh
  float state;      // of n dc with respect to dh
  float slope;      // of f
  float fresh;      // f' where n was 0, else 0
  float ratio;      // c / n
  bool keeps;       // m' = f + m
};

// No cell has this mode.
template <prnnRNNMode_t MODE>
struct Cell {
  static_assert(MODE != MODE, "no cell is written for this mode");
};

template <>
struct Cell<PRNN_LSTM> {
  using Carried = float;
  using Derivatives = UnitDerivatives;
  static constexpr int kGates = 4;             // of the weights, each [H, H]
  static constexpr int kSaved = 4;             // gate values saved for the backward pass
  static constexpr int kSavedAsActivated = 4;  // of them, the first ones that are the activated gates themselves
  static constexpr int kBiases = 4;            // sums for the bias gradients
  static constexpr bool kHasCellState = true;

  // A gate's value from the sum of its products and biases. `kind`: cell_kind().
  template <Digits DIGITS>
  static __device__ __forceinline__ float activate(float sum, int gate, int /*kind*/) {
    return squash<DIGITS>(sum, gate == 2);
  }

  template <Digits DIGITS>
  static __device__ __forceinline__ UnitForward forward(const float (&gate)[4], float c_before, int /*kind*/ = 0) {
    const float c = gate[1] * c_before + gate[0] * gate[2];
    return {gate[3] * hyperbolic_tangent<DIGITS>(c), c, {gate[0], gate[1], gate[2], gate[3]}};
  }

  // The number that `cells` keeps for the backward pass.
  static __device__ __forceinline__ float in_cells(float c) { return c; }

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
  using Carried = float;
  using Derivatives = UnitDerivatives;
  static constexpr int kGates = 3;
  static constexpr int kSaved = 4;
  static constexpr int kSavedAsActivated = 2;
  static constexpr int kBiases = 4;  // r, z, the candidate's bR, the candidate's bW
  static constexpr bool kHasCellState = false;

  template <Digits DIGITS>
  static __device__ __forceinline__ float activate(float sum, int gate, int /*kind*/) {
    const float value = sigmoid(sum);
    return gate >= 2 ? sum : value;
  }

  template <Digits DIGITS>
  static __device__ __forceinline__ UnitForward forward(const float (&gate)[4], float h_before, int /*kind*/ = 0) {
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

// With a sigmoid forget gate or an exponential one, as `kind` says.
template <>
struct Cell<PRNN_SLSTM> {
  using Carried = SlstmCarried;
  using Derivatives = SlstmDerivatives;
  static constexpr int kGates = 4;
  static constexpr int kSaved = 4;
  static constexpr int kSavedAsActivated = 0;
  static constexpr int kBiases = 4;
  static constexpr bool kHasCellState = true;

  template <Digits DIGITS>
  static __device__ __forceinline__ float activate(float sum, int gate, int is_exponential) {
    const float squashed = squash<DIGITS>(sum, gate == 2), logarithm = log_sigmoid<DIGITS>(sum);
    return gate >= 2 ? squashed : gate == 1 && !is_exponential ? logarithm : sum;
  }

  template <Digits DIGITS>
  static __device__ __forceinline__ UnitForwardOf<SlstmCarried> forward(const float (&gate)[4],
                                                                        const SlstmCarried& before,
                                                                        int is_exponential) {
    const auto [c_before, n_before, m_before] = before.of;
    const float kept = gate[1] + m_before;
    const bool is_new = n_before == 0, keeps = !is_new && kept > gate[0];
    const float m = keeps ? kept : gate[0];
    const float difference = kept - m, i = exponential(gate[0] - m), f = exponential(difference > 0 ? 0 : difference);
    const float c = f * c_before + i * gate[2], past = f * n_before, n = past + i;
    const float reciprocal = reciprocal_of(n), phi = past * reciprocal, iota = i * reciprocal;
    const float slope = is_exponential ? 1 : one_minus_exponential(gate[1]);
    return {gate[3] * (c * reciprocal),
            {c, n, m},
            {is_new       ? 2
             : phi < iota ? phi
                          : -iota,
             is_new  ? f
             : keeps ? -slope
                     : slope,
             gate[2], gate[3]}};
  }

  // c / n.
  static __device__ __forceinline__ float in_cells(const SlstmCarried& after) {
    return after.of[0] * reciprocal_of(after.of[1]);
  }

  // `state`, `before`: c / n of this timestep and of the one before.
  template <Digits DIGITS>
  static __device__ __forceinline__ SlstmDerivatives derivatives(const float (&saved)[4], float state, float before) {
    const float smaller = saved[0], slope = saved[1], z = saved[2], o = saved[3];
    const bool is_new = smaller > 1, is_iota = has_sign(smaller), keeps = has_sign(slope);
    const float phi = is_new ? 0 : is_iota ? 1 + smaller : smaller;
    const float iota = is_new ? 1 : is_iota ? -smaller : 1 - smaller;
    return {phi,
            iota,
            phi * iota * (before - z),
            iota * (1 - z * z),
            state * o * (1 - o),
            o,
            is_new ? 0 : fabsf(slope),
            is_new ? slope : 0,
            state,
            keeps};
  }

 private:
  // Also of -0.
  static __device__ __forceinline__ bool has_sign(float x) { return __float_as_uint(x) >> 31 != 0; }
  static __device__ __forceinline__ float reciprocal_of(float x) {
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(reciprocal) : "f"(x));
    return reciprocal;
  }
};

// tanh or relu, as `relu` says.
template <>
struct Cell<PRNN_RNN_TANH> {
  using Carried = float;
  using Derivatives = UnitDerivatives;
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

template <prnnRNNMode_t MODE>
using Carried = typename Cell<MODE>::Carried;

// The gradients of a unit's four gate sums from that of its h, for the gated cells. `carried` is the gradient of what
// the unit carries: on entry from the timestep after, on return for the one before. A GRU's third and fourth are with
// respect to R h + bR and W x + bW of its candidate.
template <prnnRNNMode_t MODE>
__device__ __forceinline__ void unit_gradients(const typename Cell<MODE>::Derivatives& d, float dh,
                                               Carried<MODE>& carried, float (&out)[4]) {
  if constexpr (MODE == PRNN_SLSTM) {
    const float ndc = carried.of[0] + dh * d.state, both = carried.of[1], dm = carried.of[2];
    const float moved = d.moved * ndc, past = d.phi * both + moved;
    out[0] = d.iota * both - moved + (d.keeps ? 0 : dm);
    out[1] = (past + (d.keeps ? dm : 0)) * d.slope;
    out[2] = ndc * d.z;
    out[3] = dh * d.o;
    carried = {(d.phi + d.fresh) * ndc, past + d.fresh * (both - ndc * d.ratio), d.keeps ? dm : 0};
  } else if constexpr (Cell<MODE>::kHasCellState) {
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
