// The loops around the tiles, and the table of kernels. Included by one file an instruction set.
#pragma once

#include "core/cpu/gemm/gemm.h"
#include "core/cpu/gemm/gemm_tables.h"
#include "core/cpu/gemm/outer.h"
#include "core/cpu/gemm/pack.h"
#include "core/cpu/gemm/rows.h"
#include "core/cpu/gemm/sums.h"
#include "core/cpu/gemm/tile.h"

namespace prnn {
namespace PRNN_ISA_NAMESPACE {

// Blocks of a product: of so many columns of B, all panels `k` deep are packed, then `rows` rows of A at a time pass
// through all of them. Deep blocks keep C out of the way; where A is packed too (transposed), wide ones pay better, and
// the sums of a block are added to C.
template <class T, bool kTransposed>
struct Blocks {
  static constexpr int64_t kK = (kTransposed ? 1024 : 4096) / sizeof(T);
  static constexpr int64_t kColumns = kTransposed ? 512 : 192;
  static constexpr int64_t kRows = kTransposed ? 48 : 24;
};
constexpr int64_t kSliceBytes = 512;      // of k: a panel of a recurrent product that stays in the L1 cache
constexpr int64_t kUnpackedK = 64;        // depth of kMaxPanels panels that stay in the L1 cache
constexpr int64_t kShallow = 32;          // of a product in which what takes time is to write C, row after row
constexpr int64_t kMostUnpacked = 2;      // panels of a product whose transposed A is used as it lies
constexpr int64_t kUnpackedBytes = 1600;  // between two of its rows, at most: from 1920 on packing was faster
constexpr int64_t kMaxInPlace = 48;       // rows of A that columns of B as they lie, or panels in the L1 cache, serve
constexpr int64_t kColumnsK = 64;         // depth of what a product of columns as they lie takes at a time

template <class T>
alignas(64) inline constexpr T kZeros[kPanel<T>] = {};

// The vectors of a panel that hold its first `rows` rows.
template <class T>
PRNN_INLINE int vectors_of(int64_t rows) {
  return rows > Simd<T>::kWidth ? 2 : 1;
}

// How many of `count` panels to take together with n vectors: as many as the registers hold, evenly. `vectors` of each.
PRNN_INLINE int64_t panels_at_once(int64_t count, int64_t n, int vectors) {
  const int64_t blocks = (n + kMaxVectors - 1) / kMaxVectors;
  int64_t most = kAccumulators / (vectors * ((n + blocks - 1) / blocks));
  if (most < 1) most = 1;
  if (most > kMaxPanels) most = kMaxPanels;
  if (most > count) most = count;
  const int64_t groups = (count + most - 1) / most;
  return (count + groups - 1) / groups;
}

// Bytes for each k that a tile of the panel at hand prefetches of the next panel, which is packed or lies as the rows
// of S that it is packed from.
template <class S>
PRNN_INLINE int64_t bytes_to_bring(int64_t tiles) {
  return (kPanel<Compute<S>> * static_cast<int64_t>(sizeof(S)) + tiles - 1) / tiles;
}
template <class T>
PRNN_INLINE void bring(const void* panel, int64_t tile, int64_t bytes, TileOperands<T>* o) {
  if (panel == nullptr) return;
  o->next = reinterpret_cast<const char*>(panel) + tile * o->k * bytes;
  o->next_step = bytes;
}

// Adds a slice of `k` of the panels' product to out, or starts it. Panels lie panel_stride apart; out is dense. `next`:
// what is used after the last one, or NULL.
template <class T, class S = T>
PRNN_INLINE void product_slice(const T* panels, int64_t panel_stride, int64_t count, int64_t rows, int64_t k,
                               const T* b, int64_t ldb, int64_t n, bool start, T* out, const S* next) {
  constexpr int64_t W = kPanel<T>;
  const int vectors = vectors_of<T>(rows);
  const int64_t together = panels_at_once(count, n, vectors);
  const int64_t blocks = (n + kMaxVectors - 1) / kMaxVectors, bytes = bytes_to_bring<S>(blocks);
  for (int64_t p = 0; p < count; p += together) {
    const int64_t taken = count - p < together ? count - p : together;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t j = n * block / blocks, r = n * (block + 1) / blocks - j;
      TileOperands<T> o;
      o.panel = panels + p * panel_stride;
      o.panel_stride = panel_stride;
      o.k = k;
      o.b = b + j * ldb;
      o.ldb = ldb;
      o.c = out + (p * n + j) * W;
      o.c_panel_stride = n * W;
      o.ldc = W;
      o.init = start ? kZeros<T> : o.c;
      o.init_panel_stride = start ? 0 : o.c_panel_stride;
      o.ld_init = start ? 0 : W;
      const void* const after =
          p + taken < count ? static_cast<const void*>(panels + (p + taken) * panel_stride) : next;
      bring(after, block, bytes, &o);
      kTiles<T>.tiles[vectors - 1][taken - 1][r - 1](o);
    }
  }
}

template <class T>
void product(const T* panels, int64_t count, int64_t rows, int64_t k, const T* b, int64_t ldb, int64_t n, T* out,
             const T* next) {
  constexpr int64_t W = kPanel<T>;
  const int64_t slice = n > kMaxVectors ? kSliceBytes / sizeof(T) : k;
  if (k == 0) product_slice<T>(panels, 0, count, rows, 0, b, ldb, n, true, out, next);
  for (int64_t begin = 0; begin < k; begin += slice) {
    const int64_t depth = k - begin < slice ? k - begin : slice, end = begin + depth;
    product_slice<T>(panels + begin * W, k * W, count, rows, depth, b + begin, ldb, n, begin == 0, out,
                     end < k ? panels + end * W : next);
  }
}

template <class S>
void product_from_rows(const S* const* sources, int64_t ld, int64_t rows, int64_t count, int64_t k, const Compute<S>* b,
                       int64_t ldb, int64_t n, Compute<S>* out) {
  using T = Compute<S>;
  constexpr int64_t W = kPanel<T>;
  if (n <= kMostRowsVectors && rows % kTileRows<T> == 0) {
    const int64_t tiles = rows / kTileRows<T>;  // of a panel
    return rows_products<S>(count * tiles, ld, n, [&](int64_t tile) __attribute__((always_inline)) {
      const int64_t p = tile / tiles, i = tile % tiles * kTileRows<T>;
      return TileOperands<T, S>{sources[p] + i * ld, ld, k, b, ldb, kZeros<T>, 0, 0, out + p * n * W + i, 0, W};
    });
  }
  if (n > kMaxVectors && count > 1) {  // whose tiles take one panel anyway
    for (int64_t p = 0; p < count; ++p) product_from_rows<S>(sources + p, ld, rows, 1, k, b, ldb, n, out + p * n * W);
    return;
  }
  alignas(64) T panels[kMaxPanels * kUnpackedK * W];
  const int64_t most = kUnpackedK * (kMaxPanels / count);
  for (int64_t begin = 0; begin < k; begin += most) {
    const int64_t depth = k - begin < most ? k - begin : most, stride = most * W;
    for (int64_t p = 0; p < count; ++p) pack_rows<S>(sources[p] + begin, ld, rows, depth, panels + p * stride);
    product_slice<T, S>(panels, stride, count, rows, depth, b + begin, ldb, n, begin == 0, out,
                        sources[count - 1] + rows * ld + begin * rows);
  }
}

// `count` panels of a matrix's columns as they lie times n vectors. o: a tile's of the first panel and vector, with all
// of k. Few rows of the matrix at a time, which are read in long runs.
template <class T>
PRNN_INLINE void columns_product(const TileOperands<T>& whole, int64_t count, int64_t n) {
  constexpr int64_t W = kPanel<T>;
  const int64_t together = panels_at_once(count, n, 2), blocks = (n + kMaxVectors - 1) / kMaxVectors;
  for (int64_t begin = 0; begin < whole.k; begin += kColumnsK) {
    for (int64_t p = 0; p < count; p += together) {
      const int64_t taken = count - p < together ? count - p : together;
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t j = n * block / blocks, r = n * (block + 1) / blocks - j;
        TileOperands<T> o = whole;
        o.panel += begin * o.step + p * o.panel_stride;
        o.k = o.k - begin < kColumnsK ? o.k - begin : kColumnsK;
        o.b += j * o.ldb + begin;
        o.c += p * o.c_panel_stride + j * o.ldc;
        // The next panel's part of a row lies behind this one's.
        if (block < 2 && p + taken < count) {
          o.next = o.panel + W + block * (W / 2);
          o.next_step = o.step * static_cast<int64_t>(sizeof(T));
        }
        if (begin == 0) {
          o.init += p * o.init_panel_stride + j * o.ld_init;
        } else {
          o.init = o.c;
          o.init_panel_stride = o.c_panel_stride;
          o.ld_init = o.ldc;
        }
        kTiles<T>.tiles[1][taken - 1][r - 1](o);
      }
    }
  }
}

