// Products of bfloat16 numbers in pairs, whose sums are float, by one of two engines: AMX's tiles (amx.h) or vectors
// (gemm_bfloat16_avx512.cc). Float operands are the sum of two bfloat16 numbers, 16 of their 24 bits. A panel is two
// columns of tiles, of 16 units each; products that are no deeper than kShallowest are the vectors' of gemm_impl.h.
#pragma once

#include "core/cpu/gemm/gemm_impl.h"

namespace prnn {
namespace PRNN_ISA_NAMESPACE {

// A tile is 16 rows of 64 bytes. Of a product's left operand: 16 rows, `kDepth` deep. Of its right one: pairs of rows
// of 16 columns, the two numbers of a column side by side. Zeros beyond the matrix.
constexpr int64_t kDepth = 32, kSide = 16, kTile = kSide * kDepth;
constexpr int64_t kGroup = 2 * kSide;  // rows of the left operand that are multiplied together
constexpr int64_t kShallowest = 15;    // a deeper panel's tiles are no larger than its floats
constexpr int64_t kPanelWidth = kPanel<float>;
static_assert(kPanelWidth == 2 * kSide);

inline int64_t tiles_of(int64_t k) { return (k + kDepth - 1) / kDepth; }

inline Bfloat16* tiles_at(float* panel) { return reinterpret_cast<Bfloat16*>(panel); }
inline const Bfloat16* tiles_at(const float* panel) { return reinterpret_cast<const Bfloat16*>(panel); }

// Rows of C times panels of 32 columns. The left operand's tiles: [blocks][2], of rows [0, 16) and the others; the
// right one's: [blocks] of columns [0, 16), `half` behind them those of the others. `low`: the smaller parts, or NULL.
struct TileProduct {
  const Bfloat16 *left, *left_low;
  const Bfloat16 *right, *right_low;
  int64_t half;
  int64_t depth;
  float* c;
  int64_t ldc;
  bool start;  // else the sums start from C

  int64_t blocks() const { return tiles_of(depth); }
};

// How far behind a panel's right operand and C those of the next one lie.
struct NextPanel {
  int64_t right, c;
};

// 16 numbers of each of two vectors, one behind the other.
PRNN_INLINE __m512i round_two(FloatVector first, FloatVector second) {
  __m512i rounded;
  __asm__("vcvtne2ps2bf16\t%1, %2, %0" : "=v"(rounded) : "v"(first), "v"(second));
  return rounded;
}
PRNN_INLINE FloatBits first_of(__m512i two) {
  return (FloatBits)_mm512_maskz_cvtepu16_epi32(0xffff, _mm512_maskz_extracti64x4_epi64(0xff, two, 0));
}
PRNN_INLINE FloatBits second_of(__m512i two) {
  return (FloatBits)_mm512_maskz_cvtepu16_epi32(0xffff, _mm512_maskz_extracti64x4_epi64(0xff, two, 1));
}

// Two vectors rounded to bfloat16, and the rounding errors. An infinity or a NaN has none.
struct Split {
  __m512i high, low;
};
PRNN_INLINE Split split(FloatVector first, FloatVector second) {
  const __m512i high = round_two(first, second), infinity = _mm512_set1_epi16(0x7f80);
  const __m512i low =
      round_two(first - (FloatVector)(first_of(high) << 16), second - (FloatVector)(second_of(high) << 16));
  return {high, _mm512_maskz_mov_epi16(_mm512_cmpneq_epi16_mask(_mm512_and_si512(high, infinity), infinity), low)};
}
PRNN_INLINE bool is_any(__m512i bits) { return _mm512_test_epi32_mask(bits, bits) != 0; }
PRNN_INLINE FloatVector load_some(const float* p, int64_t count) {
  return count >= kSide ? load(p) : load_part(p, count > 0 ? static_cast<int>(count) : 0);
}
PRNN_INLINE void store_tile_row(Bfloat16* p, __m512i row) { _mm512_storeu_si512(p, row); }

// Whether rows [0, rows) hold bfloat16 numbers.
inline bool are_bfloat16(const float* source, int64_t ld, int64_t rows, int64_t k) {
  FloatBits any = {};
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t j = 0; j < k; j += kSide) any |= (FloatBits)load_some(source + row * ld + j, k - j);
    if (is_any((__m512i)(any & 0xffff))) return false;
  }
  return true;
}

