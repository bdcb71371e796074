// The kernels of kernels.h on vectors. Included by one file an instruction set.
#pragma once

#include <cmath>

#include "core/cpu/vector_math.h"
#include "rnn/cpu/layer_norm/kernels.h"

namespace prnn {
namespace PRNN_ISA_NAMESPACE {

// Calls step(offset, lanes) for every vector of a row of `count` elements.
template <class T, class Step>
PRNN_INLINE void for_row(int64_t count, Step step) {
  constexpr int64_t W = Simd<T>::kWidth;
  int64_t u = 0;
  for (; u + W <= count; u += W) step(u, static_cast<int>(W));
  if (u < count) step(u, static_cast<int>(count - u));
}

template <class T>
PRNN_INLINE Vector<T> get(const T* p, int lanes) {
  return lanes == Simd<T>::kWidth ? load(p) : load_part(p, lanes);
}

template <class T>
PRNN_INLINE void put(T* p, Vector<T> v, int lanes) {
  if (lanes == Simd<T>::kWidth) {
    store(p, v);
  } else {
    store_part(p, v, lanes);
  }
}

// Zeros from lane `lanes` on.
template <class T>
PRNN_INLINE Vector<T> first_lanes(Vector<T> v, int lanes) {
  if (lanes < Simd<T>::kWidth) {
    T buffer[Simd<T>::kWidth];
    store(buffer, v);
    v = load_part(buffer, lanes);
  }
  return v;
}

template <class T>
PRNN_INLINE T sum_of(Vector<T> v) {
  T lanes[Simd<T>::kWidth], sum = 0;
  store(lanes, v);
  for (T lane : lanes) sum += lane;
  return sum;
}

// Replaces `count` elements by (v - mean) / sqrt(variance + epsilon); returns the reciprocal of that root. The variance
// is summed around the mean, so that a large mean costs no digits.
template <class T>
PRNN_INLINE T normalize(T* values, int64_t count, T epsilon) {
  Vector<T> sum = {}, squares = {};
  for_row<T>(count, [&](int64_t u, int lanes) __attribute__((always_inline)) { sum += get(values + u, lanes); });
  const T mean = sum_of<T>(sum) / static_cast<T>(count);
  for_row<T>(count, [&](int64_t u, int lanes) __attribute__((always_inline)) {
    const Vector<T> centered = first_lanes<T>(get(values + u, lanes) - broadcast(mean), lanes);
    squares = fma(centered, centered, squares);
  });
  const T deviation = 1 / std::sqrt(sum_of<T>(squares) / static_cast<T>(count) + epsilon);
  for_row<T>(count, [&](int64_t u, int lanes) __attribute__((always_inline)) {
    put(values + u, (get(values + u, lanes) - broadcast(mean)) * broadcast(deviation), lanes);
  });
  return deviation;
}

// u of gate g at unit offset `at`, from LN(a).
template <class T>
PRNN_INLINE Vector<T> gate_sum(const LayerNormLstmCell<T>& cell, const T* normalized, int64_t at, int lanes) {
  if (!cell.normalizes) return get(normalized + at, lanes);
  const Vector<T> scaled =
      fma(get(cell.gate_gain + at, lanes), get(normalized + at, lanes), get(cell.gate_bias + at, lanes));
  return cell.products ? scaled + get(cell.x + at, lanes) : scaled;
}

// v at unit offset u, from LN(c').
template <class T>
PRNN_INLINE Vector<T> cell_sum(const LayerNormLstmCell<T>& cell, const T* normalized, int64_t u, int lanes) {
  const Vector<T> value = get(normalized + u, lanes);
  if (!cell.normalizes) return value;
  return fma(get(cell.cell_gain + u, lanes), value, get(cell.cell_bias + u, lanes));
}

template <class T>
PRNN_INLINE Vector<T> zoneout_of(const LayerNormLstmCell<T>& cell, int64_t u, int lanes) {
  return cell.zoneout_mask != nullptr ? get(cell.zoneout_mask + u, lanes) : broadcast(cell.zoneout);
}

template <class T>
void layer_norm_lstm_forward(const LayerNormLstmForwardStep<T>& a) {
  const int64_t H = a.hidden;
  const LayerNormLstmKept<T>& kept = a.kept;
  for_row<T>(4 * H, [&](int64_t at, int lanes) __attribute__((always_inline)) {
    const Vector<T> product = get(a.product + at, lanes);
    put(kept.gates + at, a.products ? product : product + get(a.x + at, lanes), lanes);
  });
  kept.deviations[0] = a.normalizes ? normalize(kept.gates, 4 * H, a.epsilon) : 1;
  for_row<T>(H, [&](int64_t u, int lanes) __attribute__((always_inline)) {
    const Vector<T> i = sigmoid<T>(gate_sum<T>(a, kept.gates, u, lanes));
    const Vector<T> f = sigmoid<T>(gate_sum<T>(a, kept.gates, H + u, lanes));
    const Vector<T> g = tanh<T>(gate_sum<T>(a, kept.gates, 2 * H + u, lanes));
    const Vector<T> c = fma(f, get(a.c_prev + u, lanes), i * g);
    put(kept.cell + u, c, lanes);
    if (a.products) put(kept.c + u, c, lanes);
  });
  kept.deviations[1] = a.normalizes ? normalize(kept.cell, H, a.epsilon) : 1;
  const bool zones = a.zoneout_mask != nullptr || a.zoneout != 0;
  for_row<T>(H, [&](int64_t u, int lanes) __attribute__((always_inline)) {
    const Vector<T> v = cell_sum<T>(a, kept.cell, u, lanes);
    if (!a.products) put(kept.c + u, v, lanes);
    Vector<T> h = sigmoid<T>(gate_sum<T>(a, kept.gates, 3 * H + u, lanes)) * tanh<T>(v);
    if (zones) {  // no h - h_prev, whose rounding would change an h that is kept
      const Vector<T> z = zoneout_of<T>(a, u, lanes);
      h = fma(z, get(a.h_prev + u, lanes), fma(-z, h, h));
    }
    put(a.h + u, h, lanes);
  });
}

template <class T>
PRNN_INLINE void add_to(T* sums, Vector<T> v, int lanes) {
  put(sums, get(sums, lanes) + v, lanes);
}

// The gradient of v from that of gain * LN(v) + bias: deviation * (w - mean(w) - LN(v) mean(w * LN(v))), w = gain *
// gradient. `sum` and `dot` are those of w and of w * LN(v).
template <class T>
PRNN_INLINE Vector<T> normalize_backward(Vector<T> w, Vector<T> normalized, T mean, T dot_mean, T deviation) {
  return (w - broadcast(mean) - normalized * broadcast(dot_mean)) * broadcast(deviation);
}

template <class T>
void layer_norm_lstm_backward(const LayerNormLstmBackwardStep<T>& a) {
  const int64_t H = a.hidden;
  const LayerNormLstmKept<T>& kept = a.kept;
  const Vector<T> one = broadcast(T(1));
  const T deviation = kept.deviations[0], cell_deviation = kept.deviations[1];
  const bool zones = a.zoneout_mask != nullptr || a.zoneout != 0;
  T* const dgates = a.dx;                              // of u: dx itself where x is added to it
  T *const dv = a.scratch, *const dh = a.scratch + H;  // of v and, without zoneout's share, of h

  Vector<T> sum = {}, dot = {};
  for_row<T>(H, [&](int64_t u, int lanes) __attribute__((always_inline)) {
    Vector<T> gradient = get(a.dy + u, lanes) + get(a.direct + u, lanes);
    if (a.product != nullptr) {
      const Vector<T> product = get(a.product + u, lanes);
      gradient += a.recurrent_mask != nullptr ? product * get(a.recurrent_mask + u, lanes) : product;
    }
    Vector<T> past = {};
    if (zones) {
      past = zoneout_of<T>(a, u, lanes) * gradient;
      gradient -= past;
    }
    put(a.direct + u, past, lanes);
    put(dh + u, gradient, lanes);
    const Vector<T> squashed = tanh<T>(cell_sum<T>(a, kept.cell, u, lanes));
    const Vector<T> o = sigmoid<T>(gate_sum<T>(a, kept.gates, 3 * H + u, lanes));
    Vector<T> of_v = gradient * o * fma(-squashed, squashed, one);
    if (!a.products) of_v += get(a.dc + u, lanes);
    put(dv + u, of_v, lanes);
    if (a.normalizes) {
      const Vector<T> cell = get(kept.cell + u, lanes);
      add_to<T>(a.sums + 8 * H + u, of_v * cell, lanes);
      add_to<T>(a.sums + 9 * H + u, of_v, lanes);
      const Vector<T> w = first_lanes<T>(get(a.cell_gain + u, lanes) * of_v, lanes);
      sum += w;
      dot = fma(w, cell, dot);
    }
    put(dgates + 3 * H + u, gradient * squashed * (o * (one - o)), lanes);
  });
  const T cell_mean = sum_of<T>(sum) / static_cast<T>(H), cell_dot = sum_of<T>(dot) / static_cast<T>(H);

  for_row<T>(H, [&](int64_t u, int lanes) __attribute__((always_inline)) {
    Vector<T> dc = get(dv + u, lanes);
    if (a.normalizes) {
      const Vector<T> w = get(a.cell_gain + u, lanes) * dc;
      dc = normalize_backward<T>(w, get(kept.cell + u, lanes), cell_mean, cell_dot, cell_deviation);
    }
    if (a.products) dc += get(a.dc + u, lanes);
    const Vector<T> i = sigmoid<T>(gate_sum<T>(a, kept.gates, u, lanes));
    const Vector<T> f = sigmoid<T>(gate_sum<T>(a, kept.gates, H + u, lanes));
    const Vector<T> g = tanh<T>(gate_sum<T>(a, kept.gates, 2 * H + u, lanes));
    put(dgates + u, dc * g * (i * (one - i)), lanes);
    put(dgates + H + u, dc * get(a.c_prev + u, lanes) * (f * (one - f)), lanes);
    put(dgates + 2 * H + u, dc * i * fma(-g, g, one), lanes);
    put(a.dc + u, dc * f, lanes);
  });

  if (!a.normalizes) return;  // da is dx
  sum = dot = Vector<T>{};
  for_row<T>(4 * H, [&](int64_t at, int lanes) __attribute__((always_inline)) {
    const Vector<T> du = get(dgates + at, lanes), normalized = get(kept.gates + at, lanes);
    add_to<T>(a.sums + at, du * normalized, lanes);
    add_to<T>(a.sums + 4 * H + at, du, lanes);
    const Vector<T> w = first_lanes<T>(get(a.gate_gain + at, lanes) * du, lanes);
    sum += w;
    dot = fma(w, normalized, dot);
  });
  const T count = static_cast<T>(4 * H), mean = sum_of<T>(sum) / count, dot_mean = sum_of<T>(dot) / count;
  for_row<T>(4 * H, [&](int64_t at, int lanes) __attribute__((always_inline)) {
    const Vector<T> w = get(a.gate_gain + at, lanes) * get(dgates + at, lanes);
    put(a.da + at, normalize_backward<T>(w, get(kept.gates + at, lanes), mean, dot_mean, deviation), lanes);
  });
}

}  // namespace PRNN_ISA_NAMESPACE
}  // namespace prnn