template <class S>
void product_from_columns(const S* source, int64_t ld, int64_t count, int64_t k, const Compute<S>* b, int64_t ldb,
                          int64_t n, Compute<S>* out) {
  using T = Compute<S>;
  constexpr int64_t W = kPanel<T>;
  if constexpr (std::is_same_v<S, T>) {
    columns_product<T>({source, W, k, b, ldb, kZeros<T>, 0, 0, out, n * W, W, ld}, count, n);
  } else {
    alignas(64) T panels[kMaxPanels * kColumnsK * W];
    for (int64_t p = 0; p < count; p += kMaxPanels) {
      const int64_t taken = count - p < kMaxPanels ? count - p : kMaxPanels;
      for (int64_t begin = 0; begin < k; begin += kColumnsK) {
        const int64_t depth = k - begin < kColumnsK ? k - begin : kColumnsK;
        pack_columns<S>(source + begin * ld + p * W, ld, taken * W, depth, panels);
        product_slice<T>(panels, depth * W, taken, W, depth, b + begin, ldb, n, begin == 0, out + p * n * W,
                         static_cast<const T*>(nullptr));
      }
    }
  }
}

// Bytes of the packed blocks.
template <class T>
constexpr size_t block_bytes() {
  using Plain = Blocks<T, false>;
  using Transposed = Blocks<T, true>;
  constexpr int64_t kPlain = Plain::kColumns * Plain::kK;
  constexpr int64_t kTransposed = (Transposed::kColumns + Transposed::kRows) * Transposed::kK;
  constexpr size_t kBytes = (kPlain > kTransposed ? kPlain : kTransposed) * sizeof(T);
  static_assert(kBytes % 64 == 0, "the next thread's begin a cache line");
  return kBytes;
}

