// Vectors of float and double as wide as the instruction set that the including file is compiled for. Only for
// *_portable.cc, *_avx2.cc and *_avx512.cc and the headers that they share: everything lies in a namespace of its own
// per instruction set, so that the linker never takes one file's inline function for another's.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define PRNN_ISA_NAMESPACE isa_avx512
#elif defined(__AVX2__) && defined(__FMA__)
#define PRNN_ISA_NAMESPACE isa_avx2
#else
#define PRNN_ISA_NAMESPACE isa_portable
#endif

#define PRNN_INLINE static inline __attribute__((always_inline))

namespace prnn {
namespace PRNN_ISA_NAMESPACE {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kAccumulators = 24;  // vector registers that a product may fill with sums
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kVectorBytes = 32;
constexpr int kAccumulators = 12;
#else
constexpr int kVectorBytes = 16;
constexpr int kAccumulators = 12;
#endif

typedef float FloatVector __attribute__((vector_size(kVectorBytes)));
typedef double DoubleVector __attribute__((vector_size(kVectorBytes)));
typedef uint32_t FloatBits __attribute__((vector_size(kVectorBytes)));
typedef uint64_t DoubleBits __attribute__((vector_size(kVectorBytes)));

template <class T>
struct Simd;
template <>
struct Simd<float> {
  using Vector = FloatVector;
  using Bits = FloatBits;
  static constexpr int kWidth = kVectorBytes / 4;
};
template <>
struct Simd<double> {
  using Vector = DoubleVector;
  using Bits = DoubleBits;
  static constexpr int kWidth = kVectorBytes / 8;
};

template <class T>
using Vector = typename Simd<T>::Vector;

// Width of a panel, the unit in which matrices are packed: two vectors.
template <class T>
constexpr int kPanel = 2 * Simd<T>::kWidth;

template <class T>
PRNN_INLINE Vector<T> load(const T* p) {
  Vector<T> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <class T>
PRNN_INLINE void store(T* p, Vector<T> v) {
  std::memcpy(p, &v, sizeof v);
}

// load_part: the first `count` lanes, the others zero. store_part: of those alone.
#if defined(__AVX512F__)
PRNN_INLINE FloatVector load_part(const float* p, int count) { return _mm512_maskz_loadu_ps((1u << count) - 1, p); }
PRNN_INLINE DoubleVector load_part(const double* p, int count) { return _mm512_maskz_loadu_pd((1u << count) - 1, p); }
PRNN_INLINE void store_part(float* p, FloatVector v, int count) { _mm512_mask_storeu_ps(p, (1u << count) - 1, v); }
PRNN_INLINE void store_part(double* p, DoubleVector v, int count) { _mm512_mask_storeu_pd(p, (1u << count) - 1, v); }
#elif defined(__AVX2__) && defined(__FMA__)
PRNN_INLINE __m256i lanes_below(float, int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
PRNN_INLINE __m256i lanes_below(double, int count) {
  return _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3));
}
PRNN_INLINE FloatVector load_part(const float* p, int count) { return _mm256_maskload_ps(p, lanes_below(0.0f, count)); }
PRNN_INLINE DoubleVector load_part(const double* p, int count) {
  return _mm256_maskload_pd(p, lanes_below(0.0, count));
}
PRNN_INLINE void store_part(float* p, FloatVector v, int count) { _mm256_maskstore_ps(p, lanes_below(0.0f, count), v); }
PRNN_INLINE void store_part(double* p, DoubleVector v, int count) {
  _mm256_maskstore_pd(p, lanes_below(0.0, count), v);
}
#else
template <class T>
PRNN_INLINE Vector<T> load_part(const T* p, int count) {
  Vector<T> v = {};
  std::memcpy(&v, p, count * sizeof(T));
  return v;
}
template <class T>
PRNN_INLINE void store_part(T* p, Vector<T> v, int count) {
  std::memcpy(p, &v, count * sizeof(T));
}
#endif

// minimum, maximum: b where one of the two is NaN.
#if defined(__AVX512F__)
PRNN_INLINE FloatVector minimum(FloatVector a, FloatVector b) { return _mm512_maskz_min_ps(0xffff, a, b); }
PRNN_INLINE FloatVector maximum(FloatVector a, FloatVector b) { return _mm512_maskz_max_ps(0xffff, a, b); }
PRNN_INLINE DoubleVector minimum(DoubleVector a, DoubleVector b) { return _mm512_maskz_min_pd(0xff, a, b); }
PRNN_INLINE DoubleVector maximum(DoubleVector a, DoubleVector b) { return _mm512_maskz_max_pd(0xff, a, b); }
PRNN_INLINE FloatVector broadcast(float x) { return _mm512_set1_ps(x); }
PRNN_INLINE DoubleVector broadcast(double x) { return _mm512_set1_pd(x); }
PRNN_INLINE FloatVector fma(FloatVector a, FloatVector b, FloatVector c) { return _mm512_fmadd_ps(a, b, c); }
PRNN_INLINE DoubleVector fma(DoubleVector a, DoubleVector b, DoubleVector c) { return _mm512_fmadd_pd(a, b, c); }
#elif defined(__AVX2__) && defined(__FMA__)
PRNN_INLINE FloatVector minimum(FloatVector a, FloatVector b) { return _mm256_min_ps(a, b); }
PRNN_INLINE FloatVector maximum(FloatVector a, FloatVector b) { return _mm256_max_ps(a, b); }
PRNN_INLINE DoubleVector minimum(DoubleVector a, DoubleVector b) { return _mm256_min_pd(a, b); }
PRNN_INLINE DoubleVector maximum(DoubleVector a, DoubleVector b) { return _mm256_max_pd(a, b); }
PRNN_INLINE FloatVector broadcast(float x) { return _mm256_set1_ps(x); }
PRNN_INLINE DoubleVector broadcast(double x) { return _mm256_set1_pd(x); }
PRNN_INLINE FloatVector fma(FloatVector a, FloatVector b, FloatVector c) { return _mm256_fmadd_ps(a, b, c); }
PRNN_INLINE DoubleVector fma(DoubleVector a, DoubleVector b, DoubleVector c) { return _mm256_fmadd_pd(a, b, c); }
#else
template <class V>
PRNN_INLINE V minimum(V a, V b) {
  return a < b ? a : b;
}
template <class V>
PRNN_INLINE V maximum(V a, V b) {
  return a > b ? a : b;
}
PRNN_INLINE FloatVector broadcast(float x) { return FloatVector{x, x, x, x}; }
PRNN_INLINE DoubleVector broadcast(double x) { return DoubleVector{x, x}; }
PRNN_INLINE FloatVector fma(FloatVector a, FloatVector b, FloatVector c) { return a * b + c; }
PRNN_INLINE DoubleVector fma(DoubleVector a, DoubleVector b, DoubleVector c) { return a * b + c; }
#endif

}  // namespace PRNN_ISA_NAMESPACE
}  // namespace prnn
