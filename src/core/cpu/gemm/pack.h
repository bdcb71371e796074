// Packing of matrices into the panels of gemm.h.
#pragma once

#include <type_traits>

#include "core/cpu/half_vectors.h"

namespace prnn {
namespace PRNN_ISA_NAMESPACE {

typedef float FloatQuad __attribute__((vector_size(16)));
typedef double DoublePair __attribute__((vector_size(16)));
typedef int32_t QuadMask __attribute__((vector_size(16)));
typedef int64_t PairMask __attribute__((vector_size(16)));

// Writes the transpose of the 4 x 4 (double: 2 x 2) block at source.
PRNN_INLINE void transpose_block(const float* source, int64_t ld, float* out, int64_t ldo) {
  FloatQuad r[4];
  for (int i = 0; i < 4; ++i) std::memcpy(&r[i], source + i * ld, sizeof r[i]);
  const FloatQuad low0 = __builtin_shuffle(r[0], r[1], QuadMask{0, 4, 1, 5});
  const FloatQuad high0 = __builtin_shuffle(r[0], r[1], QuadMask{2, 6, 3, 7});
  const FloatQuad low1 = __builtin_shuffle(r[2], r[3], QuadMask{0, 4, 1, 5});
  const FloatQuad high1 = __builtin_shuffle(r[2], r[3], QuadMask{2, 6, 3, 7});
  r[0] = __builtin_shuffle(low0, low1, QuadMask{0, 1, 4, 5});
  r[1] = __builtin_shuffle(low0, low1, QuadMask{2, 3, 6, 7});
  r[2] = __builtin_shuffle(high0, high1, QuadMask{0, 1, 4, 5});
  r[3] = __builtin_shuffle(high0, high1, QuadMask{2, 3, 6, 7});
  for (int i = 0; i < 4; ++i) std::memcpy(out + i * ldo, &r[i], sizeof r[i]);
}

PRNN_INLINE void transpose_block(const double* source, int64_t ld, double* out, int64_t ldo) {
  DoublePair r0, r1;
  std::memcpy(&r0, source, sizeof r0);
  std::memcpy(&r1, source + ld, sizeof r1);
  const DoublePair first = __builtin_shuffle(r0, r1, PairMask{0, 2});
  const DoublePair second = __builtin_shuffle(r0, r1, PairMask{1, 3});
  std::memcpy(out, &first, sizeof first);
  std::memcpy(out + ldo, &second, sizeof second);
}

// load_columns(): kColumns<T> columns, 16 bytes of a row, of as many rows as a vector has lanes: columns[c] gets one
// number of each row. load_parts() has the rows whose columns the shuffles put side by side, so that these stay within
// 16 bytes, where they are cheapest: with 32-byte vectors rows 0 and 4 (double: 2), with 64-byte vectors rows 0, 4, 8
// and 12 (double: 2, 4, 6). 16-bit numbers are transposed as pairs of float's size, which are taken apart at the end.
template <class T>
constexpr int kColumns = 16 / sizeof(T);

#if defined(__AVX512F__)
// The intrinsics have a mask, also where it is full, since GCC 12 warns of those without.
template <class S>
PRNN_INLINE __m128 load_quad(const S* p) {
  return _mm_castsi128_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
template <class S>
PRNN_INLINE __m512 load_parts(const S* p, int64_t ld) {
  __m512 parts = _mm512_maskz_broadcast_f32x4(0xffff, load_quad(p));
  parts = _mm512_mask_broadcast_f32x4(parts, 0x00f0, load_quad(p + 4 * ld));
  parts = _mm512_mask_broadcast_f32x4(parts, 0x0f00, load_quad(p + 8 * ld));
  return _mm512_mask_broadcast_f32x4(parts, 0xf000, load_quad(p + 12 * ld));
}
PRNN_INLINE __m512d load_parts(const double* p, int64_t ld) {
  __m512d parts = _mm512_maskz_broadcast_f64x2(0xff, _mm_loadu_pd(p));
  parts = _mm512_mask_broadcast_f64x2(parts, 0x0c, _mm_loadu_pd(p + 2 * ld));
  parts = _mm512_mask_broadcast_f64x2(parts, 0x30, _mm_loadu_pd(p + 4 * ld));
  return _mm512_mask_broadcast_f64x2(parts, 0xc0, _mm_loadu_pd(p + 6 * ld));
}
PRNN_INLINE __m512 low_floats(__m512 a, __m512 b) { return _mm512_maskz_unpacklo_ps(0xffff, a, b); }
PRNN_INLINE __m512 high_floats(__m512 a, __m512 b) { return _mm512_maskz_unpackhi_ps(0xffff, a, b); }
PRNN_INLINE __m512d low_doubles(__m512d a, __m512d b) { return _mm512_maskz_unpacklo_pd(0xff, a, b); }
PRNN_INLINE __m512d high_doubles(__m512d a, __m512d b) { return _mm512_maskz_unpackhi_pd(0xff, a, b); }
#elif defined(__AVX2__) && defined(__FMA__)
template <class S>
PRNN_INLINE __m128 load_quad(const S* p) {
  return _mm_castsi128_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
template <class S>
PRNN_INLINE __m256 load_parts(const S* p, int64_t ld) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(load_quad(p)), load_quad(p + 4 * ld), 1);
}
PRNN_INLINE __m256d load_parts(const double* p, int64_t ld) {
  return _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(p)), _mm_loadu_pd(p + 2 * ld), 1);
}
PRNN_INLINE __m256 low_floats(__m256 a, __m256 b) { return _mm256_unpacklo_ps(a, b); }
PRNN_INLINE __m256 high_floats(__m256 a, __m256 b) { return _mm256_unpackhi_ps(a, b); }
PRNN_INLINE __m256d low_doubles(__m256d a, __m256d b) { return _mm256_unpacklo_pd(a, b); }
PRNN_INLINE __m256d high_doubles(__m256d a, __m256d b) { return _mm256_unpackhi_pd(a, b); }
#else
template <class S>
PRNN_INLINE FloatVector load_parts(const S* p, int64_t) {
  FloatVector parts;
  std::memcpy(&parts, p, sizeof parts);
  return parts;
}
PRNN_INLINE DoubleVector load_parts(const double* p, int64_t) { return load(p); }
PRNN_INLINE FloatVector low_floats(FloatVector a, FloatVector b) {
  return __builtin_shuffle(a, b, QuadMask{0, 4, 1, 5});
}
PRNN_INLINE FloatVector high_floats(FloatVector a, FloatVector b) {
  return __builtin_shuffle(a, b, QuadMask{2, 6, 3, 7});
}
PRNN_INLINE DoubleVector low_doubles(DoubleVector a, DoubleVector b) { return __builtin_shuffle(a, b, PairMask{0, 2}); }
PRNN_INLINE DoubleVector high_doubles(DoubleVector a, DoubleVector b) {
  return __builtin_shuffle(a, b, PairMask{1, 3});
}
#endif

