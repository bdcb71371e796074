// The cells of cells.h on vectors. Included by one file an instruction set.
#pragma once

#include "core/cpu/vector_math.h"
#include "rnn/cpu/cells.h"
#include "rnn/cpu/layer_norm/kernels_impl.h"

namespace prnn {
namespace PRNN_ISA_NAMESPACE {

// Loads and stores of a vector of units, of which only `count` exist when kWhole is false.
template <class T, bool kWhole>
struct Lanes {
  int count;
  Vector<T> get(const T* p) const { return kWhole ? load(p) : load_part(p, count); }
  void put(T* p, Vector<T> v) const {
    if (kWhole) {
      store(p, v);
    } else {
      store_part(p, v, count);
    }
  }
};

// Calls step(lanes, sequence, offset of the vector in the block) for every vector of every sequence.
template <class T, class Step>
PRNN_INLINE void for_vectors(int64_t n, int64_t units, Step step) {
  constexpr int64_t W = Simd<T>::kWidth;
  if (units == 2 * W) {
    for (int64_t j = 0; j < n; ++j) {
      step(Lanes<T, true>{W}, j, int64_t{0});
      step(Lanes<T, true>{W}, j, W);
    }
    return;
  }
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t u = 0; u < units; u += W) {
      step(Lanes<T, false>{static_cast<int>(units - u < W ? units - u : W)}, j, u);
    }
  }
}

template <class T, bool kRelu>
PRNN_INLINE Vector<T> rnn_activation(Vector<T> x) {
  const Vector<T> zero = {};
  return kRelu ? (x < zero ? zero : x) : tanh<T>(x);
}

template <class T, bool kRelu>
void rnn_forward(const ForwardCell<T>& a) {
  constexpr int64_t W = kPanel<T>;
  for_vectors<T>(a.n, a.units, [&](auto lanes, int64_t j, int64_t u) __attribute__((always_inline)) {
    const Vector<T> x = lanes.get(a.gates + j * a.hidden + u) + load(a.product + j * W + u);
    lanes.put(a.h + j * a.ld_h + u, rnn_activation<T, kRelu>(x));
  });
}

template <class T>
void lstm_forward(const ForwardCell<T>& a) {
  constexpr int64_t W = kPanel<T>;
  const int64_t H = a.hidden;
  for_vectors<T>(a.n, a.units, [&](auto lanes, int64_t j, int64_t u) __attribute__((always_inline)) {
    T* gates = a.gates + j * 4 * H + u;
    const T* product = a.product + j * W + u;
    const Vector<T> i = sigmoid<T>(lanes.get(gates) + load(product));
    const Vector<T> f = sigmoid<T>(lanes.get(gates + H) + load(product + a.product_stride));
    const Vector<T> g = tanh<T>(lanes.get(gates + 2 * H) + load(product + 2 * a.product_stride));
    const Vector<T> o = sigmoid<T>(lanes.get(gates + 3 * H) + load(product + 3 * a.product_stride));
    const Vector<T> c = fma(f, lanes.get(a.c_prev + j * H + u), i * g);
    lanes.put(a.c + j * H + u, c);
    lanes.put(gates + 3 * H, o);
    if (a.keep) {
      lanes.put(gates, i);
      lanes.put(gates + H, f);
      lanes.put(gates + 2 * H, g);
    }
  });
  // In a loop of its own: one vector's whole chain, of two exponentials, is longer than what a processor looks ahead.
  for_vectors<T>(a.n, a.units, [&](auto lanes, int64_t j, int64_t u) __attribute__((always_inline)) {
    const Vector<T> o = lanes.get(a.gates + j * 4 * H + 3 * H + u);
    lanes.put(a.h + j * a.ld_h + u, o * tanh<T>(lanes.get(a.c + j * H + u)));
  });
}

template <class T>
void gru_forward(const ForwardCell<T>& a) {
  constexpr int64_t W = kPanel<T>;
  const int64_t H = a.hidden;
  for_vectors<T>(a.n, a.units, [&](auto lanes, int64_t j, int64_t u) __attribute__((always_inline)) {
    T* gates = a.gates + j * 3 * H + u;
    const T* product = a.product + j * W + u;
    const Vector<T> r = sigmoid<T>(lanes.get(gates) + load(product));
    const Vector<T> z = sigmoid<T>(lanes.get(gates + H) + load(product + a.product_stride));
    const Vector<T> candidate = load(product + 2 * a.product_stride) + lanes.get(a.recurrent_bias + u);
    const Vector<T> n = tanh<T>(fma(r, candidate, lanes.get(gates + 2 * H)));
    // (1 - z) n + z h, of which zoneout leaves its part.
    const Vector<T> before = lanes.get(a.h_prev + j * a.ld_h_prev + u), h = fma(z, before - n, n);
    lanes.put(a.h + j * a.ld_h + u, a.zoneout > 0 ? fma(broadcast(a.zoneout), before - h, h) : h);
    if (a.keep) {
      lanes.put(gates, r);
      lanes.put(gates + H, z);
      lanes.put(gates + 2 * H, n);
      lanes.put(a.candidate + j * H + u, candidate);
    }
  });
}

