// The kernels of bfloat16 weights for processors with AMX. A panel is two columns of tiles, of 16 units each; products
// that are no deeper than kShallowest are the vectors'.
#if defined(__x86_64__) && __has_include(<amxtileintrin.h>)
#include "core/cpu/gemm/amx.h"
#include "core/cpu/gemm/gemm_impl.h"

namespace prnn {
namespace PRNN_ISA_NAMESPACE {
namespace {

constexpr int64_t kShallowest = 15;  // a deeper panel's tiles are no larger than its floats
constexpr int64_t kPanelsAtOnce = 16;
constexpr int64_t W = kPanel<float>;
static_assert(W == 2 * kSide);

// Depths of what is converted at a time, in float elements: of a recurrent product, of a whole one, and of one of data.
constexpr int64_t kSlice = 256, kGemmSlice = 512, kDataSlice = 256;
constexpr int64_t kGemmColumns = 512, kDataColumns = 512;
constexpr int64_t kFewRows = 3;  // that matrices as they lie are multiplied with by vectors

constexpr int64_t kGemmBytes = 2 * (kGemmColumns * kGemmSlice + 2 * kGroup * kGemmSlice);
constexpr int64_t kDataBytes = 2 * 2 * (kDataColumns * kDataSlice + kGroup * kDataSlice) + 2 * kTile * 2;
static_assert(kGemmBytes <= int64_t{block_bytes<float>()} && kDataBytes <= int64_t{block_bytes<float>()});

Bfloat16* tiles_at(float* panel) { return reinterpret_cast<Bfloat16*>(panel); }
const Bfloat16* tiles_at(const float* panel) { return reinterpret_cast<const Bfloat16*>(panel); }

// One column of tiles from rows [0, rows), at most 16.
void pack_row_tiles(const Bfloat16* source, int64_t ld, int64_t rows, int64_t k, Bfloat16* tiles) {
  constexpr int64_t kAhead = 4 * kDepth;
  for (int64_t j = 0; j < k; j += kDepth, tiles += kTile) {
    if (rows == kSide && k - j >= kDepth) {
      for (int64_t row = 0; row < kSide; ++row) __builtin_prefetch(source + row * ld + j + kAhead);
      for (int64_t pair = 0; pair < kSide; pair += 4) {
        FloatVector columns[4];
        load_quads(source + j + 2 * pair, ld, columns);
#pragma GCC unroll 4
        for (int64_t c = 0; c < 4; ++c) store(reinterpret_cast<float*>(tiles + (pair + c) * kDepth), columns[c]);
      }
      continue;
    }
    std::memset(tiles, 0, kTile * sizeof *tiles);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < kDepth && j + i < k; ++i) {
        tiles[i / 2 * kDepth + 2 * row + i % 2] = source[row * ld + j + i];
      }
    }
  }
}

// One column of tiles from columns [0, columns), at most 16, of a row-major matrix.
void pack_column_tiles(const Bfloat16* source, int64_t ld, int64_t columns, int64_t k, Bfloat16* tiles) {
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

void pack_rows_amx(const Bfloat16* source, int64_t ld, int64_t rows, int64_t k, float* panel) {
  if (k <= kShallowest) return pack_rows(source, ld, rows, k, panel);
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t first = half * kSide, count = rows - first < kSide ? rows - first : kSide;
    pack_row_tiles(source + first * ld, ld, count, k, tiles_at(panel) + half * tiles_of(k) * kTile);
  }
}

void pack_columns_amx(const Bfloat16* source, int64_t ld, int64_t columns, int64_t k, float* panels) {
  if (k <= kShallowest) return pack_columns(source, ld, columns, k, panels);
  for (int64_t column = 0; column < columns; column += W) {
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t first = column + half * kSide;
      const int64_t count = columns - first < 0 ? 0 : columns - first < kSide ? columns - first : kSide;
      pack_column_tiles(source + first, ld, count, k, tiles_at(panels + column * k) + half * tiles_of(k) * kTile);
    }
  }
}

// `count` panels of tiles, `panel_stride` bfloat16 numbers apart, times rows of the left operand's tiles. The tiles
// have been told of the rows. o: of the first panel.
void multiply_panels(const TileProduct& first, int64_t rows, int64_t count, NextPanel next) {
  TileProduct o = first;
  for (int64_t p = 0; p < count;) {
    const bool two = rows <= kSide && count - p > 1;
    rows > kSide ? multiply_group(o) : two ? multiply_few<true>(o, next) : multiply_few<false>(o, {0, 0});
    const int64_t taken = two ? 2 : 1;
    p += taken;
    o.right += taken * next.right;
    o.c += taken * next.c;
  }
}

