// The source of every set of LossKernels: included by one file per instruction set, which compiles it with its own
// flags. Everything is in an unnamed namespace, so that the linker cannot swap one set's functions for another's.
//
// Vectors are GCC's: 32 bytes, which the compiler splits where registers are narrower. A partial vector at the end of
// an array is filled up with a value that leaves the result alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "core/cpu/loss_kernels.h"

namespace prnn {
namespace {

template <class T>
struct Simd;
template <>
struct Simd<float> {
  typedef float Vector __attribute__((vector_size(32)));
  typedef uint32_t Bits __attribute__((vector_size(32)));
  static constexpr int kLanes = 8;
};
template <>
struct Simd<double> {
  typedef double Vector __attribute__((vector_size(32)));
  typedef uint64_t Bits __attribute__((vector_size(32)));
  static constexpr int kLanes = 4;
};
using Floats = Simd<float>::Vector;
using Doubles = Simd<double>::Vector;

template <class T>
constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();

template <class T>
typename Simd<T>::Vector load(const T* from) {
  typename Simd<T>::Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

// The first `count` lanes, fewer than all. Not by way of memory where that can be had: a vector that is loaded right
// after a part of it was stored waits for the store.
#if defined(__AVX2__)
inline Floats load_first(const float* from, int64_t count, float fill) {
  const __m256i wanted =
      _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  return _mm256_blendv_ps(_mm256_set1_ps(fill), _mm256_maskload_ps(from, wanted), _mm256_castsi256_ps(wanted));
}
inline Doubles load_first(const double* from, int64_t count, double fill) {
  const __m256i wanted = _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3));
  return _mm256_blendv_pd(_mm256_set1_pd(fill), _mm256_maskload_pd(from, wanted), _mm256_castsi256_pd(wanted));
}
#else
template <class T>
typename Simd<T>::Vector load_first(const T* from, int64_t count, T fill) {
  typename Simd<T>::Vector v = typename Simd<T>::Vector{} + fill;
  std::memcpy(&v, from, static_cast<size_t>(count) * sizeof(T));
  return v;
}
#endif

template <class T>
void store(T* to, typename Simd<T>::Vector v) {
  std::memcpy(to, &v, sizeof v);
}

template <class T>
void store_first(T* to, int64_t count, typename Simd<T>::Vector v) {
  T lanes[Simd<T>::kLanes];
  std::memcpy(lanes, &v, sizeof v);
  const T* from = lanes;
  for (const int piece : {4, 2, 1}) {  // of constant sizes, which are moves and no calls
    if ((count & piece) == 0) continue;
    std::memcpy(to, from, static_cast<size_t>(piece) * sizeof(T));
    from += piece;
    to += piece;
  }
}

// a * b + c
#if defined(__AVX2__)
inline Floats fused(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Doubles fused(Doubles a, Doubles b, Doubles c) { return _mm256_fmadd_pd(a, b, c); }
#else
inline Floats fused(Floats a, Floats b, Floats c) { return a * b + c; }
inline Doubles fused(Doubles a, Doubles b, Doubles c) { return a * b + c; }
#endif

// The polynomial of these coefficients, an even number and the highest first. Its even and its odd powers are sums of
// their own, side by side: sums over few paths wait for the length of such chains.
template <class Vector, class T, int N>
Vector polynomial(Vector x, const T (&coefficients)[N]) {
  const Vector square = x * x;
  Vector odd = Vector{} + coefficients[0], even = Vector{} + coefficients[1];
  for (int i = 2; i < N; i += 2) {
    odd = fused(odd, square, Vector{} + coefficients[i]);
    even = fused(even, square, Vector{} + coefficients[i + 1]);
  }
  return fused(odd, x, even);
}

// exp(x) for x up to 80: range reduction to |r| <= log(2) / 2 and a polynomial; below the smallest normal number, 0.
// Adding 1.5 * 2^mantissa rounds to an integer and leaves it in the low bits. NaN stays NaN.
inline Floats exponential(Floats x) {
  const Floats shifted = fused(x, Floats{} + 1.44269504f, Floats{} + 12582912.0f);
  const Floats n = shifted - 12582912.0f;
  Floats r = fused(n, Floats{} - 0.693359375f, x);  // log(2) in two parts, the first with zeros at its end
  r = fused(n, Floats{} + 2.12194440e-4f, r);
  const Floats p = polynomial(r, {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f});
  const auto power = ((Simd<float>::Bits)shifted << 23) + (UINT32_C(127) << 23);
  const Floats result = p * (Floats)power;
  return x < -87.0f ? Floats{} : result;
}

inline Doubles exponential(Doubles x) {
  const Doubles shifted = fused(x, Doubles{} + 1.4426950408889634074, Doubles{} + 6755399441055744.0);
  const Doubles n = shifted - 6755399441055744.0;
  Doubles r = fused(n, Doubles{} - 6.93145751953125e-1, x);
  r = fused(n, Doubles{} - 1.42860682030941723212e-6, r);
  const Doubles p = polynomial(r, {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
                                   1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0});
  const auto power = ((Simd<double>::Bits)shifted << 52) + (UINT64_C(1023) << 52);
  const Doubles result = p * (Doubles)power;
  return x < -708.0 ? Doubles{} : result;
}

// log(y) for 1 <= y < 4, absolute error about 1e-16: 2 artanh((y - 1) / (y + 1)) after division by 1, 2 or 4.
inline Doubles logarithm(Doubles y) {
  const Doubles zero{};
  const Doubles scale = y > 2.8284271247461903 ? zero + 0.25 : (y > 1.4142135623730951 ? zero + 0.5 : zero + 1.0);
  const Doubles shift =
      y > 2.8284271247461903 ? zero + 1.3862943611198906 : (y > 1.4142135623730951 ? zero + 0.69314718055994531 : zero);
  y *= scale;
  const Doubles s = (y - 1.0) / (y + 1.0);
  const Doubles s2 = s * s;
  const Doubles p = polynomial(
      s2, {0.0, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1.0});
  return fused(2.0 * s, p, shift);
}

// log(exp(a) + exp(b)). Equal arguments, both minus infinity among them, give a + log(2); a NaN gives NaN.
inline Doubles log_add(Doubles a, Doubles b) {
  const Doubles high = a > b ? a : b;
  const Doubles low = a > b ? b : a;
  const Doubles difference = low == high ? Doubles{} : low - high;
  return high + logarithm(1.0 + exponential(difference));
}

inline Doubles log_add(Doubles a, Doubles b, Doubles c) {
  const Doubles high2 = a > b ? a : b;
  const Doubles low2 = a > b ? b : a;
  const Doubles high = high2 > c ? high2 : c;
  const Doubles other = high2 > c ? c : high2;
  const Doubles d1 = low2 == high ? Doubles{} : low2 - high;
  const Doubles d2 = other == high ? Doubles{} : other - high;
  return high + logarithm(1.0 + exponential(d1) + exponential(d2));
}

template <class T>
void log_normaliser_of(const T* x, int64_t n, T* maximum, double* log_sum) {
  using Vector = typename Simd<T>::Vector;
  constexpr int kLanes = Simd<T>::kLanes;
  const int64_t whole = n - n % kLanes;
  Vector high = Vector{} + kMinusInfinity<T>;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Vector v = load(x + i);
    high = v > high ? v : high;
  }
  if (whole < n) {
    const Vector v = load_first(x + whole, n - whole, kMinusInfinity<T>);
    high = v > high ? v : high;
  }
  T largest = high[0];
  for (int lane = 1; lane < kLanes; ++lane) largest = high[lane] > largest ? high[lane] : largest;

  Vector sum{};
  for (int64_t i = 0; i < whole; i += kLanes) sum += exponential(load(x + i) - largest);
  // A NaN in `largest` cannot be: comparisons pass NaNs by, and the sum meets them.
  if (whole < n) sum += exponential(load_first(x + whole, n - whole, kMinusInfinity<T>) - largest);
  double total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += sum[lane];
  *maximum = largest;
  *log_sum = std::log(total);
}

template <class T>
void scaled_softmax_of(const T* x, int64_t n, T maximum, T log_sum, T scale, T* out) {
  constexpr int kLanes = Simd<T>::kLanes;
  const int64_t whole = n - n % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) store(out + i, scale * exponential(load(x + i) - maximum - log_sum));
  if (whole < n) {
    const auto v = load_first(x + whole, n - whole, maximum);
    store_first(out + whole, n - whole, scale * exponential(v - maximum - log_sum));
  }
}