// SIGMOID: of the forget gate.
template <class T, bool SIGMOID>
void slstm_forward(const ForwardCell<T>& a) {
  constexpr int64_t W = kPanel<T>;
  constexpr T kTiny = std::numeric_limits<T>::min();
  const int64_t H = a.hidden, S = a.state_stride;
  for_vectors<T>(a.n, a.units, [&](auto lanes, int64_t j, int64_t u) __attribute__((always_inline)) {
    const Vector<T> zero = {}, one = broadcast(T(1)), tiny = broadcast(kTiny);
    T* gates = a.gates + j * 4 * H + u;
    const T* product = a.product + j * W + u;
    const T* before = a.c_prev + j * H + u;
    const Vector<T> i = lanes.get(gates) + load(product);
    const Vector<T> f = lanes.get(gates + H) + load(product + a.product_stride);
    const Vector<T> z = tanh<T>(lanes.get(gates + 2 * H) + load(product + 2 * a.product_stride));
    const Vector<T> o = sigmoid<T>(lanes.get(gates + 3 * H) + load(product + 3 * a.product_stride));
    const Vector<T> n_before = lanes.get(before + S);
    Vector<T> kept = f + lanes.get(before + 2 * S), slope = one;  // of f, in what is kept
    if (SIGMOID) {
      const Vector<T> far = exp_of_negative<T>(f < zero ? f : -f);  // exp(-|f|)
      kept = (f < zero ? f : zero) - log_of_one_plus<T>(far) + lanes.get(before + 2 * S);
      slope = (f < zero ? one : far) / (one + far);
    }
    const auto is_new = n_before == zero, keeps = kept > i;
    const Vector<T> m = is_new ? i : keeps ? kept : i;
    const Vector<T> i_new = exp_of_negative<T>(i - m), difference = kept - m;
    const Vector<T> f_new = exp_of_negative<T>(difference > zero ? zero : difference);
    const Vector<T> c = fma(f_new, lanes.get(before), i_new * z), past = f_new * n_before, n = past + i_new;
    const Vector<T> ratio = c / n;
    T* after = a.c + j * H + u;
    lanes.put(after, c);
    lanes.put(after + S, n);
    lanes.put(after + 2 * S, m);
    lanes.put(a.h + j * a.ld_h + u, o * ratio);
    if (a.keep) {
      const Vector<T> iota = i_new / n, phi = past / n, signed_slope = maximum(slope, tiny);
      const Vector<T> smaller = phi < iota ? phi : -maximum(iota, tiny);
      lanes.put(gates, is_new ? broadcast(T(2)) : smaller);
      lanes.put(gates + H, is_new ? f_new : keeps ? -signed_slope : signed_slope);
      lanes.put(gates + 2 * H, z);
      lanes.put(gates + 3 * H, o);
      lanes.put(a.ratio + j * H + u, ratio);
    }
  });
}

// The gradient that reaches h: its own and what the next timestep sends.
template <class T, class L>
PRNN_INLINE Vector<T> incoming(const BackwardCell<T>& a, L lanes, int64_t j, int64_t u) {
  const Vector<T> dy = lanes.get(a.dy + j * a.ld_dy + u);
  return a.dh == nullptr ? dy : dy + lanes.get(a.dh + j * a.ld_dh + u);
}

template <class T, bool kRelu>
void rnn_backward(const BackwardCell<T>& a) {
  for_vectors<T>(a.n, a.units, [&](auto lanes, int64_t j, int64_t u) __attribute__((always_inline)) {
    const Vector<T> dh = incoming<T>(a, lanes, j, u), h = lanes.get(a.h + j * a.ld_h + u);
    const Vector<T> zero = {}, one = broadcast(T(1));
    lanes.put(a.dgates + j * a.hidden + u, kRelu ? (h <= zero ? zero : dh) : dh * fma(-h, h, one));
  });
}