// The first `count` elements of a panel's width, fewer than all, and zeros behind them; from: NULL for zeros alone.
template <class T>
PRNN_INLINE void copy_part(const T* from, int64_t count, T* to) {
  constexpr int64_t V = Simd<T>::kWidth;
  Vector<T> first = {}, second = {};
  if (from != nullptr) {
    first = count < V ? load_part(from, static_cast<int>(count)) : load(from);
    if (count > V) second = load_part(from + V, static_cast<int>(count - V));
  }
  store(to, first);
  store(to + V, second);
}

// One row group of C times `count` panels of B, one or several whole ones. `a` as the tile wants it.
template <class S, class T>
PRNN_INLINE void gemm_tile(const Gemm<S>& g, const T* panel, int64_t panel_stride, int64_t count, int64_t depth,
                           const T* a, int64_t lda, bool grouped, int64_t row, int64_t r, int64_t column, bool first,
                           const void* next, int64_t tile, int64_t next_bytes) {
  constexpr int64_t W = kPanel<T>;
  const int64_t width = g.n - column < W ? g.n - column : W;
  alignas(64) T edge[kMaxVectors * W];
  T* c = g.c + row * g.ldc + column;
  TileOperands<T> o;
  o.panel = panel;
  o.panel_stride = panel_stride;
  o.init_panel_stride = o.c_panel_stride = W;
  o.k = depth;
  o.b = a;
  o.ldb = lda;
  bring(next, tile, next_bytes, &o);
  const bool from_c = !first || g.accumulate;
  if (width == W) {
    o.c = c;
    o.ldc = g.ldc;
    o.init = from_c ? c : g.bias != nullptr ? g.bias + column : kZeros<T>;
    o.ld_init = from_c ? g.ldc : 0;
    if (o.init == kZeros<T>) o.init_panel_stride = 0;
  } else {
    o.c = edge;
    o.ldc = W;
    o.init = edge;
    o.ld_init = W;
    const T* const from = from_c ? c : g.bias != nullptr ? g.bias + column : nullptr;
    for (int64_t j = 0; j < r; ++j)
      copy_part(from == nullptr ? from : from + (from_c ? j * g.ldc : 0), width, edge + j * W);
  }
  // The next row group's part of C arrives while this one is computed.
  const int64_t coming = g.m - row - r < r ? g.m - row - r : r;
  for (int64_t j = 0; j < coming; ++j) __builtin_prefetch(c + (r + j) * g.ldc, 1);
  const int vectors = vectors_of<T>(width);
  (grouped ? kTiles<T>.grouped[vectors - 1][r - 1] : kTiles<T>.tiles[vectors - 1][count - 1][r - 1])(o);
  if (width < W) {
    for (int64_t j = 0; j < r; ++j) std::memcpy(c + j * g.ldc, edge + j * W, width * sizeof(T));
  }
}

