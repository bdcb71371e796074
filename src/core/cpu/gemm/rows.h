// Products of a matrix as it lies with few vectors: its rows are transposed in registers, on their way into the sums.
// A packed panel is written and read once more, which pays from the second or third use on.
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

// The sums of a tile's rows with R vectors.
template <class T, int R>
struct RowsSums {
  Vector<T> of[R][kRowVectors];
};

// How columns of rows of S are added to sums. dots.h has another one.
template <class S>
struct RowColumns {
  using T = Compute<S>;
  static constexpr int W = Simd<T>::kWidth, C = kColumns<S>;

  // Columns k to k + C of a tile's rows, in this order.
  template <int R>
  PRNN_INLINE void add(const TileOperands<T, S>& o, int64_t k, RowsSums<T, R>& sums) {
#pragma GCC unroll 2
    for (int v = 0; v < kRowVectors; ++v) {
      Vector<T> columns[C];
      load_columns(o.panel + v * W * o.panel_stride + k, o.panel_stride, columns);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
        for (int j = 0; j < R; ++j) sums.of[j][v] = fma(columns[c], broadcast(o.b[j * o.ldb + k + c]), sums.of[j][v]);
      }
    }
  }

  // The columns from `k` on, fewer than C.
  template <int R>
  PRNN_INLINE void add_last(const TileOperands<T, S>& o, int64_t k, RowsSums<T, R>& sums) {
    for (; k < o.k; ++k) {
#pragma GCC unroll 2
      for (int v = 0; v < kRowVectors; ++v) {
        T column[W];
        for (int i = 0; i < W; ++i) column[i] = widen(o.panel[(v * W + i) * o.panel_stride + k]);
#pragma GCC unroll 8
        for (int j = 0; j < R; ++j) {
          sums.of[j][v] = fma(load(column), broadcast(o.b[j * o.ldb + k]), sums.of[j][v]);
        }
      }
    }
  }
};

template <class S, int R>
PRNN_INLINE RowsSums<Compute<S>, R> load_sums(const TileOperands<Compute<S>, S>& o) {
  RowsSums<Compute<S>, R> sums;
#pragma GCC unroll 8
  for (int j = 0; j < R; ++j) {
#pragma GCC unroll 2
    for (int v = 0; v < kRowVectors; ++v) {
      sums.of[j][v] = load(o.init + j * o.ld_init + v * Simd<Compute<S>>::kWidth);
    }
  }
  return sums;
}

template <class S, int R>
PRNN_INLINE void store_sums(const TileOperands<Compute<S>, S>& o, const RowsSums<Compute<S>, R>& sums) {
#pragma GCC unroll 8
  for (int j = 0; j < R; ++j) {
#pragma GCC unroll 2
    for (int v = 0; v < kRowVectors; ++v) store(o.c + j * o.ldc + v * Simd<Compute<S>>::kWidth, sums.of[j][v]);
  }
}

// tile<T, kRowVectors, 1, R, false>, where S is what a T is stored as, of a panel whose row i lies at panel[i *
// panel_stride], of any length k.
template <class S, int R>
void rows_tile(const TileOperands<Compute<S>, S>& operands) {
  constexpr int C = kColumns<S>;
  const TileOperands<Compute<S>, S> o = operands;
  auto sums = load_sums<S, R>(o);
  int64_t k = 0;
  for (; k + C <= o.k; k += C) RowColumns<S>::add(o, k, sums);
  RowColumns<S>::add_last(o, k, sums);
  store_sums(o, sums);
}

// Where rows begin so many bytes or more apart, the second tile of a pair lags the first by kLagBytes.
constexpr int64_t kLongRow = 1024, kLagBytes = 256;

// Two tiles of one vector, of the same k. The sums of one alone would wait for each other. As rows that begin a power
// of two apart share few sets of the L1 cache, the second tile is some lines behind the first, in other sets.
template <class S, int R>
void rows_pair(const TileOperands<Compute<S>, S>& first, const TileOperands<Compute<S>, S>& second) {
  constexpr int64_t C = kColumns<S>, kSize = sizeof(S);
  const TileOperands<Compute<S>, S> a = first, z = second;
  auto sums = load_sums<S, R>(a), other = load_sums<S, R>(z);
  const int64_t whole = a.k / C * C, lag = whole * kSize < kLongRow ? 0 : kLagBytes / kSize;
  for (int64_t k = 0; k < lag; k += C) RowColumns<S>::add(a, k, sums);
  for (int64_t k = lag; k < whole; k += C) {
    RowColumns<S>::add(a, k, sums);
    RowColumns<S>::add(z, k - lag, other);
  }
  for (int64_t k = whole - lag; k < whole; k += C) RowColumns<S>::add(z, k, other);
  RowColumns<S>::add_last(a, whole, sums);
  RowColumns<S>::add_last(z, whole, other);
  store_sums(a, sums);
  store_sums(z, other);
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

template <class S>
using PairFunction = void (*)(const TileOperands<Compute<S>, S>&, const TileOperands<Compute<S>, S>&);

template <class S>
struct RowsPairs {
  template <int R>
  static constexpr PairFunction<S> of() {
    return &rows_pair<S, R>;
  }
};

// The most vectors of which a pair is faster than two tiles. To widen a half takes longer than the sums wait.
template <class S>
constexpr int kMaxPaired = kVectorBytes == 16        ? 0
                           : std::is_same_v<S, Half> ? 1
                                                     : 2;
template <class S>
inline constexpr FunctionTable<PairFunction<S>, 2, RowsPairs<S>> kRowsPairs{};

// Floats whose rows begin in the same set of a 4 KiB way are slower in pairs: a line has four times as many uses as one
// of doubles has, between which others take its place.
template <class S>
PRNN_INLINE bool is_paired(int64_t ld, int64_t n) {
  return n <= kMaxPaired<S> && !(std::is_same_v<S, float> && ld * static_cast<int64_t>(sizeof(S)) % 4096 == 0);
}

// Up to so many vectors it pays to transpose the rows for each half of them.
constexpr int kMostRowsVectors = 2 * kMaxFew;

// `count` tiles' rows times n vectors. tile_at(i): the operands of tile i and the first vector, of the same k and
// panel_stride for all i.
template <class S, class TileAt>
PRNN_INLINE void rows_products(int64_t count, int64_t ld, int64_t n, const TileAt& tile_at) {
  int64_t i = 0;
  if constexpr (kMaxPaired<S> > 0) {
    if (is_paired<S>(ld, n)) {
      for (; i + 1 < count; i += 2) kRowsPairs<S>[n](tile_at(i), tile_at(i + 1));
    }
  }
  const int64_t blocks = (n + kMaxFew - 1) / kMaxFew;
  for (; i < count; ++i) {
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t j = n * block / blocks, r = n * (block + 1) / blocks - j;
      auto o = tile_at(i);
      o.b += j * o.ldb;
      o.init += j * o.ld_init;
      o.c += j * o.ldc;
      kRowsTiles<S>[r](o);
    }
  }
}

}  // namespace PRNN_ISA_NAMESPACE
}  // namespace prnn