template <class T>
void lstm_backward(const BackwardCell<T>& a) {
  const int64_t H = a.hidden;
  for_vectors<T>(a.n, a.units, [&](auto lanes, int64_t j, int64_t u) __attribute__((always_inline)) {
    const Vector<T> one = broadcast(T(1));
    const T* gates = a.gates + j * 4 * H + u;
    const Vector<T> i = lanes.get(gates), f = lanes.get(gates + H), g = lanes.get(gates + 2 * H),
                    o = lanes.get(gates + 3 * H);
    const Vector<T> dh = incoming<T>(a, lanes, j, u), t = tanh<T>(lanes.get(a.c + j * H + u));
    const Vector<T> dc = fma(dh * o, fma(-t, t, one), lanes.get(a.carry + j * H + u));
    T* dgates = a.dgates + j * 4 * H + u;
    lanes.put(dgates, dc * g * (i * (one - i)));
    lanes.put(dgates + H, dc * lanes.get(a.c_prev + j * H + u) * (f * (one - f)));
    lanes.put(dgates + 2 * H, dc * i * fma(-g, g, one));
    lanes.put(dgates + 3 * H, dh * t * (o * (one - o)));
    lanes.put(a.carry + j * H + u, dc * f);
  });
}

template <class T>
void gru_backward(const BackwardCell<T>& a) {
  const int64_t H = a.hidden;
  for_vectors<T>(a.n, a.units, [&](auto lanes, int64_t j, int64_t u) __attribute__((always_inline)) {
    const Vector<T> one = broadcast(T(1));
    const T* gates = a.gates + j * 3 * H + u;
    const Vector<T> r = lanes.get(gates), z = lanes.get(gates + H), n = lanes.get(gates + 2 * H);
    Vector<T> dh = incoming<T>(a, lanes, j, u);
    if (a.has_carry) dh += lanes.get(a.carry + j * H + u);
    Vector<T> past = {};
    if (a.zoneout > 0) {
      past = dh * broadcast(a.zoneout);
      dh -= past;
    }
    const Vector<T> dn = dh * (one - z) * fma(-n, n, one);
    T* dgates = a.dgates + j * 3 * H + u;
    lanes.put(dgates, dn * lanes.get(a.candidate + j * H + u) * (r * (one - r)));
    lanes.put(dgates + H, dh * (lanes.get(a.h_prev + j * a.ld_h_prev + u) - n) * (z * (one - z)));
    lanes.put(dgates + 2 * H, dn * r);
    lanes.put(a.dcandidate + j * H + u, dn);
    lanes.put(a.carry + j * H + u, fma(dh, z, past));
  });
}

template <class T>
void slstm_backward(const BackwardCell<T>& a) {
  const int64_t H = a.hidden, S = a.state_stride;
  for_vectors<T>(a.n, a.units, [&](auto lanes, int64_t j, int64_t u) __attribute__((always_inline)) {
    const Vector<T> zero = {}, one = broadcast(T(1));
    const T* gates = a.gates + j * 4 * H + u;
    const Vector<T> smaller = lanes.get(gates), slope = lanes.get(gates + H), z = lanes.get(gates + 2 * H),
                    o = lanes.get(gates + 3 * H);
    const Vector<T> r = lanes.get(a.c + j * H + u), r_before = lanes.get(a.c_prev + j * H + u);
    const auto is_new = smaller > one, is_iota = smaller < zero, keeps = slope < zero;
    const Vector<T> phi = is_new ? zero : is_iota ? one + smaller : smaller;
    const Vector<T> iota = is_new ? one : is_iota ? -smaller : one - smaller;
    const Vector<T> dh = incoming<T>(a, lanes, j, u);
    T* carry = a.carry + j * H + u;
    const Vector<T> ndc = fma(dh, o, lanes.get(carry)), both = lanes.get(carry + S), dm = lanes.get(carry + 2 * S);
    const Vector<T> moved = phi * iota * ndc * (r_before - z), past = fma(phi, both, moved);
    const Vector<T> of_i = keeps ? zero : dm, of_f = dm - of_i;
    T* dgates = a.dgates + j * 4 * H + u;
    lanes.put(dgates, fma(iota, both, of_i) - moved);
    lanes.put(dgates + H, is_new ? zero : (past + of_f) * (keeps ? -slope : slope));
    lanes.put(dgates + 2 * H, ndc * iota * fma(-z, z, one));
    lanes.put(dgates + 3 * H, dh * r * (o * (one - o)));
    lanes.put(carry, (is_new ? slope : phi) * ndc);
    lanes.put(carry + S, is_new ? slope * (both - ndc * r) : past);
    lanes.put(carry + 2 * S, of_f);
  });
}

template <class T>
constexpr CellKernels<T> make_cell_kernels() {
  return {{&rnn_forward<T, true>, &rnn_forward<T, false>, &lstm_forward<T>, &gru_forward<T>, &slstm_forward<T, true>,
           &slstm_forward<T, false>},
          {&rnn_backward<T, true>, &rnn_backward<T, false>, &lstm_backward<T>, &gru_backward<T>, &slstm_backward<T>,
           &slstm_backward<T>},
          &layer_norm_lstm_forward<T>,
          &layer_norm_lstm_backward<T>};
}

inline constexpr CellTables kCellTables = {make_cell_kernels<float>(), make_cell_kernels<double>()};

}  // namespace PRNN_ISA_NAMESPACE
}  // namespace prnn