template <class S, bool kTransposed>
void gemm_blocks(const Gemm<S>& g, Range rows, Range columns, char* scratch) {
  using T = Compute<S>;
  using B = Blocks<T, kTransposed>;
  constexpr int64_t W = kPanel<T>, R = kMaxVectors;
  T* packed = reinterpret_cast<T*>(scratch);
  T* groups = packed + B::kColumns * B::kK;
  // Panels packed for few rows stay in the L1 cache. With very few rows, several panels at a time fill the registers.
  const bool given = g.panels != nullptr;
  const bool few = !kTransposed && rows.size() <= R / 2, some = !kTransposed && (given || rows.size() <= kMaxInPlace);
  const int64_t most_columns = few ? kMaxPanels * W : some ? W : B::kColumns;
  const int64_t most_deep = few ? kUnpackedK : some ? kMaxPanels * kUnpackedK : B::kK;
  const int64_t tiles = (rows.size() + R - 1) / R, bytes = given ? bytes_to_bring<T>(tiles) : bytes_to_bring<S>(tiles);
  for (int64_t column = columns.begin; column < columns.end; column += most_columns) {
    const int64_t width = columns.end - column < most_columns ? columns.end - column : most_columns;
    const int64_t together = few && width >= W ? panels_at_once(width / W, rows.size(), 2) : 1;
    int64_t k = 0;
    do {  // once at least: a product of depth 0 is its initial value
      const int64_t depth = g.k - k < most_deep ? g.k - k : most_deep;
      const T* const panels = given ? g.panels + column * g.k + k * W : packed;
      const int64_t length = given ? g.k : depth;
      // Slices of panels that are given follow one another. Those of few rows are packed while the tiles of the last
      // one bring a part of all its rows.
      const bool is_last = k + depth == g.k && column + width == columns.end;
      const void* next = nullptr;
      if (given) {
        next = is_last ? g.panels + columns.begin * g.k : panels + depth * W;
      } else if (some && g.b_transposed && column + width < columns.end) {
        next = g.b + (column + width) * g.ldb + k * W;
      }
      if (!given && g.b_transposed) {
        for (int64_t i = 0; i < width; i += W) {
          pack_rows<S>(g.b + (column + i) * g.ldb + k, g.ldb, width - i < W ? width - i : W, depth, packed + i * depth);
        }
      } else if (!given) {
        pack_columns<S>(g.b + k * g.ldb + column, g.ldb, width, depth, packed);
      }
      for (int64_t row = rows.begin; row < rows.end; row += B::kRows) {
        const int64_t height = rows.end - row < B::kRows ? rows.end - row : B::kRows;
        const bool packs = kTransposed && (width > kMostUnpacked * W || g.lda > kUnpackedBytes / int64_t{sizeof(T)});
        if (packs) pack_groups<T, R>(g.a + k * g.lda + row, g.lda, height, depth, groups);
        const auto run = [&](int64_t i, int64_t count, int64_t j) __attribute__((always_inline)) {
          const int64_t r = height - j < R ? height - j : R;
          const T* const a = packs         ? groups + j * depth
                             : kTransposed ? g.a + k * g.lda + row + j
                                           : g.a + (row + j) * g.lda + k;
          gemm_tile(g, panels + i * length, W * length, count, depth, a, packs ? r : g.lda, kTransposed, row + j, r,
                    column + i, k == 0, next, (row - rows.begin + j) / R, bytes);
        };
        if (kTransposed && depth <= kShallow) {
          for (int64_t j = 0; j < height; j += R) {
            for (int64_t i = 0; i < width; i += W) run(i, 1, j);
          }
          continue;
        }
        for (int64_t i = 0, count; i < width; i += count * W) {
          count = width - i >= together * W ? together : 1;
          for (int64_t j = 0; j < height; j += R) run(i, count, j);
        }
      }
      k += depth;
    } while (k < g.k);
  }
}

