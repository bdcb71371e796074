// Packing of matrices into the panels of gemm.h.
#pragma once

#include "core/cpu/simd.h"

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

// transpose_vectors(): the same of as many rows as a vector has lanes, and kVectorColumns columns.
#if defined(__AVX512F__)
// As many columns as a cache line holds, each of which is loaded once: with rows a power of two apart, a set of the L1
// cache does not hold the lines of them all.
template <class T>
constexpr int64_t kVectorColumns = 64 / sizeof(T);

// The intrinsics have a mask, which is full, since GCC 12 warns of those without.
//
// Of a vector's 16-byte parts, those of four vectors: out[i * stride] gets the i-th of each.
template <class T>
PRNN_INLINE void store_parts(__m512d v0, __m512d v1, __m512d v2, __m512d v3, T* out, int64_t stride) {
  const __m512d even0 = _mm512_maskz_shuffle_f64x2(0xff, v0, v1, 0x88),
                odd0 = _mm512_maskz_shuffle_f64x2(0xff, v0, v1, 0xdd);
  const __m512d even1 = _mm512_maskz_shuffle_f64x2(0xff, v2, v3, 0x88),
                odd1 = _mm512_maskz_shuffle_f64x2(0xff, v2, v3, 0xdd);
  const __m512d parts[4] = {
      _mm512_maskz_shuffle_f64x2(0xff, even0, even1, 0x88), _mm512_maskz_shuffle_f64x2(0xff, odd0, odd1, 0x88),
      _mm512_maskz_shuffle_f64x2(0xff, even0, even1, 0xdd), _mm512_maskz_shuffle_f64x2(0xff, odd0, odd1, 0xdd)};
  for (int i = 0; i < 4; ++i) std::memcpy(out + i * stride, &parts[i], sizeof parts[i]);
}

PRNN_INLINE void transpose_vectors(const float* source, int64_t ld, float* out, int64_t ldo) {
  __m512d columns[4][4];  // [column in a part][four rows]
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const float* const row = source + 4 * i * ld;
    const __m512 r0 = _mm512_loadu_ps(row), r1 = _mm512_loadu_ps(row + ld);
    const __m512 r2 = _mm512_loadu_ps(row + 2 * ld), r3 = _mm512_loadu_ps(row + 3 * ld);
    const __m512d low0 = _mm512_castps_pd(_mm512_maskz_unpacklo_ps(0xffff, r0, r1)),
                  low1 = _mm512_castps_pd(_mm512_maskz_unpacklo_ps(0xffff, r2, r3));
    const __m512d high0 = _mm512_castps_pd(_mm512_maskz_unpackhi_ps(0xffff, r0, r1)),
                  high1 = _mm512_castps_pd(_mm512_maskz_unpackhi_ps(0xffff, r2, r3));
    columns[0][i] = _mm512_maskz_unpacklo_pd(0xff, low0, low1);
    columns[1][i] = _mm512_maskz_unpackhi_pd(0xff, low0, low1);
    columns[2][i] = _mm512_maskz_unpacklo_pd(0xff, high0, high1);
    columns[3][i] = _mm512_maskz_unpackhi_pd(0xff, high0, high1);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    store_parts(columns[c][0], columns[c][1], columns[c][2], columns[c][3], out + c * ldo, 4 * ldo);
  }
}

PRNN_INLINE void transpose_vectors(const double* source, int64_t ld, double* out, int64_t ldo) {
  __m512d columns[2][4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512d r0 = _mm512_loadu_pd(source + 2 * i * ld), r1 = _mm512_loadu_pd(source + (2 * i + 1) * ld);
    columns[0][i] = _mm512_maskz_unpacklo_pd(0xff, r0, r1);
    columns[1][i] = _mm512_maskz_unpackhi_pd(0xff, r0, r1);
  }
#pragma GCC unroll 2
  for (int c = 0; c < 2; ++c) {
    store_parts(columns[c][0], columns[c][1], columns[c][2], columns[c][3], out + c * ldo, 2 * ldo);
  }
}
#elif defined(__AVX2__) && defined(__FMA__)
template <class T>
constexpr int64_t kVectorColumns = 16 / sizeof(T);

// 16 bytes from each of two rows, so that no shuffle has to bring them together.
PRNN_INLINE __m256 load_parts(const float* p, int64_t ld) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + ld), 1);
}
PRNN_INLINE __m256d load_parts(const double* p, int64_t ld) {
  return _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(p)), _mm_loadu_pd(p + ld), 1);
}