// The left operand's tiles of rows [0, rows), at most kGroup, of a row-major matrix `k` deep. low: NULL for bfloat16
// numbers.
inline void split_rows(const float* source, int64_t ld, int64_t rows, int64_t k, Bfloat16* high, Bfloat16* low) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* const from = source + row * ld;
    for (int64_t j = 0; j < k; j += kDepth) {
      const int64_t to = (j / kDepth * kGroup + row) * kDepth;
      const FloatVector first = load_some(from + j, k - j), second = load_some(from + j + kSide, k - j - kSide);
      if (low == nullptr) {
        store_tile_row(high + to, round_two(first, second));
      } else {
        const Split parts = split(first, second);
        store_tile_row(high + to, parts.high);
        store_tile_row(low + to, parts.low);
      }
    }
  }
}

// split_rows() with one part alone where rows [0, rows) hold bfloat16 numbers. Returns whether there are two parts.
inline bool split_as_needed(const float* source, int64_t ld, int64_t rows, int64_t k, Bfloat16* high, Bfloat16* low) {
  const bool has_low = !are_bfloat16(source, ld, rows, k);
  split_rows(source, ld, rows, k, high, has_low ? low : nullptr);
  return has_low;
}

// One column of tiles from rows [0, rows), at most 16.
inline void pack_row_tiles(const Bfloat16* source, int64_t ld, int64_t rows, int64_t k, Bfloat16* tiles) {
  constexpr int64_t kAhead = 4 * kDepth;
  alignas(64) Bfloat16 copy[kTile];
  for (int64_t j = 0; j < k; j += kDepth, tiles += kTile) {
    const Bfloat16* from = source + j;
    int64_t stride = ld;
    if (rows == kSide && k - j >= kDepth) {
      for (int64_t row = 0; row < kSide; ++row) __builtin_prefetch(source + row * ld + j + kAhead);
    } else {
      const __mmask32 lanes = k - j < kDepth ? (__mmask32{1} << (k - j)) - 1 : ~__mmask32{0};
      for (int64_t row = 0; row < kSide; ++row) {
        store_tile_row(copy + row * kDepth, _mm512_maskz_loadu_epi16(row < rows ? lanes : 0, from + row * ld));
      }
      from = copy;
      stride = kDepth;
    }
    for (int64_t pair = 0; pair < kSide; pair += 4) {
      FloatVector columns[4];
      load_quads(from + 2 * pair, stride, columns);
#pragma GCC unroll 4
      for (int64_t c = 0; c < 4; ++c) store(reinterpret_cast<float*>(tiles + (pair + c) * kDepth), columns[c]);
    }
  }
}

// One column of tiles from columns [0, columns), at most 16, of a row-major matrix.
inline void pack_column_tiles(const Bfloat16* source, int64_t ld, int64_t columns, int64_t k, Bfloat16* tiles) {
  const __mmask16 lanes = static_cast<__mmask16>((1u << columns) - 1);
  const int64_t pairs = tiles_of(k) * kSide;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int64_t left = k - 2 * pair;
    const Bfloat16* const row = source + 2 * pair * ld;
    const __m256i first = _mm256_maskz_loadu_epi16(left > 0 ? lanes : 0, row);
    const __m256i second = _mm256_maskz_loadu_epi16(left > 1 ? lanes : 0, row + ld);
    const FloatBits both = (FloatBits)_mm512_maskz_cvtepu16_epi32(0xffff, first) |
                           (FloatBits)_mm512_maskz_cvtepu16_epi32(0xffff, second) << 16;
    store(reinterpret_cast<float*>(tiles + pair * kDepth), (FloatVector)both);
  }
}

