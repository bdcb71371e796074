// Products on AMX's tiles: float operands are the sum of two bfloat16 numbers, 16 of their 24 bits; the product of the
// two smaller parts is left out. Only for gemm_amx_avx512.cc.
#pragma once

#include "core/cpu/gemm/gemm.h"
#include "core/cpu/gemm/pack.h"

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

// A tile is 16 rows of 64 bytes. Of a product's left operand: 16 rows, `kDepth` deep. Of its right one: pairs of rows
// of 16 columns, the two numbers of a column side by side. Zeros beyond the matrix.
constexpr int64_t kDepth = 32, kSide = 16, kTile = kSide * kDepth;
constexpr int64_t kGroup = 2 * kSide;  // rows of the left operand that are multiplied together

inline int64_t tiles_of(int64_t k) { return (k + kDepth - 1) / kDepth; }

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

// Rows of C times panels of 32 columns. The left operand's tiles: [blocks][2], of rows [0, 16) and the others; the
// right one's: [blocks] of columns [0, 16), `half` behind them those of the others. `low`: the smaller parts, or NULL.
struct TileProduct {
  const Bfloat16 *left, *left_low;
  const Bfloat16 *right, *right_low;
  int64_t half;
  int64_t blocks;
  float* c;
  int64_t ldc;
  bool start;  // else the sums start from C
};

// The left operand's tiles times the right one's. A tile is loaded while the others' products run.
PRNN_INLINE void load_and_dot(const Bfloat16* left) {
  PRNN_TILE_LOAD(4, left);
  PRNN_TILE_DOT(0, 4, 6);
  PRNN_TILE_DOT(1, 4, 7);
  PRNN_TILE_LOAD(5, left + kTile);
  PRNN_TILE_DOT(2, 5, 6);
  PRNN_TILE_DOT(3, 5, 7);
}

// Of weights that come from the L3 cache: a load of a tile waits for each of its lines.
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
    // What a tile's store would wait for; not all rows of the second part need exist.
    for (int64_t row = 0; row < kGroup; ++row) {
      __builtin_prefetch(o.c + row * o.ldc, 1);
      __builtin_prefetch(o.c + row * o.ldc + kSide, 1);
    }
  }
  start_sums(o.start, o.c, lower, o.ldc);
  for (int64_t i = 0; i < o.blocks; ++i) {
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

// Up to 16 rows: one panel, or with `next` two, whose right operand and C lie so far behind the first one's.
struct NextPanel {
  int64_t right, c;
};
template <bool kTwo>
inline void multiply_few(const TileProduct& o, NextPanel next) {
  float* const second = kTwo ? o.c + next.c : nullptr;
  start_sums(o.start, o.c, second, o.ldc);
  const bool has_low = o.left_low != nullptr;
  for (int64_t i = 0; i < o.blocks; ++i) {
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

// Of two vectors what they are as bfloat16, and what they miss then. An infinity or a NaN misses nothing.
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
