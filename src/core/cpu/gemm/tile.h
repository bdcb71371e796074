// The inner kernel of every product: P panels times R vectors, all sums in registers.
#pragma once

#include <cstdint>
#include <utility>

#include "core/cpu/simd.h"

namespace prnn {
namespace PRNN_ISA_NAMESPACE {

// Operands of a tile. Panels as in gemm.h. Vector j's element k lies at b[j * ldb + k], or, when the tile's kGrouped is
// set, at b[k * R + j]. The sums start from init and go to c; both hold panel p's (i, j) at [p * panel_stride + j * ld
// + i].
template <class T>
struct TileOperands {
  const T* panel;
  int64_t panel_stride;
  int64_t k;
  const T* b;
  int64_t ldb;
  const T* init;
  int64_t init_panel_stride, ld_init;
  T* c;
  int64_t c_panel_stride, ldc;
};

template <class T>
using TileFunction = void (*)(const TileOperands<T>&);

template <class T, int P, int R, bool kGrouped>
void tile(const TileOperands<T>& operands) {
  const TileOperands<T> o = operands;  // which no store can change
  constexpr int W = Simd<T>::kWidth;
  Vector<T> sums[P][R][2];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 12
    for (int j = 0; j < R; ++j) {
      sums[p][j][0] = load(o.init + p * o.init_panel_stride + j * o.ld_init);
      sums[p][j][1] = load(o.init + p * o.init_panel_stride + j * o.ld_init + W);
    }
  }
  const T* panel = o.panel;
  const int64_t panel_stride = o.panel_stride, length = o.k, ldb = o.ldb;
  const T* b = o.b;
  for (int64_t k = 0; k < length; ++k) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const Vector<T> low = load(panel + p * panel_stride), high = load(panel + p * panel_stride + W);
#pragma GCC unroll 12
      for (int j = 0; j < R; ++j) {
        const Vector<T> x = broadcast(kGrouped ? b[j] : b[j * ldb]);
        sums[p][j][0] = fma(low, x, sums[p][j][0]);
        sums[p][j][1] = fma(high, x, sums[p][j][1]);
      }
    }
    panel += 2 * W;
    b += kGrouped ? R : 1;
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 12
    for (int j = 0; j < R; ++j) {
      store(o.c + p * o.c_panel_stride + j * o.ldc, sums[p][j][0]);
      store(o.c + p * o.c_panel_stride + j * o.ldc + W, sums[p][j][1]);
    }
  }
}

// The most vectors that a tile of P panels takes.
constexpr int max_vectors(int panels) { return kAccumulators / (2 * panels); }
constexpr int kMaxPanels = 4;
constexpr int kMaxVectors = max_vectors(1);

// tiles[P - 1][R - 1]; NULL where the sums do not fit the registers.
template <class T, int P, bool kGrouped>
struct TileRow {
  template <int... R>
  static constexpr void fill(TileFunction<T>* row, std::integer_sequence<int, R...>) {
    ((row[R] = &tile<T, P, R + 1, kGrouped>), ...);
  }
};

template <class T>
struct TileTable {
  TileFunction<T> tiles[kMaxPanels][kMaxVectors] = {};
  TileFunction<T> grouped[kMaxVectors] = {};
  constexpr TileTable() {
    TileRow<T, 1, false>::fill(tiles[0], std::make_integer_sequence<int, max_vectors(1)>());
    TileRow<T, 2, false>::fill(tiles[1], std::make_integer_sequence<int, max_vectors(2)>());
    TileRow<T, 3, false>::fill(tiles[2], std::make_integer_sequence<int, max_vectors(3)>());
    TileRow<T, 4, false>::fill(tiles[3], std::make_integer_sequence<int, max_vectors(4)>());
    TileRow<T, 1, true>::fill(grouped, std::make_integer_sequence<int, max_vectors(1)>());
  }
};

template <class T>
inline constexpr TileTable<T> kTiles{};

}  // namespace PRNN_ISA_NAMESPACE
}  // namespace prnn
