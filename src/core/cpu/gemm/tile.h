// The inner kernel of every product: P panels times R vectors, all sums in registers. V is the vectors of a panel that
// are computed: both, or the first alone where no more rows are wanted.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "core/cpu/simd.h"

namespace prnn {
namespace PRNN_ISA_NAMESPACE {

alignas(64) inline constexpr char kNothing[64] = {};

// Operands of a tile. Panels as in gemm.h. Vector j's element k lies at b[j * ldb + k], or, when the tile's kGrouped is
// set, at b[k * ldb + j]. The sums start from init, grouped ones from zero, to which init is added at the end, and go
// to c; both hold panel p's (i, j) at [p * panel_stride + j * ld + i]. A tile reads them one by one: vectors of several
// would wait for the stores that have just written them.
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
  // Memory that is used next: for each k, whole tiles of one panel bring a line of it to the L2 cache, next_step bytes
  // further.
  const void* next = kNothing;
  int64_t next_step = 0;
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
void tile(const TileOperands<T>& o) {
  constexpr int W = Simd<T>::kWidth;
  if (o.k <= 0) return copy_start(o, P, R, V * W);
  Vector<T> sums[P][R][V];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 12
    for (int j = 0; j < R; ++j) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        sums[p][j][v] = kGrouped ? Vector<T>{} : load(o.init + p * o.init_panel_stride + j * o.ld_init + v * W);
      }
    }
  }
  const T* panel = o.panel;
  const int64_t panel_stride = o.panel_stride, length = o.k, ldb = o.ldb, step = o.step;
  const T* b = o.b;
  T* const c = o.c;
  const int64_t c_panel_stride = o.c_panel_stride, ldc = o.ldc;
  const auto* next = static_cast<const char*>(o.next);
  const int64_t next_step = o.next_step;
  // The vectors from kNear on have a pointer of their own, or their offsets would not all find a register.
  constexpr int kNear = !kGrouped && R > 6 ? 6 : R;
  const T* far = b + kNear * ldb;
  __asm__("" : "+r"(far));
  int64_t k = 0;
  do {  // once at least, or the sums would leave their registers around the loop
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      Vector<T> weights[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) weights[v] = load(panel + p * panel_stride + v * W);
#pragma GCC unroll 12
      for (int j = 0; j < R; ++j) {
        const Vector<T> x = broadcast(kGrouped ? b[j] : j < kNear ? b[j * ldb] : far[(j - kNear) * ldb]);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sums[p][j][v] = fma(weights[v], x, sums[p][j][v]);
      }
    }
    if constexpr (V == 2 && P == 1) {
      __builtin_prefetch(next, 0, 2);
      next += next_step;
    }
    panel += step;
    b += kGrouped ? ldb : 1;
    ++far;
  } while (++k < length);
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 12
    for (int j = 0; j < R; ++j) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        if (kGrouped) sums[p][j][v] += load(o.init + p * o.init_panel_stride + j * o.ld_init + v * W);
        store(c + p * c_panel_stride + j * ldc + v * W, sums[p][j][v]);
      }
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
