// The engine of dots.h on AMX's tiles. Where both operands have two parts, the product of the two smaller ones is left
// out. Only for gemm_amx_avx512.cc.
#pragma once

#include "core/cpu/gemm/dots.h"

// The compiler's intrinsics want a target that the rest of the file need not have.
#define PRNN_TILE_LOAD(tile, from) \
  __asm__ volatile("tileloadd\t(%0,%1,1), %%tmm" #tile::"r"(from), "r"(int64_t{64}) : "memory")
#define PRNN_TILE_LOAD_C(tile, from, ld) \
  __asm__ volatile("tileloadd\t(%0,%1,1), %%tmm" #tile::"r"(from), "r"(int64_t{4} * (ld)) : "memory")
#define PRNN_TILE_STORE_C(tile, to, ld) \
  __asm__ volatile("tilestored\t%%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"(int64_t{4} * (ld)) : "memory")
#define PRNN_TILE_ZERO(tile) __asm__ volatile("tilezero\t%%tmm" #tile::)
#define PRNN_TILE_DOT(c, a, b) __asm__ volatile("tdpbf16ps\t%%tmm" #b ", %%tmm" #a ", %%tmm" #c::)

namespace prnn {
namespace PRNN_ISA_NAMESPACE {

// Tells how many rows the tiles have: C's are 0 to 3, the left operand's 4 and 5, the right one's 6 and 7. Of up to
// kGroup rows the first 16 are in C's tiles 0 and 1, the others in 2 and 3; up to 16 rows are in all four.
inline void set_tile_rows(int64_t rows) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, unused[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  const int64_t upper = rows < kSide ? rows : kSide, lower = rows > kSide ? rows - kSide : rows;
  const int64_t by_tile[] = {upper, upper, lower, lower, upper, lower, kSide, kSide};
  for (int i = 0; i < 8; ++i) {
    config.bytes[i] = 64;
    config.rows[i] = static_cast<uint8_t>(by_tile[i]);
  }
  __asm__ volatile("ldtilecfg\t%0" ::"m"(config));
}
inline void release_tiles() { __asm__ volatile("tilerelease" ::); }

// The left operand's tiles times the right one's. A tile is loaded while the others' products run.
PRNN_INLINE void load_and_dot(const Bfloat16* left) {
  PRNN_TILE_LOAD(4, left);
  PRNN_TILE_DOT(0, 4, 6);
  PRNN_TILE_DOT(1, 4, 7);
  PRNN_TILE_LOAD(5, left + kTile);
  PRNN_TILE_DOT(2, 5, 6);
  PRNN_TILE_DOT(3, 5, 7);
}

// Prefetch distance for weights that come from the L3 cache: a load of a tile waits for each of its lines.
constexpr int64_t kTilesAhead = 4;
PRNN_INLINE void prefetch_tile(const Bfloat16* tile) {
#pragma GCC unroll 16
  for (int64_t row = 0; row < kSide; ++row) __builtin_prefetch(tile + row * kDepth);
}

// Tiles 0 and 1, of 32 columns at `first`, and 2 and 3, at `second`: zeros, or what C holds.
PRNN_INLINE void start_sums(bool with_zeros, const float* first, const float* second, int64_t ldc) {
  if (with_zeros) {
    PRNN_TILE_ZERO(0);
    PRNN_TILE_ZERO(1);
    PRNN_TILE_ZERO(2);
    PRNN_TILE_ZERO(3);
    return;
  }
  PRNN_TILE_LOAD_C(0, first, ldc);
  PRNN_TILE_LOAD_C(1, first + kSide, ldc);
  if (second == nullptr) return;
  PRNN_TILE_LOAD_C(2, second, ldc);
  PRNN_TILE_LOAD_C(3, second + kSide, ldc);
}

PRNN_INLINE void store_sums(float* first, float* second, int64_t ldc) {
  PRNN_TILE_STORE_C(0, first, ldc);
  PRNN_TILE_STORE_C(1, first + kSide, ldc);
  if (second == nullptr) return;
  PRNN_TILE_STORE_C(2, second, ldc);
  PRNN_TILE_STORE_C(3, second + kSide, ldc);
}

// 17 to 32 rows.
inline void multiply_group(const TileProduct& o) {
  float* const lower = o.c + kSide * o.ldc;
  if (o.start) {
    // Prefetches what a tile's store would wait for; not all rows of the second part need exist.
    for (int64_t row = 0; row < kGroup; ++row) {
      __builtin_prefetch(o.c + row * o.ldc, 1);
      __builtin_prefetch(o.c + row * o.ldc + kSide, 1);
    }
  }
  start_sums(o.start, o.c, lower, o.ldc);
  for (int64_t i = 0; i < o.blocks(); ++i) {
    PRNN_TILE_LOAD(6, o.right + i * kTile);
    PRNN_TILE_LOAD(7, o.right + o.half + i * kTile);
    prefetch_tile(o.right + (i + kTilesAhead) * kTile);
    prefetch_tile(o.right + o.half + (i + kTilesAhead) * kTile);
    if (o.left_low != nullptr) load_and_dot(o.left_low + 2 * i * kTile);
    load_and_dot(o.left + 2 * i * kTile);
    if (o.right_low != nullptr) {
      PRNN_TILE_LOAD(6, o.right_low + i * kTile);
      PRNN_TILE_DOT(0, 4, 6);
      PRNN_TILE_DOT(2, 5, 6);
      PRNN_TILE_LOAD(7, o.right_low + o.half + i * kTile);
      PRNN_TILE_DOT(1, 4, 7);
      PRNN_TILE_DOT(3, 5, 7);
    }
  }
  store_sums(o.c, lower, o.ldc);
}

// Up to 16 rows: one panel, or with `next` two.
template <bool kTwo>
inline void multiply_few(const TileProduct& o, NextPanel next) {
  float* const second = kTwo ? o.c + next.c : nullptr;
  start_sums(o.start, o.c, second, o.ldc);
  const bool has_low = o.left_low != nullptr;
  for (int64_t i = 0; i < o.blocks(); ++i) {
    const Bfloat16* right = o.right + i * kTile;
    PRNN_TILE_LOAD(4, o.left + 2 * i * kTile);
    if (has_low) PRNN_TILE_LOAD(5, o.left_low + 2 * i * kTile);
    PRNN_TILE_LOAD(6, right);
    PRNN_TILE_LOAD(7, right + o.half);
    prefetch_tile(right + kTilesAhead * kTile);
    prefetch_tile(right + o.half + kTilesAhead * kTile);
    if (has_low) {
      PRNN_TILE_DOT(0, 5, 6);
      PRNN_TILE_DOT(1, 5, 7);
    }
    PRNN_TILE_DOT(0, 4, 6);
    PRNN_TILE_DOT(1, 4, 7);
    if (kTwo) {
      right += next.right;
      PRNN_TILE_LOAD(6, right);
      PRNN_TILE_LOAD(7, right + o.half);
      prefetch_tile(right + kTilesAhead * kTile);
      prefetch_tile(right + o.half + kTilesAhead * kTile);
      if (has_low) {
        PRNN_TILE_DOT(2, 5, 6);
        PRNN_TILE_DOT(3, 5, 7);
      }
      PRNN_TILE_DOT(2, 4, 6);
      PRNN_TILE_DOT(3, 4, 7);
    } else if (o.right_low != nullptr) {
      PRNN_TILE_LOAD(6, o.right_low + i * kTile);
      PRNN_TILE_LOAD(7, o.right_low + o.half + i * kTile);
      PRNN_TILE_DOT(0, 4, 6);
      PRNN_TILE_DOT(1, 4, 7);
    }
  }
  store_sums(o.c, second, o.ldc);
}

struct AmxEngine {
  static constexpr int64_t kSlice = 256, kGemmSlice = 512;
  // Matrices as they lie are multiplied with fewer vectors, or rows, by gemm_impl.h.
  static constexpr int64_t kFewRows = 3, kLeastFromColumns = kFewRows + 1;

  static void begin(int64_t rows) { set_tile_rows(rows); }
  static void end() { release_tiles(); }

  static int64_t panels_at_once(int64_t, int64_t) { return 1; }

  static void multiply_panels(const TileProduct& first, int64_t rows, int64_t count, NextPanel next) {
    TileProduct o = first;
    for (int64_t p = 0; p < count;) {
      const bool two = rows <= kSide && count - p > 1 && o.right_low == nullptr;
      rows > kSide ? multiply_group(o) : two ? multiply_few<true>(o, next) : multiply_few<false>(o, {0, 0});
      const int64_t taken = two ? 2 : 1;
      p += taken;
      o.right += taken * next.right;
      if (o.right_low != nullptr) o.right_low += taken * next.right;
      o.c += taken * next.c;
    }
  }

  static bool from_few_rows(const Bfloat16* const* sources, int64_t ld, int64_t rows, int64_t count, int64_t k,
                            const float* b, int64_t ldb, int64_t n, float* out) {
    if (n > kFewRows) return false;
    product_from_rows(sources, ld, rows, count, k, b, ldb, n, out);
    return true;
  }

  static int64_t gemm_of_few_rows(const Gemm<Bfloat16>& g, Range rows, Range columns, char* scratch) {
    if (g.m > kFewRows) return columns.begin;
    Gemm<Bfloat16> of_vectors = g;
    of_vectors.panels = nullptr;  // those are of tiles
    gemm(of_vectors, rows, columns, scratch);
    return columns.end;
  }
};

// Two rows of a right operand's matrix, the second one's pointer NULL beyond its end, as one of a tile's.
PRNN_INLINE bool split_pair(const float* first, const float* second, int64_t columns, Bfloat16* high, Bfloat16* low) {
  const FloatVector zero = {};
  const Split parts = split(load_some(first, columns), second == nullptr ? zero : load_some(second, columns));
  store_tile_row(high, (__m512i)(first_of(parts.high) | second_of(parts.high) << 16));
  store_tile_row(low, (__m512i)(first_of(parts.low) | second_of(parts.low) << 16));
  return is_any(parts.low);
}

// The right operand's tiles of columns [0, columns), at most 16, of a row-major matrix `k` deep: one behind the other.
// Returns whether a smaller part is not zero.
inline bool split_columns(const float* source, int64_t ld, int64_t columns, int64_t k, Bfloat16* high, Bfloat16* low) {
  bool any = false;
  const int64_t pairs = tiles_of(k) * kSide;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const float* const row = source + 2 * pair * ld;
    const int64_t left = k - 2 * pair;
    const bool is_any = split_pair(row, left > 1 ? row + ld : nullptr, left > 0 ? columns : 0, high + pair * kDepth,
                                   low + pair * kDepth);
    any = any || is_any;
  }
  return any;
}

// From a tile of the right operand to the left operand's of the transposed matrix.
PRNN_INLINE void transpose_tile(const Bfloat16* tile, Bfloat16* out) {
  const auto* const from = reinterpret_cast<const float*>(tile);
  auto* const to = reinterpret_cast<float*>(out);
  for (int64_t j = 0; j < kSide; j += 4) {
    FloatVector columns[4];
    load_quads(from + j, kSide, columns);
#pragma GCC unroll 4
    for (int64_t c = 0; c < 4; ++c) store(to + (j + c) * kSide, columns[c]);
  }
}

}  // namespace PRNN_ISA_NAMESPACE
}  // namespace prnn
