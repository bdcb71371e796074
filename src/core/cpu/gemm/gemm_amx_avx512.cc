// The kernels of bfloat16 weights for processors with AMX.
#if defined(__x86_64__) && __has_include(<amxtileintrin.h>)
#include "core/cpu/gemm/amx.h"

namespace prnn {
namespace PRNN_ISA_NAMESPACE {
namespace {

// Depth and columns of what a product of data converts at a time.
constexpr int64_t kDataSlice = 256, kDataColumns = 512;
constexpr int64_t kDataBytes = 2 * 2 * (kDataColumns * kDataSlice + kGroup * kDataSlice) + 2 * kTile * 2;
static_assert(kDataBytes <= int64_t{block_bytes<float>()});

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
        const TileProduct o{high,  a_has_low ? low : nullptr,  panels, b_has_low ? panels_low : nullptr, half,
                            depth, g.c + row * g.ldc + column, g.ldc,  k == 0 && !g.accumulate};
        DotKernels<AmxEngine>::multiply_columns(o, height, width, 2 * half);
      }
    }
  }
  release_tiles();
}

constexpr GemmKernels<Bfloat16> make_amx_kernels() {
  GemmKernels<Bfloat16> kernels = DotKernels<AmxEngine>::make();
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