// The kernels of GemmKernels<Bfloat16>. E: an engine, with
//   begin(rows), end()   around products of so many rows of the left operand
//   multiply_panels()    rows of the left operand's tiles times `count` panels
//   panels_at_once()     how many of `count` panels it multiplies together with few rows
//   from_few_rows()      GemmKernels::product_from_rows for few vectors, and whether it has computed them
//   gemm_of_few_rows()   the same of GemmKernels::gemm; columns: what is left to compute
//   kSlice, kGemmSlice   depths of what a recurrent product, and gemm(), convert at a time
//   kLeastFromColumns    vectors from which on product_from_columns() is the engine's
template <class E>
struct DotKernels {
  static constexpr int64_t W = kPanelWidth;
  static constexpr int64_t kSlice = E::kSlice;
  static constexpr int64_t kGemmSlice = E::kGemmSlice, kGemmColumns = 512;
  static_assert(2 * (kGemmColumns * kGemmSlice + 2 * kGroup * kGemmSlice) <= int64_t{block_bytes<float>()});

  static void pack_rows(const Bfloat16* source, int64_t ld, int64_t rows, int64_t k, float* panel) {
    if (k <= kShallowest) return PRNN_ISA_NAMESPACE::pack_rows(source, ld, rows, k, panel);
    pack_two_rows(source, ld, rows, k, tiles_at(panel), tiles_of(k) * kTile);
  }

  static void pack_columns(const Bfloat16* source, int64_t ld, int64_t columns, int64_t k, float* panels) {
    if (k <= kShallowest) return PRNN_ISA_NAMESPACE::pack_columns(source, ld, columns, k, panels);
    for (int64_t column = 0; column < columns; column += W) {
      pack_two_columns(source + column, ld, columns - column, k, tiles_at(panels + column * k), tiles_of(k) * kTile);
    }
  }

  static void product(const float* panels, int64_t count, int64_t rows, int64_t k, const float* b, int64_t ldb,
                      int64_t n, float* out, const float* next) {
    if (k <= kShallowest) return PRNN_ISA_NAMESPACE::product(panels, count, rows, k, b, ldb, n, out, next);
    alignas(64) Bfloat16 high[kGroup * kSlice], low[kGroup * kSlice];
    const int64_t half = tiles_of(k) * kTile;
    for (int64_t j = 0; j < n; j += kGroup) {
      const int64_t height = n - j < kGroup ? n - j : kGroup;
      E::begin(height);
      for (int64_t begin = 0; begin < k; begin += kSlice) {
        const int64_t depth = k - begin < kSlice ? k - begin : kSlice;
        const bool has_low = split_as_needed(b + j * ldb + begin, ldb, height, depth, high, low);
        const TileProduct o{
            high,      has_low ? low : nullptr, tiles_at(panels) + begin * kSide, nullptr, half, depth, out + j * W, W,
            begin == 0};
        E::multiply_panels(o, height, count, {2 * W * k, n * W});
      }
    }
    E::end();
  }

  static void product_from_rows(const Bfloat16* const* sources, int64_t ld, int64_t rows, int64_t count, int64_t k,
                                const float* b, int64_t ldb, int64_t n, float* out) {
    if (k <= kShallowest) return PRNN_ISA_NAMESPACE::product_from_rows(sources, ld, rows, count, k, b, ldb, n, out);
    if (E::from_few_rows(sources, ld, rows, count, k, b, ldb, n, out)) return;
    product_once(count, k, b, ldb, n, out, [&](int64_t p, int64_t begin, int64_t depth, Bfloat16* panel, int64_t half) {
      pack_two_rows(sources[p] + begin, ld, rows, depth, panel, half);
    });
  }

