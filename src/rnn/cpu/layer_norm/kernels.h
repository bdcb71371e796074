// A timestep of one sequence of an LSTM with layer normalisation, without its matrix product, for one instruction set;
// prnnSetRNNNormalization has the formulas. "{H}" gives a pointer's dimensions.
#pragma once

#include <cstdint>

namespace prnn {

// The parameters that both passes read.
template <class T>
struct LayerNormLstmCell {
  int64_t hidden;
  bool products;    // PRNN_NORMALIZE_PRODUCTS
  bool normalizes;  // not PRNN_NORMALIZE_NONE, which is as GATES with LN(v) = v, gains of 1 and biases of 0
  T epsilon;
  T zoneout;              // where there is no mask
  const T* gate_gain;     // {4, H}; this and the next three: not looked at unless `normalizes`
  const T* gate_bias;     // {4, H}
  const T* cell_gain;     // {H}
  const T* cell_bias;     // {H}
  const T* x;             // {4, H}
  const T* zoneout_mask;  // {H} or NULL
  const T* c_prev;        // {H}
};

// The arrays that forward keeps for backward.
template <class T>
struct LayerNormLstmKept {
  T* gates;       // {4, H}: LN(a)
  T* cell;        // {H}: LN(c')
  T* c;           // {H}: c_t
  T* deviations;  // {2}: what LN divided by, the reciprocals: of a, of c'
};

template <class T>
struct LayerNormLstmForwardStep : LayerNormLstmCell<T> {
  const T* product;  // {4, H}: R (m * h_{t-1})
  const T* h_prev;   // {H}
  LayerNormLstmKept<T> kept;
  T* h;  // {H}
};

template <class T>
struct LayerNormLstmBackwardStep : LayerNormLstmCell<T> {
  LayerNormLstmKept<T> kept;
  const T* dy;              // {H}
  const T* product;         // {H}: R' da of the timestep after, or NULL: that was the last one
  const T* recurrent_mask;  // {H} or NULL
  T* direct;                // {H}: in, the gradient of h that went past the matrix; out, that of h_{t-1}
  T* dc;                    // {H}: in, the gradient of c_t; out, that of c_{t-1}
  T* dx;                    // {4, H}
  T* da;                    // {4, H}; may be dx where `products` is not set
  T* scratch;               // {2 H}
  T* sums;                  // {kLayerNormLstmParameterRows, H}: added to
};

}  // namespace prnn
