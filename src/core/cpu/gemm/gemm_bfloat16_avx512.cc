// The kernels of bfloat16 weights for processors with AVX512_BF16: an instruction adds the products of two pairs to
// each sum. Every element of every result is one chain of these over pairs of k, of each pair the smaller parts before
// the larger ones, so that its bits do not depend on the rows that it is computed together with. Where all smaller
// parts are zero, these instructions are left out, which would add nothing.
#if defined(__x86_64__) && __has_include(<avx512bf16intrin.h>)
#include "core/cpu/gemm/dots.h"

namespace prnn {
namespace PRNN_ISA_NAMESPACE {

// A vector of pairs from two numbers' memory.
PRNN_INLINE FloatVector broadcast_pair(const Bfloat16* pair) {
  float bits;
  std::memcpy(&bits, pair, sizeof bits);
  return broadcast(bits);
}

// sum + x[0] y[0] + x[1] y[1] for each lane's pairs. The compiler's intrinsic wants a target that the rest of the file
// need not have.
PRNN_INLINE FloatVector dot(FloatVector x, FloatVector y, FloatVector sum) {
  __asm__("vdpbf16ps\t%2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
  return sum;
}

// Rows of bfloat16 weights as rows.h takes them, with vectors whose numbers 2 i and 2 i + 1 are replaced by the pair of
// their larger parts and the pair of their smaller ones. Without kLow the smaller ones are zero.
template <bool kLow>
struct PairedBfloat16 : Bfloat16 {};

}  // namespace PRNN_ISA_NAMESPACE

template <bool kLow>
struct ComputeType<PRNN_ISA_NAMESPACE::PairedBfloat16<kLow>> {
  using Type = float;
};

namespace PRNN_ISA_NAMESPACE {

template <bool kLow>
struct RowColumns<PairedBfloat16<kLow>> {
  using Operands = TileOperands<float, PairedBfloat16<kLow>>;

  template <int R>
  PRNN_INLINE void add_pair(const Operands& o, int64_t k, FloatVector pairs, RowsSums<float, R>& sums) {
#pragma GCC unroll 8
    for (int j = 0; j < R; ++j) {
      const float* const b = o.b + j * o.ldb + k;
      if (kLow) sums.of[j][0] = dot(pairs, broadcast(b[1]), sums.of[j][0]);
      sums.of[j][0] = dot(pairs, broadcast(b[0]), sums.of[j][0]);
    }
  }

  template <int R>
  PRNN_INLINE void add(const Operands& o, int64_t k, RowsSums<float, R>& sums) {
    constexpr int64_t kAhead = 4 * kDepth;
    if (k % kDepth == 0) {
      for (int64_t i = 0; i < kSide; ++i) __builtin_prefetch(o.panel + i * o.panel_stride + k + kAhead);
    }
    FloatVector pairs[4];
    load_quads(o.panel + k, o.panel_stride, pairs);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) add_pair(o, k + 2 * c, pairs[c], sums);
  }

