// Sums of a few outer products, C[m, n] = sum over k of A[k, m] B[k, n]: what takes time is to write C, row after row.
#pragma once

#include <cstdint>

#include "core/cpu/gemm/gemm.h"
#include "core/cpu/gemm/tile.h"
#include "core/cpu/simd.h"

namespace prnn {
namespace PRNN_ISA_NAMESPACE {

constexpr int kMaxOuter = 8;  // outer products

// Columns of one row of C from K rows of B. a: A's K elements of the row, lda apart.
template <class T, int K>
void outer_row(const T* a, int64_t lda, const T* b, int64_t ldb, bool accumulate, int64_t columns, T* c) {
  constexpr int W = Simd<T>::kWidth;
  const Vector<T> zero = {};
  Vector<T> factors[K];
#pragma GCC unroll 8
  for (int k = 0; k < K; ++k) factors[k] = broadcast(a[k * lda]);
  int64_t n = 0;
  for (; n + W <= columns; n += W) {
    Vector<T> sum = accumulate ? load(c + n) : zero;
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) sum = fma(load(b + k * ldb + n), factors[k], sum);
    store(c + n, sum);
  }
  if (n == columns) return;
  const int rest = static_cast<int>(columns - n);
  Vector<T> sum = accumulate ? load_part(c + n, rest) : zero;
#pragma GCC unroll 8
  for (int k = 0; k < K; ++k) sum = fma(load_part(b + k * ldb + n, rest), factors[k], sum);
  store_part(c + n, sum, rest);
}

template <class T>
using OuterRow = void (*)(const T*, int64_t, const T*, int64_t, bool, int64_t, T*);

template <class T>
struct OuterRows {
  template <int K>
  static constexpr OuterRow<T> of() {
    return &outer_row<T, K>;
  }
};
template <class T>
inline constexpr FunctionTable<OuterRow<T>, kMaxOuter, OuterRows<T>> kOuterRows{};

template <class T>
bool is_outer(const Gemm<T>& g) {
  return g.a_transposed && !g.b_transposed && g.bias == nullptr && g.k >= 1 && g.k <= kMaxOuter;
}

template <class T>
void outer(const Gemm<T>& g, Range rows, Range columns) {
  for (int64_t m = rows.begin; m < rows.end; ++m) {
    kOuterRows<T>[g.k](g.a + m, g.lda, g.b + columns.begin, g.ldb, g.accumulate, columns.size(),
                       g.c + m* g.ldc + columns.begin);
  }
}

}  // namespace PRNN_ISA_NAMESPACE
}  // namespace prnn