// Four columns of what is as large as a float.
template <class S>
PRNN_INLINE void load_quads(const S* source, int64_t ld, FloatVector (&columns)[4]) {
  const FloatVector r0 = load_parts(source, ld), r1 = load_parts(source + ld, ld);
  const FloatVector r2 = load_parts(source + 2 * ld, ld), r3 = load_parts(source + 3 * ld, ld);
  const DoubleVector low0 = (DoubleVector)low_floats(r0, r1), low1 = (DoubleVector)low_floats(r2, r3);
  const DoubleVector high0 = (DoubleVector)high_floats(r0, r1), high1 = (DoubleVector)high_floats(r2, r3);
  columns[0] = (FloatVector)low_doubles(low0, low1);
  columns[1] = (FloatVector)high_doubles(low0, low1);
  columns[2] = (FloatVector)low_doubles(high0, high1);
  columns[3] = (FloatVector)high_doubles(high0, high1);
}

PRNN_INLINE void load_columns(const float* source, int64_t ld, FloatVector (&columns)[4]) {
  load_quads(source, ld, columns);
}

template <class S>
PRNN_INLINE void load_columns(const S* source, int64_t ld, FloatVector (&columns)[8]) {
  FloatVector pairs[4];
  load_quads(source, ld, pairs);
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) unpair(source, pairs[c], &columns[2 * c], &columns[2 * c + 1]);
}