  template <int R>
  PRNN_INLINE void add_last(const Operands& o, int64_t k, RowsSums<float, R>& sums) {
    for (; k < o.k; k += 2) {
      alignas(64) Bfloat16 pairs[2 * kSide] = {};
      for (int64_t i = 0; i < kSide; ++i) {
        std::memcpy(pairs + 2 * i, o.panel + i * o.panel_stride + k, (o.k - k < 2 ? 1 : 2) * sizeof *pairs);
      }
      add_pair(o, k, load(reinterpret_cast<const float*>(pairs)), sums);
    }
  }
};

namespace {

// Rows of tiles' left operand times P panels, all sums in registers.
template <int P, int R, bool kLow>
void dots(const TileProduct& o, NextPanel next) {
  FloatVector sums[P][R][2];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 12
    for (int j = 0; j < R; ++j) {
      const float* const from = o.start ? kZeros<float> : o.c + p * next.c + j * o.ldc;
      sums[p][j][0] = load(from);
      sums[p][j][1] = load(from + kSide);
    }
  }
  const Bfloat16 *left = o.left, *left_low = o.left_low, *right = o.right;
  const int64_t half = o.half, panel = next.right;
  for (int64_t depth = o.depth; depth > 0; depth -= kDepth) {
    const Bfloat16* const end = left + (depth < kDepth ? (depth + 1) & -2 : kDepth);
    const Bfloat16* const block = left;
    do {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const FloatVector first = load(reinterpret_cast<const float*>(right + p * panel));
        const FloatVector second = load(reinterpret_cast<const float*>(right + half + p * panel));
#pragma GCC unroll 12
        for (int j = 0; j < R; ++j) {
          if (kLow) {
            const FloatVector x = broadcast_pair(left_low + j * kDepth);
            sums[p][j][0] = dot(first, x, sums[p][j][0]);
            sums[p][j][1] = dot(second, x, sums[p][j][1]);
          }
          const FloatVector x = broadcast_pair(left + j * kDepth);
          sums[p][j][0] = dot(first, x, sums[p][j][0]);
          sums[p][j][1] = dot(second, x, sums[p][j][1]);
        }
      }
      right += kDepth;
      left += 2;
      if (kLow) left_low += 2;
    } while (left < end);
    left = block + kGroup * kDepth;
    if (kLow) left_low += (kGroup - 1) * kDepth;
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 12
    for (int j = 0; j < R; ++j) {
      float* const to = o.c + p * next.c + j * o.ldc;
      store(to, sums[p][j][0]);
      store(to + kSide, sums[p][j][1]);
    }
  }
}

using DotsFunction = void (*)(const TileProduct&, NextPanel);

template <int P, bool kLow>
struct Dots {
  template <int R>
  static constexpr DotsFunction of() {
    return &dots<P, R, kLow>;
  }
};
template <int P, bool kLow>
constexpr FunctionTable<DotsFunction, max_vectors(2, P), Dots<P, kLow>> kDots{};

template <bool kLow>
DotsFunction dots_of(int64_t panels, int64_t rows) {
  return panels == 1   ? kDots<1, kLow>[rows]
         : panels == 2 ? kDots<2, kLow>[rows]
         : panels == 3 ? kDots<3, kLow>[rows]
                       : kDots<4, kLow>[rows];
}

struct VectorEngine {
  static constexpr int64_t kSlice = 256, kGemmSlice = 256, kLeastFromColumns = 0;
  static constexpr int64_t kFewRows = 8;             // that matrices as they lie are multiplied with
  static constexpr int64_t kFewElements = 8 * 1024;  // of their vectors, at a time

  static void begin(int64_t) {}
  static void end() {}

  static int64_t panels_at_once(int64_t count, int64_t rows) {
    return PRNN_ISA_NAMESPACE::panels_at_once(count, rows, 2);
  }

  static void multiply_panels(const TileProduct& first, int64_t rows, int64_t count, NextPanel next) {
    const int64_t together = panels_at_once(count, rows), blocks = (rows + kMaxVectors - 1) / kMaxVectors;
    TileProduct o = first;
    for (int64_t p = 0; p < count; p += together) {
      const int64_t taken = count - p < together ? count - p : together;
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t j = rows * block / blocks, r = rows * (block + 1) / blocks - j;
        TileProduct part = o;
        part.left += j * kDepth;
        part.c += j * o.ldc;
        if (o.left_low != nullptr) part.left_low += j * kDepth;
        (o.left_low != nullptr ? dots_of<true>(taken, r) : dots_of<false>(taken, r))(part, next);
      }
      o.right += taken * next.right;
      o.c += taken * next.c;
    }
  }