void product_amx(const float* panels, int64_t count, int64_t rows, int64_t k, const float* b, int64_t ldb, int64_t n,
                 float* out, const float* next) {
  if (k <= kShallowest) return product(panels, count, rows, k, b, ldb, n, out, next);
  alignas(64) Bfloat16 high[kGroup * kSlice], low[kGroup * kSlice];
  const int64_t half = tiles_of(k) * kTile;
  for (int64_t j = 0; j < n; j += kGroup) {
    const int64_t height = n - j < kGroup ? n - j : kGroup;
    set_tile_rows(height);
    for (int64_t begin = 0; begin < k; begin += kSlice) {
      const int64_t depth = k - begin < kSlice ? k - begin : kSlice;
      split_rows(b + j * ldb + begin, ldb, height, depth, high, low);
      TileProduct o{high, low,       tiles_at(panels) + begin * kSide, nullptr, half, tiles_of(depth), out + j * W,
                    W,    begin == 0};
      multiply_panels(o, height, count, {2 * W * k, n * W});
    }
  }
  release_tiles();
}

// Panels in the L2 cache, which are used once.
template <class Pack>
void product_once(int64_t count, int64_t k, const float* b, int64_t ldb, int64_t n, float* out, const Pack& pack) {
  alignas(64) Bfloat16 high[kGroup * kSlice], low[kGroup * kSlice], panel[W * kSlice];
  for (int64_t j = 0; j < n; j += kGroup) {
    const int64_t height = n - j < kGroup ? n - j : kGroup;
    set_tile_rows(height);
    for (int64_t begin = 0; begin < k; begin += kSlice) {
      const int64_t depth = k - begin < kSlice ? k - begin : kSlice, half = tiles_of(depth) * kTile;
      split_rows(b + j * ldb + begin, ldb, height, depth, high, low);
      for (int64_t p = 0; p < count; ++p) {
        pack(p, begin, depth, panel, half);
        const TileProduct o{high, low, panel, nullptr, half, tiles_of(depth), out + (p * n + j) * W, W, begin == 0};
        multiply_panels(o, height, 1, {0, 0});
      }
    }
  }
  release_tiles();
}

void product_from_rows_amx(const Bfloat16* const* sources, int64_t ld, int64_t rows, int64_t count, int64_t k,
                           const float* b, int64_t ldb, int64_t n, float* out) {
  if (k <= kShallowest || n <= kFewRows) return product_from_rows(sources, ld, rows, count, k, b, ldb, n, out);
  product_once(count, k, b, ldb, n, out, [&](int64_t p, int64_t begin, int64_t depth, Bfloat16* panel, int64_t half) {
    const int64_t upper = rows < kSide ? rows : kSide;
    pack_row_tiles(sources[p] + begin, ld, upper, depth, panel);
    if (rows > kSide) pack_row_tiles(sources[p] + kSide * ld + begin, ld, rows - kSide, depth, panel + half);
  });
}

void product_from_columns_amx(const Bfloat16* source, int64_t ld, int64_t count, int64_t k, const float* b, int64_t ldb,
                              int64_t n, float* out) {
  if (k <= kShallowest || n <= kFewRows) return product_from_columns(source, ld, count, k, b, ldb, n, out);
  product_once(count, k, b, ldb, n, out, [&](int64_t p, int64_t begin, int64_t depth, Bfloat16* panel, int64_t half) {
    const Bfloat16* const from = source + begin * ld + p * W;
    pack_column_tiles(from, ld, kSide, depth, panel);
    pack_column_tiles(from + kSide, ld, kSide, depth, panel + half);
  });
}

// Rows of C, at most kGroup, times the panels of `width` columns, all of C's tiles: whole ones in place, the last one
// by way of a copy where it is not whole. o: of the first panel, with C's row and column.
void multiply_columns(const TileProduct& first, int64_t rows, int64_t width, int64_t panel_stride) {
  const int64_t whole = width / W, rest = width % W;
  multiply_panels(first, rows, first.right_low == nullptr ? whole : 0, {panel_stride, W});
  TileProduct o = first;
  if (o.right_low != nullptr) {
    for (int64_t p = 0; p < whole; ++p) {
      rows > kSide ? multiply_group(o) : multiply_few<false>(o, {0, 0});
      o.right += panel_stride;
      o.right_low += panel_stride;
      o.c += W;
    }
  } else {
    o.right += whole * panel_stride;
    o.c += whole * W;
  }
  if (rest == 0) return;
  alignas(64) float edge[kGroup * W];
  float* const c = o.c;
  for (int64_t row = 0; row < rows && !o.start; ++row)
    std::memcpy(edge + row * W, c + row * o.ldc, rest * sizeof(float));
  o.c = edge;
  o.ldc = W;
  rows > kSide ? multiply_group(o) : multiply_few<false>(o, {0, 0});
  for (int64_t row = 0; row < rows; ++row) std::memcpy(c + row * first.ldc, edge + row * W, rest * sizeof(float));
}

