// The inner kernel of every product: P panels times R vectors, all sums in registers. V is the vectors of a panel that
// are computed: both, or the first alone where no more rows are wanted.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "core/cpu/simd.h"

namespace prnn {
namespace PRNN_ISA_NAMESPACE {

// Operands of a tile. Panels as in gemm.h. Vector j's element k lies at b[j * ldb + k], or, when the tile's kGrouped is
// set, at b[k * R + j]. The sums start from init and go to c; both hold panel p's (i, j) at [p * panel_stride + j * ld
// + i].
template <class T, class S = T>
struct TileOperands {
  const S* panel;
  int64_t panel_stride;
  int64_t k;
  const T* b;
  int64_t ldb;
  const T* init;
  int64_t init_panel_stride, ld_init;
  T* c;
  int64_t c_panel_stride, ldc;
  int64_t step = 2 * Simd<T>::kWidth;  // from a panel's element (i, k) to (i, k + 1)
};

template <class T>
using TileFunction = void (*)(const TileOperands<T>&);

// A tile of depth 0: the sums are what they start from.
template <class T>
__attribute__((noinline)) void copy_start(const TileOperands<T>& o, int panels, int vectors, int width) {
  for (int p = 0; p < panels; ++p) {
    for (int j = 0; j < vectors; ++j) {
      std::memmove(o.c + p * o.c_panel_stride + j * o.ldc, o.init + p * o.init_panel_stride + j * o.ld_init,
                   width * sizeof(T));
    }
  }
}

template <class T, int V, int P, int R, bool kGrouped>
void tile(const TileOperands<T>& operands) {
  const TileOperands<T> o = operands;  // which no store can change
  constexpr int W = Simd<T>::kWidth;
  if (o.k <= 0) return copy_start(o, P, R, V * W);
  Vector<T> sums[P][R][V];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 12
    for (int j = 0; j < R; ++j) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        sums[p][j][v] = load(o.init + p * o.init_panel_stride + j * o.ld_init + v * W);
      }
    }
  }
  const T* panel = o.panel;
  const int64_t panel_stride = o.panel_stride, length = o.k, ldb = o.ldb, step = o.step;
  const T* b = o.b;
  int64_t k = 0;
  do {  // once at least, or the sums would leave their registers around the loop
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      Vector<T> weights[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) weights[v] = load(panel + p * panel_stride + v * W);
#pragma GCC unroll 12
      for (int j = 0; j < R; ++j) {
        const Vector<T> x = broadcast(kGrouped ? b[j] : b[j * ldb]);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sums[p][j][v] = fma(weights[v], x, sums[p][j][v]);
      }
    }
    panel += step;
    b += kGrouped ? R : 1;
  } while (++k < length);
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 12
    for (int j = 0; j < R; ++j) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) store(o.c + p * o.c_panel_stride + j * o.ldc + v * W, sums[p][j][v]);
    }
  }
}

// Functions::of<1>() to Functions::of<N>().
template <class F, int N, class Functions>
class FunctionTable {
 public:
  constexpr FunctionTable() { fill(std::make_integer_sequence<int, N>()); }
  constexpr F operator[](int64_t i) const { return functions_[i - 1]; }

 private:
  template <int... I>
  constexpr void fill(std::integer_sequence<int, I...>) {
    ((functions_[I] = Functions::template of<I + 1>()), ...);
  }
  F functions_[N] = {};
};

// The most vectors that a tile of P panels takes, of each of which V vectors are computed.
constexpr int kMaxPanels = 4;
constexpr int kMaxVectors = kAccumulators / 2;
constexpr int max_vectors(int vectors, int panels) {
  const int most = kAccumulators / (vectors * panels);
  return most < kMaxVectors ? most : kMaxVectors;
}

template <class T, int V, int P, bool kGrouped>
struct TileRow {
  template <int... R>
  static constexpr void fill(TileFunction<T>* row, std::integer_sequence<int, R...>) {
    ((row[R] = &tile<T, V, P, R + 1, kGrouped>), ...);
  }
  static constexpr void fill(TileFunction<T>* row) { fill(row, std::make_integer_sequence<int, max_vectors(V, P)>()); }
};

// tiles[V - 1][P - 1][R - 1], grouped[V - 1][R - 1]; NULL where the sums do not fit the registers.
template <class T>
struct TileTable {
  TileFunction<T> tiles[2][kMaxPanels][kMaxVectors] = {};
  TileFunction<T> grouped[2][kMaxVectors] = {};
  constexpr TileTable() {
    fill<1>();
    fill<2>();
  }

 private:
  template <int V>
  constexpr void fill() {
    TileRow<T, V, 1, false>::fill(tiles[V - 1][0]);
    TileRow<T, V, 2, false>::fill(tiles[V - 1][1]);
    TileRow<T, V, 3, false>::fill(tiles[V - 1][2]);
    TileRow<T, V, 4, false>::fill(tiles[V - 1][3]);
    TileRow<T, V, 1, true>::fill(grouped[V - 1]);
  }
};

template <class T>
inline constexpr TileTable<T> kTiles{};

}  // namespace PRNN_ISA_NAMESPACE
}  // namespace prnn