  static void product_from_columns(const Bfloat16* source, int64_t ld, int64_t count, int64_t k, const float* b,
                                   int64_t ldb, int64_t n, float* out) {
    if (k <= kShallowest || n < E::kLeastFromColumns) {
      return PRNN_ISA_NAMESPACE::product_from_columns(source, ld, count, k, b, ldb, n, out);
    }
    product_once(count, k, b, ldb, n, out, [&](int64_t p, int64_t begin, int64_t depth, Bfloat16* panel, int64_t half) {
      pack_two_columns(source + begin * ld + p * W, ld, W, depth, panel, half);
    });
  }

  static void gemm(const Gemm<Bfloat16>& g, Range rows, Range columns, char* scratch) {
    if (g.a_transposed || g.k <= kShallowest) return PRNN_ISA_NAMESPACE::gemm(g, rows, columns, scratch);
    columns.begin = E::gemm_of_few_rows(g, rows, columns, scratch);
    if (columns.size() <= 0) return;
    const bool given = g.panels != nullptr;
    auto* const packed = reinterpret_cast<Bfloat16*>(scratch);
    Bfloat16 *const high = packed + kGemmColumns * kGemmSlice, *const low = high + kGroup * kGemmSlice;
    // Operands packed for one group stay in the L1 cache.
    const bool is_one_group = rows.size() <= kGroup;
    const int64_t together = is_one_group ? E::panels_at_once(kGemmColumns / W, rows.size()) : 1;
    const int64_t most = is_one_group ? together * W : kGemmColumns;
    const int64_t slice = given ? kGemmSlice : slice_of(kGemmSlice, together);
    for (int64_t k = 0; k < g.k; k += slice) {
      const int64_t depth = g.k - k < slice ? g.k - k : slice;
      const int64_t half = tiles_of(given ? g.k : depth) * kTile, panel_stride = given ? 2 * W * g.k : 2 * half;
      bool has_low = false;
      const auto convert = [&](int64_t row, int64_t height) {
        has_low = split_as_needed(g.a + row * g.lda + k, g.lda, height, depth, high, low);
      };
      if (is_one_group) convert(rows.begin, rows.size());
      for (int64_t column = columns.begin; column < columns.end; column += most) {
        const int64_t width = columns.end - column < most ? columns.end - column : most;
        const Bfloat16* const panels = given ? tiles_at(g.panels + column * g.k) + k * kSide : packed;
        for (int64_t i = 0; !given && i < width; i += kSide) {
          const int64_t count = width - i < kSide ? width - i : kSide, at = column + i;
          Bfloat16* const tiles = packed + i / kSide * half;
          if (g.b_transposed) {
            pack_row_tiles(g.b + at * g.ldb + k, g.ldb, count, depth, tiles);
          } else {
            pack_column_tiles(g.b + k * g.ldb + at, g.ldb, count, depth, tiles);
          }
        }
        for (int64_t row = rows.begin; row < rows.end; row += kGroup) {
          const int64_t height = rows.end - row < kGroup ? rows.end - row : kGroup;
          if (!is_one_group) convert(row, height);
          float* const c = g.c + row * g.ldc + column;
          for (int64_t i = 0; k == 0 && g.bias != nullptr && !g.accumulate && i < height; ++i) {
            std::memcpy(c + i * g.ldc, g.bias + column, width * sizeof(float));
          }
          E::begin(height);
          const bool start = k == 0 && !g.accumulate && g.bias == nullptr;
          multiply_columns({high, has_low ? low : nullptr, panels, nullptr, half, depth, c, g.ldc, start}, height,
                           width, panel_stride);
        }
      }
    }
    E::end();
  }