// Multiplies few rows of A with the columns that make whole tiles of B as it lies. Returns where the rest begins.
// gemm_blocks() packs so few of the columns that have to be converted that they stay in the L1 cache.
template <class S>
int64_t gemm_in_place(const Gemm<S>& g, Range rows, Range columns) {
  using T = Compute<S>;
  constexpr bool kWidens = !std::is_same_v<S, T>;
  constexpr int64_t W = kPanel<T>;
  const int64_t n = rows.size(), width = g.b_transposed ? kTileRows<T> : W, count = columns.size() / width;
  const int64_t most = g.b_transposed ? kMostRowsVectors : kMaxInPlace;
  if (g.panels != nullptr || (kWidens && !g.b_transposed)) return columns.begin;
  if (g.a_transposed || n > most || count == 0 || g.k == 0) return columns.begin;
  TileOperands<T, S> o;
  o.k = g.k;
  o.b = g.a + rows.begin * g.lda;
  o.ldb = g.lda;
  o.c = g.c + rows.begin * g.ldc + columns.begin;
  o.ldc = g.ldc;
  o.init = g.accumulate ? o.c : g.bias != nullptr ? g.bias + columns.begin : kZeros<T>;
  o.ld_init = g.accumulate ? g.ldc : 0;
  o.c_panel_stride = width;
  o.init_panel_stride = o.init == kZeros<T> ? 0 : width;
  if (g.b_transposed) {
    o.panel = g.b + columns.begin * g.ldb;
    o.panel_stride = g.ldb;
    rows_products<S>(count, g.ldb, n, [&](int64_t i) __attribute__((always_inline)) {
      TileOperands<T, S> tile = o;
      tile.panel += i * width * g.ldb;
      tile.c += i * width;
      tile.init += i * o.init_panel_stride;
      return tile;
    });
  } else if constexpr (!kWidens) {
    o.panel = g.b + columns.begin;
    o.panel_stride = W;
    o.step = g.ldb;
    columns_product(o, count, n);
  }
  return columns.begin + count * width;
}

template <class S>
void gemm(const Gemm<S>& g, Range rows, Range columns, char* scratch) {
  if constexpr (std::is_same_v<S, Compute<S>>) {
    if (is_outer(g)) return outer(g, rows, columns);
  }
  columns.begin = gemm_in_place(g, rows, columns);
  if (columns.size() == 0) return;
  g.a_transposed ? gemm_blocks<S, true>(g, rows, columns, scratch) : gemm_blocks<S, false>(g, rows, columns, scratch);
}

template <class S>
constexpr GemmKernels<S> make_gemm_kernels() {
  using T = Compute<S>;
  return {kPanel<T>,
          kMaxFew,
          kMaxOuter,
          kMaxPanels,
          block_bytes<T>(),
          &pack_rows<S>,
          &pack_columns<S>,
          &product<T>,
          &product_from_rows<S>,
          &product_from_columns<S>,
          &gemm<S>,
          &gemm<T>,
          &add_rows<T>,
          &widen_array<S>,
          &narrow_array<S>};
}

inline constexpr GemmTables kGemmTables = {make_gemm_kernels<float>(), make_gemm_kernels<double>(),
                                           make_gemm_kernels<Half>(), make_gemm_kernels<Bfloat16>()};

}  // namespace PRNN_ISA_NAMESPACE
}  // namespace prnn