PRNN_INLINE void load_columns(const double* source, int64_t ld, DoubleVector (&columns)[2]) {
  const DoubleVector r0 = load_parts(source, ld), r1 = load_parts(source + ld, ld);
  columns[0] = low_doubles(r0, r1);
  columns[1] = high_doubles(r0, r1);
}

template <class S>
void pack_rows(const S* source, int64_t ld, int64_t rows, int64_t k, Compute<S>* panel) {
  using T = Compute<S>;
  constexpr bool kWidens = !std::is_same_v<S, T>;
  constexpr int64_t W = kPanel<T>;
  constexpr int64_t B = kColumns<S>, V = Simd<T>::kWidth;
  const int64_t vector_rows = rows / V * V, block_rows = kWidens ? vector_rows : rows / B * B, block_k = k / B * B;
  // A cache line of some rows at a time: rows a power of two apart fall into the same few places of the L1 cache.
  constexpr int64_t kLine = 64 / sizeof(S), kAhead = 6 * kLine;
  for (int64_t begin = 0; begin < block_k; begin += kLine) {
    const int64_t end = begin + kLine < block_k ? begin + kLine : block_k;
    for (int64_t i = 0; i < vector_rows; i += V) {
      for (int64_t row = i; row < i + V; ++row) __builtin_prefetch(source + row * ld + begin + kAhead, 0, 2);
      for (int64_t j = begin; j < end; j += B) {
        Vector<T> columns[B];
        load_columns(source + i * ld + j, ld, columns);
#pragma GCC unroll 8
        for (int64_t c = 0; c < B; ++c) store(panel + (j + c) * W + i, columns[c]);
      }
    }
    for (int64_t i = vector_rows; i < block_rows; i += B) {
      for (int64_t row = i; row < i + B; ++row) __builtin_prefetch(source + row * ld + begin + kAhead);
      for (int64_t j = begin; j < end; j += B) {
        if constexpr (!kWidens) transpose_block(source + i * ld + j, ld, panel + j * W + i, W);
      }
    }
  }
  for (int64_t j = 0; j < k; ++j) {
    for (int64_t i = j < block_k ? block_rows : 0; i < rows; ++i) panel[j * W + i] = widen(source[i * ld + j]);
    for (int64_t i = rows; i < W; ++i) panel[j * W + i] = 0;
  }
}

// Walks the source row by row, some rows at a time, so that it is read in long runs.
template <class S>
void pack_columns(const S* source, int64_t ld, int64_t columns, int64_t k, Compute<S>* panels) {
  using T = Compute<S>;
  constexpr int64_t W = kPanel<T>;
  constexpr int64_t kRows = 8;
  for (int64_t begin = 0; begin < k; begin += kRows) {
    const int64_t end = begin + kRows < k ? begin + kRows : k;
    for (int64_t column = 0; column < columns; column += W) {
      const int64_t width = columns - column < W ? columns - column : W;
      for (int64_t j = begin; j < end; ++j) {
        const S* from = source + j * ld + column;
        T* to = panels + column * k + j * W;
        if (width == W) {
          store(to, load(from));
          store(to + W / 2, load(from + W / 2));
        } else {
          for (int64_t i = 0; i < W; ++i) to[i] = i < width ? widen(from[i]) : T(0);
        }
      }
    }
  }
}

// R rows of A^T side by side, group after group: element (m, k) of rows [0, rows) at
// out[(m / R) * R * k_count + k * r + m % R], r being the rows of that group. A is transposed: source[k * ld + m].
template <class T, int R>
void pack_groups(const T* source, int64_t ld, int64_t rows, int64_t k, T* out) {
  const int64_t whole = rows / R * R, rest = rows - whole;
  for (int64_t j = 0; j < k; ++j) {
    const T* from = source + j * ld;
    for (int64_t m = 0; m < whole; m += R) std::memcpy(out + m * k + j * R, from + m, R * sizeof(T));
    for (int64_t i = 0; i < rest; ++i) out[whole * k + j * rest + i] = from[whole + i];
  }
}

}  // namespace PRNN_ISA_NAMESPACE
}  // namespace prnn