  static bool from_few_rows(const Bfloat16* const* sources, int64_t ld, int64_t rows, int64_t count, int64_t k,
                            const float* b, int64_t ldb, int64_t n, float* out) {
    if (n > kFewRows || rows % kSide != 0) return false;
    const int64_t tiles = rows / kSide;  // of a panel
    by_pairs(b, ldb, n, k, [&](auto weight, int64_t begin, int64_t depth, const float* pairs, int64_t ld_pairs) {
      using S = decltype(weight);
      rows_products<S>(count * tiles, ld, n, [&](int64_t tile) __attribute__((always_inline)) {
        const int64_t p = tile / tiles, i = tile % tiles * kSide;
        float* const c = out + p * n * kPanelWidth + i;
        const auto* const from = static_cast<const S*>(sources[p] + i * ld + begin);
        return TileOperands<float, S>{
            from, ld, depth,      pairs, ld_pairs, begin == 0 ? kZeros<float> : c, 0, begin == 0 ? 0 : kPanelWidth,
            c,    0,  kPanelWidth};
      });
    });
    return true;
  }

  static int64_t gemm_of_few_rows(const Gemm<Bfloat16>& g, Range rows, Range columns, char*) {
    const int64_t n = rows.size();
    if (n > kFewRows || !g.b_transposed || g.panels != nullptr) return columns.begin;
    int64_t done = columns.begin;
    by_pairs(g.a + rows.begin * g.lda, g.lda, n, g.k,
             [&](auto weight, int64_t begin, int64_t depth, const float* pairs, int64_t ld_pairs) {
               using S = decltype(weight);
               Gemm<S> part;
               part.k = depth;
               part.a = pairs;
               part.lda = ld_pairs;
               part.b = static_cast<const S*>(g.b + begin);
               part.ldb = g.ldb;
               part.b_transposed = true;
               part.c = g.c + rows.begin * g.ldc;
               part.ldc = g.ldc;
               part.accumulate = g.accumulate || begin > 0;
               part.bias = g.bias;
               done = gemm_in_place(part, {0, n}, columns);
             });
    return done;
  }

 private:
  // Calls body(weight, begin, depth, pairs, ld) for slices of k of n vectors, `weight` being of the type of the weights
  // that PairedBfloat16 calls for.
  template <class Body>
  static void by_pairs(const float* b, int64_t ldb, int64_t n, int64_t k, const Body& body) {
    alignas(64) float pairs[kFewElements];
    const int64_t most = kFewElements / n / kDepth * kDepth;
    for (int64_t begin = 0; begin < k; begin += most) {
      const int64_t depth = k - begin < most ? k - begin : most, ld = tiles_of(depth) * kDepth;
      const bool has_low = !are_bfloat16(b + begin, ldb, n, depth);
      for (int64_t j = 0; j < n; ++j) interleave_parts(b + j * ldb + begin, depth, pairs + j * ld);
      has_low ? body(PairedBfloat16<true>(), begin, depth, pairs, ld)
              : body(PairedBfloat16<false>(), begin, depth, pairs, ld);
    }
  }

  static void interleave_parts(const float* from, int64_t count, float* to) {
    const __m512i lower = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i upper = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    for (int64_t i = 0; i < count; i += kDepth) {
      const Split parts = split(load_some(from + i, count - i), load_some(from + i + kSide, count - i - kSide));
      store(to + i, (FloatVector)_mm512_maskz_permutex2var_epi32(0xffff, parts.high, lower, parts.low));
      store(to + i + kSide, (FloatVector)_mm512_maskz_permutex2var_epi32(0xffff, parts.high, upper, parts.low));
    }
  }
};

constexpr GemmKernels<Bfloat16> kKernels = DotKernels<VectorEngine>::make();

}  // namespace
}  // namespace PRNN_ISA_NAMESPACE
}  // namespace prnn

const prnn::GemmKernels<prnn::Bfloat16>* prnn::gemm_kernels_bfloat16() { return &PRNN_ISA_NAMESPACE::kKernels; }
#else
#include "core/cpu/gemm/gemm_tables.h"

const prnn::GemmKernels<prnn::Bfloat16>* prnn::gemm_kernels_bfloat16() { return nullptr; }
#endif