  // Rows of C, at most kGroup, times the panels of `width` columns, all of C's tiles: whole ones in place, the last one
  // by way of a copy where it is not whole. o: of the first panel, with C's row and column.
  static void multiply_columns(const TileProduct& first, int64_t rows, int64_t width, int64_t panel_stride) {
    const int64_t whole = width / W, rest = width % W;
    if (whole > 0) E::multiply_panels(first, rows, whole, {panel_stride, W});
    if (rest == 0) return;
    TileProduct o = first;
    o.right += whole * panel_stride;
    if (o.right_low != nullptr) o.right_low += whole * panel_stride;
    float* const c = o.c + whole * W;
    alignas(64) float edge[kGroup * W];
    for (int64_t row = 0; row < rows && !o.start; ++row) {
      std::memcpy(edge + row * W, c + row * o.ldc, rest * sizeof(float));
    }
    o.c = edge;
    o.ldc = W;
    E::multiply_panels(o, rows, 1, {0, 0});
    for (int64_t row = 0; row < rows; ++row) std::memcpy(c + row * first.ldc, edge + row * W, rest * sizeof(float));
  }

  static constexpr GemmKernels<Bfloat16> make() {
    GemmKernels<Bfloat16> kernels = make_gemm_kernels<Bfloat16>();
    kernels.most_panels = kMostPanels;
    kernels.pack_rows = &pack_rows;
    kernels.pack_columns = &pack_columns;
    kernels.product = &product;
    kernels.product_from_rows = &product_from_rows;
    kernels.product_from_columns = &product_from_columns;
    kernels.gemm = &gemm;
    return kernels;
  }

 private:
  // The depth that each of several panels has in the cache where one panel has `depth`.
  static int64_t slice_of(int64_t depth, int64_t panels) { return depth / panels / kDepth * kDepth; }

  // A panel from rows, or from columns.
  static void pack_two_rows(const Bfloat16* source, int64_t ld, int64_t rows, int64_t k, Bfloat16* tiles,
                            int64_t half) {
    pack_row_tiles(source, ld, rows < kSide ? rows : kSide, k, tiles);
    pack_row_tiles(source + kSide * ld, ld, rows > kSide ? rows - kSide : 0, k, tiles + half);
  }
  static void pack_two_columns(const Bfloat16* source, int64_t ld, int64_t columns, int64_t k, Bfloat16* tiles,
                               int64_t half) {
    const int64_t others = columns - kSide;
    pack_column_tiles(source, ld, columns < kSide ? columns : kSide, k, tiles);
    pack_column_tiles(source + kSide, ld, others < 0 ? 0 : others < kSide ? others : kSide, k, tiles + half);
  }

  // Panels in the L1 or L2 cache, which are used once.
  template <class Pack>
  static void product_once(int64_t count, int64_t k, const float* b, int64_t ldb, int64_t n, float* out,
                           const Pack& pack) {
    alignas(64) Bfloat16 high[kGroup * kSlice], low[kGroup * kSlice], panels[W * kSlice];
    for (int64_t j = 0; j < n; j += kGroup) {
      const int64_t height = n - j < kGroup ? n - j : kGroup;
      const int64_t together = E::panels_at_once(count, height), slice = slice_of(kSlice, together);
      E::begin(height);
      for (int64_t begin = 0; begin < k; begin += slice) {
        const int64_t depth = k - begin < slice ? k - begin : slice, half = tiles_of(depth) * kTile;
        const bool has_low = split_as_needed(b + j * ldb + begin, ldb, height, depth, high, low);
        for (int64_t p = 0; p < count; p += together) {
          const int64_t taken = count - p < together ? count - p : together;
          for (int64_t i = 0; i < taken; ++i) pack(p + i, begin, depth, panels + 2 * i * half, half);
          const TileProduct o{high,  has_low ? low : nullptr, panels, nullptr,   half,
                              depth, out + (p * n + j) * W,   W,      begin == 0};
          E::multiply_panels(o, height, taken, {2 * half, n * W});
        }
      }
    }
    E::end();
  }
};

}  // namespace PRNN_ISA_NAMESPACE
}  // namespace prnn
