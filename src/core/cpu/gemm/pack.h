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

template <class T>
void pack_rows(const T* source, int64_t ld, int64_t rows, int64_t k, T* panel) {
  constexpr int64_t W = kPanel<T>;
  constexpr int64_t B = 16 / sizeof(T);
  const int64_t block_rows = rows / B * B, block_k = k / B * B;
  // A cache line of B rows at a time: rows a power of two apart fall into the same few places of the L1 cache.
  constexpr int64_t kLine = 64 / sizeof(T), kAhead = 6 * kLine;
  for (int64_t begin = 0; begin < block_k; begin += kLine) {
    const int64_t end = begin + kLine < block_k ? begin + kLine : block_k;
    for (int64_t i = 0; i < block_rows; i += B) {
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