// Applies `body`, which maps vectors to a vector, along arrays of doubles.
template <class Body, class... Arrays>
void along(int64_t n, double* out, Body body, const Arrays*... arrays) {
  constexpr int kLanes = Simd<double>::kLanes;
  const int64_t whole = n - n % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) store(out + i, body(load(arrays + i)...));
  if (whole < n) store_first(out + whole, n - whole, body(load_first(arrays + whole, n - whole, 0.0)...));
}

void add_paths(const double* a, const double* b, const double* c, const double* d, int64_t n, double* out) {
  along(n, out, [](Doubles a, Doubles b, Doubles c, Doubles d) { return log_add(a + b, c + d); }, a, b, c, d);
}

void add_two(const double* a, const double* b, double gain, int64_t n, double* out) {
  along(n, out, [gain](Doubles a, Doubles b) { return gain + log_add(a, b); }, a, b);
}

void add_three(const double* a, const double* b, const double* c, const double* d, const double* gain, int64_t n,
               double* out) {
  along(
      n, out, [](Doubles a, Doubles b, Doubles c, Doubles d, Doubles gain) { return gain + log_add(a, b, c + d); }, a,
      b, c, d, gain);
}

void path_share(const double* a, const double* b, const double* c, double total, int64_t n, double* out) {
  along(n, out, [total](Doubles a, Doubles b, Doubles c) { return exponential(a + b + c - total); }, a, b, c);
}

constexpr LossKernels kLossKernels = {log_normaliser_of<float>,
                                      log_normaliser_of<double>,
                                      scaled_softmax_of<float>,
                                      scaled_softmax_of<double>,
                                      add_paths,
                                      add_two,
                                      add_three,
                                      path_share};

}  // namespace
}  // namespace prnn
