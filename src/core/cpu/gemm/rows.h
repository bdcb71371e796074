// Products of a matrix as it lies with few vectors: its rows are transposed in registers, on their way into the sums.
// What is packed is written and read once more, which pays from the second or third use on.
#pragma once

#include <cstdint>

#include "core/cpu/gemm/pack.h"
#include "core/cpu/gemm/tile.h"

namespace prnn {
namespace PRNN_ISA_NAMESPACE {

// Rows that a tile takes, so many vectors' lanes: enough sums for the multiply-adds not to wait for each other, and few
// enough rows for the L1 cache to hold a line of each.
constexpr int kRowVectors = kVectorBytes == 64 ? 1 : 2;
template <class T>
constexpr int64_t kTileRows = kRowVectors * Simd<T>::kWidth;

// The most vectors that a tile takes, with registers left for the columns.
constexpr int kMaxFew = kVectorBytes == 64 ? 8 : 4;

// As tile<T, kRowVectors, 1, R, false>, S being what a T is stored as, but that row i of the panel lies at panel[i *
// panel_stride], of any length k.
template <class S, int R>
void rows_tile(const TileOperands<Compute<S>, S>& operands) {
  using T = Compute<S>;
  const TileOperands<T, S> o = operands;
  constexpr int W = Simd<T>::kWidth, C = kColumns<S>;
  Vector<T> sums[R][kRowVectors];
#pragma GCC unroll 8
  for (int j = 0; j < R; ++j) {
#pragma GCC unroll 2
    for (int v = 0; v < kRowVectors; ++v) sums[j][v] = load(o.init + j * o.ld_init + v * W);
  }
  const S* row = o.panel;
  const T* b = o.b;
  const int64_t ld = o.panel_stride, ldb = o.ldb;
  int64_t k = 0;
  for (; k + C <= o.k; k += C) {
#pragma GCC unroll 2
    for (int v = 0; v < kRowVectors; ++v) {
      Vector<T> columns[C];
      load_columns(row + v * W * ld + k, ld, columns);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
        for (int j = 0; j < R; ++j) sums[j][v] = fma(columns[c], broadcast(b[j * ldb + k + c]), sums[j][v]);
      }
    }
  }
  for (; k < o.k; ++k) {
#pragma GCC unroll 2
    for (int v = 0; v < kRowVectors; ++v) {
      T column[W];
      for (int i = 0; i < W; ++i) column[i] = widen(row[(v * W + i) * ld + k]);
#pragma GCC unroll 8
      for (int j = 0; j < R; ++j) sums[j][v] = fma(load(column), broadcast(b[j * ldb + k]), sums[j][v]);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < R; ++j) {
#pragma GCC unroll 2
    for (int v = 0; v < kRowVectors; ++v) store(o.c + j * o.ldc + v * W, sums[j][v]);
  }
}

template <class S>
using RowsFunction = void (*)(const TileOperands<Compute<S>, S>&);

template <class S>
struct RowsTiles {
  template <int R>
  static constexpr RowsFunction<S> of() {
    return &rows_tile<S, R>;
  }
};
template <class S>
inline constexpr FunctionTable<RowsFunction<S>, kMaxFew, RowsTiles<S>> kRowsTiles{};

// Up to so many vectors it pays to transpose the rows for each half of them.
constexpr int kMostRowsVectors = 2 * kMaxFew;

// One tile's rows times n vectors, of the first of which are the operands.
template <class S>
PRNN_INLINE void rows_product(const TileOperands<Compute<S>, S>& first, int64_t n) {
  const int64_t blocks = (n + kMaxFew - 1) / kMaxFew;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t j = n * block / blocks, r = n * (block + 1) / blocks - j;
    auto o = first;
    o.b += j * o.ldb;
    o.init += j * o.ld_init;
    o.c += j * o.ldc;
    kRowsTiles<S>[r](o);
  }
}

}  // namespace PRNN_ISA_NAMESPACE
}  // namespace prnn