void gemm_amx(const Gemm<Bfloat16>& g, Range rows, Range columns, char* scratch) {
  if (g.a_transposed || g.k <= kShallowest) return gemm(g, rows, columns, scratch);
  if (g.m <= kFewRows) {
    Gemm<Bfloat16> of_vectors = g;
    of_vectors.panels = nullptr;  // those are of tiles
    return gemm(of_vectors, rows, columns, scratch);
  }
  const bool given = g.panels != nullptr;
  auto* const packed = reinterpret_cast<Bfloat16*>(scratch);
  Bfloat16 *const high = packed + kGemmColumns * kGemmSlice, *const low = high + kGroup * kGemmSlice;
  for (int64_t k = 0; k < g.k; k += kGemmSlice) {
    const int64_t depth = g.k - k < kGemmSlice ? g.k - k : kGemmSlice;
    const int64_t half = tiles_of(given ? g.k : depth) * kTile, panel_stride = given ? 2 * W * g.k : 2 * half;
    bool has_low = false;
    const auto convert = [&](int64_t row, int64_t height) {
      const float* const a = g.a + row * g.lda + k;
      has_low = !are_bfloat16(a, g.lda, height, depth);
      split_rows(a, g.lda, height, depth, high, has_low ? low : nullptr);
    };
    const bool is_one_group = rows.size() <= kGroup;
    if (is_one_group) convert(rows.begin, rows.size());
    // What is packed for one group stays in the L1 cache.
    const int64_t most = is_one_group ? W : kGemmColumns;
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
        set_tile_rows(height);
        const bool start = k == 0 && !g.accumulate && g.bias == nullptr;
        multiply_columns({high, has_low ? low : nullptr, panels, nullptr, half, tiles_of(depth), c, g.ldc, start},
                         height, width, panel_stride);
      }
    }
  }
  release_tiles();
}

// The gradients of weights: C[m, n] = sum over k of A[k, m] B[k, n], both in float.
void gemm_of_data_amx(const Gemm<float>& g, Range rows, Range columns, char* scratch) {
  if (!g.a_transposed || g.b_transposed || g.bias != nullptr || g.k <= kShallowest) {
    return gemm(g, rows, columns, scratch);
  }
  auto* const panels = reinterpret_cast<Bfloat16*>(scratch);
  Bfloat16* const panels_low = panels + kDataColumns * kDataSlice;
  Bfloat16 *const high = panels_low + kDataColumns * kDataSlice, *const low = high + kGroup * kDataSlice;
  Bfloat16 *const tile = low + kGroup * kDataSlice, *const tile_low = tile + kTile;
  for (int64_t column = columns.begin; column < columns.end; column += kDataColumns) {
    const int64_t width = columns.end - column < kDataColumns ? columns.end - column : kDataColumns;
    for (int64_t k = 0; k < g.k; k += kDataSlice) {
      const int64_t depth = g.k - k < kDataSlice ? g.k - k : kDataSlice, half = tiles_of(depth) * kTile;
      bool b_has_low = false;
      for (int64_t i = 0; i < width; i += kSide) {
        const bool any = split_columns(g.b + k * g.ldb + column + i, g.ldb, width - i, depth, panels + i / kSide * half,
                                       panels_low + i / kSide * half);
        b_has_low = b_has_low || any;
      }
      for (int64_t row = rows.begin; row < rows.end; row += kGroup) {
        const int64_t height = rows.end - row < kGroup ? rows.end - row : kGroup;
        bool a_has_low = false;
        for (int64_t m = 0; m < height; m += kSide) {
          for (int64_t block = 0; block < tiles_of(depth); ++block) {
            const int64_t first = k + block * kDepth, left = g.k - first < kDepth ? g.k - first : kDepth;
            const bool any = split_columns(g.a + first * g.lda + row + m, g.lda, height - m, left, tile, tile_low);
            transpose_tile(tile, high + (2 * block + m / kSide) * kTile);
            transpose_tile(tile_low, low + (2 * block + m / kSide) * kTile);
            a_has_low = a_has_low || any;
          }
        }
        set_tile_rows(height);
        const TileProduct o{high,
                            a_has_low ? low : nullptr,
                            panels,
                            b_has_low ? panels_low : nullptr,
                            half,
                            tiles_of(depth),
                            g.c + row * g.ldc + column,
                            g.ldc,
                            k == 0 && !g.accumulate};
        multiply_columns(o, height, width, 2 * half);
      }
    }
  }
  release_tiles();
}

constexpr GemmKernels<Bfloat16> make_amx_kernels() {
  GemmKernels<Bfloat16> kernels = make_gemm_kernels<Bfloat16>();
  kernels.most_panels = kPanelsAtOnce;
  kernels.pack_rows = &pack_rows_amx;
  kernels.pack_columns = &pack_columns_amx;
  kernels.product = &product_amx;
  kernels.product_from_rows = &product_from_rows_amx;
  kernels.product_from_columns = &product_from_columns_amx;
  kernels.gemm = &gemm_amx;
  kernels.gemm_of_data = &gemm_of_data_amx;
  return kernels;
}

constexpr GemmKernels<Bfloat16> kAmxKernels = make_amx_kernels();

}  // namespace
}  // namespace PRNN_ISA_NAMESPACE
}  // namespace prnn

const prnn::GemmKernels<prnn::Bfloat16>* prnn::gemm_kernels_amx() { return &PRNN_ISA_NAMESPACE::kAmxKernels; }
#else
#include "core/cpu/gemm/gemm_tables.h"

const prnn::GemmKernels<prnn::Bfloat16>* prnn::gemm_kernels_amx() { return nullptr; }
#endif