PRNN_INLINE void transpose_vectors(const float* source, int64_t ld, float* out, int64_t ldo) {
  const __m256 r0 = load_parts(source, 4 * ld), r1 = load_parts(source + ld, 4 * ld);
  const __m256 r2 = load_parts(source + 2 * ld, 4 * ld), r3 = load_parts(source + 3 * ld, 4 * ld);
  const __m256d low0 = _mm256_castps_pd(_mm256_unpacklo_ps(r0, r1)),
                low1 = _mm256_castps_pd(_mm256_unpacklo_ps(r2, r3));
  const __m256d high0 = _mm256_castps_pd(_mm256_unpackhi_ps(r0, r1)),
                high1 = _mm256_castps_pd(_mm256_unpackhi_ps(r2, r3));
  const __m256d columns[4] = {_mm256_unpacklo_pd(low0, low1), _mm256_unpackhi_pd(low0, low1),
                              _mm256_unpacklo_pd(high0, high1), _mm256_unpackhi_pd(high0, high1)};
  for (int i = 0; i < 4; ++i) std::memcpy(out + i * ldo, &columns[i], sizeof columns[i]);
}

PRNN_INLINE void transpose_vectors(const double* source, int64_t ld, double* out, int64_t ldo) {
  const __m256d r0 = load_parts(source, 2 * ld), r1 = load_parts(source + ld, 2 * ld);
  const __m256d columns[2] = {_mm256_unpacklo_pd(r0, r1), _mm256_unpackhi_pd(r0, r1)};
  for (int i = 0; i < 2; ++i) std::memcpy(out + i * ldo, &columns[i], sizeof columns[i]);
}
#else
template <class T>
constexpr int64_t kVectorColumns = 16 / sizeof(T);

template <class T>
PRNN_INLINE void transpose_vectors(const T* source, int64_t ld, T* out, int64_t ldo) {
  transpose_block(source, ld, out, ldo);
}
#endif

template <class T>
void pack_rows(const T* source, int64_t ld, int64_t rows, int64_t k, T* panel) {
  constexpr int64_t W = kPanel<T>;
  constexpr int64_t B = 16 / sizeof(T), V = Simd<T>::kWidth, C = kVectorColumns<T>;
  const int64_t block_rows = rows / B * B, block_k = k / B * B;
  // A cache line of some rows at a time: rows a power of two apart fall into the same few places of the L1 cache.
  constexpr int64_t kLine = 64 / sizeof(T), kAhead = 6 * kLine;
  for (int64_t begin = 0; begin < block_k; begin += kLine) {
    const int64_t end = begin + kLine < block_k ? begin + kLine : block_k;
    const int64_t vector_rows = (end - begin) % C == 0 ? rows / V * V : 0;
    for (int64_t i = 0; i < vector_rows; i += V) {
      for (int64_t row = i; row < i + V; ++row) __builtin_prefetch(source + row * ld + begin + kAhead, 0, 2);
      for (int64_t j = begin; j < end; j += C) transpose_vectors(source + i * ld + j, ld, panel + j * W + i, W);
    }
    for (int64_t i = vector_rows; i < block_rows; i += B) {
      for (int64_t row = i; row < i + B; ++row) __builtin_prefetch(source + row * ld + begin + kAhead);
      for (int64_t j = begin; j < end; j += B) transpose_block(source + i * ld + j, ld, panel + j * W + i, W);
    }
  }
  for (int64_t j = 0; j < k; ++j) {
    for (int64_t i = j < block_k ? block_rows : 0; i < rows; ++i) panel[j * W + i] = source[i * ld + j];
    for (int64_t i = rows; i < W; ++i) panel[j * W + i] = 0;
  }
}

// Walks the source row by row, some rows at a time, so that it is read in long runs.
template <class T>
void pack_columns(const T* source, int64_t ld, int64_t columns, int64_t k, T* panels) {
  constexpr int64_t W = kPanel<T>;
  constexpr int64_t kRows = 8;
  for (int64_t begin = 0; begin < k; begin += kRows) {
    const int64_t end = begin + kRows < k ? begin + kRows : k;
    for (int64_t column = 0; column < columns; column += W) {
      const int64_t width = columns - column < W ? columns - column : W;
      for (int64_t j = begin; j < end; ++j) {
        const T* from = source + j * ld + column;
        T* to = panels + column * k + j * W;
        if (width == W) {
          store(to, load(from));
          store(to + W / 2, load(from + W / 2));
        } else {
          for (int64_t i = 0; i < W; ++i) to[i] = i < width ? from[i] : T(0);
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
