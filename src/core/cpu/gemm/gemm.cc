#include "core/cpu/gemm/gemm.h"

#include <algorithm>
#include <new>
#include <type_traits>

#include "core/cpu/gemm/gemm_tables.h"
#include "core/cpu/isa.h"

namespace prnn {
namespace {

constexpr std::align_val_t kCacheLine{64};

// Memory of the calling thread, at least `bytes`, kept for its life.
char* thread_memory(size_t bytes) {
  struct Memory {
    char* data = nullptr;
    size_t size = 0;
    ~Memory() { ::operator delete(data, kCacheLine); }
  };
  static thread_local Memory memory;
  if (memory.size < bytes) {
    ::operator delete(memory.data, kCacheLine);
    memory = {nullptr, 0};
    memory.data = static_cast<char*>(::operator new(bytes, kCacheLine));
    memory.size = bytes;
  }
  return memory.data;
}

// Elements of a product's part that is rounded before the next one is computed: of the L2 cache, and of the L1 cache.
constexpr int64_t kNarrowed = 128 * 1024, kNarrowedOuter = 4 * 1024;

// Bytes of a thread's part of gemm_scratch().
template <class S>
size_t thread_scratch() {
  const bool narrows = !std::is_same_v<S, Compute<S>>;
  return gemm_kernels<S>().scratch_bytes + (narrows ? kNarrowed * sizeof(Compute<S>) : 0);
}

struct Shares {
  Range rows, columns;
};

// The calling thread's part of an m x n matrix in panels of so many columns.
Shares shares_of(const Team& team, int64_t m, int64_t n, int64_t width) {
  constexpr int64_t kRowGroup = 12;
  const int64_t row_groups = (m + kRowGroup - 1) / kRowGroup;
  const int64_t panels = (n + width - 1) / width;

  // The grid of threads with the smallest largest share; among equals, the one with the most columns' cuts, since the
  // columns of B are packed and the rows of A mostly are not.
  int64_t best_rows = 1, best_cost = INT64_MAX;
  for (int64_t rows = 1; rows <= team.size(); ++rows) {
    if (team.size() % rows != 0) continue;
    const int64_t columns = team.size() / rows;
    const int64_t cost = ((row_groups + rows - 1) / rows) * ((panels + columns - 1) / columns);
    if (cost < best_cost) {
      best_cost = cost;
      best_rows = rows;
    }
  }
  const int64_t columns = team.size() / best_rows;
  Range row_share = share(row_groups, team.rank() / columns, best_rows);
  Range column_share = share(panels, team.rank() % columns, columns);
  row_share = {row_share.begin * kRowGroup, std::min(row_share.end * kRowGroup, m)};
  column_share = {column_share.begin * width, std::min(column_share.end * width, n)};
  return {row_share, column_share};
}

}  // namespace

template <>
const GemmKernels<float>& gemm_kernels<float>() {
  return PRNN_FOR_ISA(gemm_tables).single;
}

template <>
const GemmKernels<double>& gemm_kernels<double>() {
  return PRNN_FOR_ISA(gemm_tables).twice;
}

template <>
const GemmKernels<Half>& gemm_kernels<Half>() {
  return PRNN_FOR_ISA(gemm_tables).half;
}

template <>
const GemmKernels<Bfloat16>& gemm_kernels<Bfloat16>() {
#if defined(__x86_64__)
  if (cpu_isa() == Isa::kAmx) return *gemm_kernels_amx();
  if (cpu_isa() == Isa::kAvx512Bfloat16) return *gemm_kernels_bfloat16();
#endif
  return PRNN_FOR_ISA(gemm_tables).bfloat16;
}

template <class S>
char* gemm_scratch(int threads) {
  return thread_memory(static_cast<size_t>(threads) * thread_scratch<S>());
}

template <class S>
void team_gemm(const Team& team, const Gemm<S>& gemm) {
  const Shares shares = shares_of(team, gemm.m, gemm.n, gemm_kernels<S>().width);
  if (shares.rows.size() <= 0 || shares.columns.size() <= 0) return;
  gemm_kernels<S>().gemm(gemm, shares.rows, shares.columns, gemm.scratch + team.rank() * thread_scratch<S>());
}

template <class S>
void team_gemm_narrow(const Team& team, const Gemm<Compute<S>>& gemm, S* c) {
  using T = Compute<S>;
  if constexpr (std::is_same_v<S, T>) {
    Gemm<T> product = gemm;
    product.c = c;
    team_gemm(team, product);
  } else {
    // Parts of C: rows that take no more than kNarrowed, of sums of a few outer products no more than the L1 cache
    // holds.
    const GemmKernels<T>& kernels = gemm_kernels<T>();
    const GemmKernels<S>& conversions = gemm_kernels<S>();
    const Shares shares = shares_of(team, gemm.m, gemm.n, kernels.width);
    const int64_t room = gemm.k <= kernels.most_outer ? kNarrowedOuter : kNarrowed, most_columns = kNarrowedOuter;
    char* const scratch = gemm.scratch + team.rank() * thread_scratch<S>();
    T* const part = reinterpret_cast<T*>(scratch + kernels.scratch_bytes);
    for (int64_t column = shares.columns.begin; column < shares.columns.end; column += most_columns) {
      const int64_t width = std::min(most_columns, shares.columns.end - column), height = room / width;
      for (int64_t row = shares.rows.begin; row < shares.rows.end; row += height) {
        Gemm<T> product = gemm;
        product.m = std::min(height, shares.rows.end - row);
        product.n = product.ldc = width;
        product.a += gemm.a_transposed ? row : row * gemm.lda;
        product.b += column;
        product.c = part;
        S* const to = c + row * gemm.ldc + column;
        for (int64_t i = 0; gemm.accumulate && i < product.m; ++i) {
          conversions.widen(to + i * gemm.ldc, width, part + i * width);
        }
        conversions.gemm_of_data(product, {0, product.m}, {0, width}, scratch);
        for (int64_t i = 0; i < product.m; ++i) conversions.narrow(part + i * width, width, to + i * gemm.ldc);
      }
    }
  }
}

template char* gemm_scratch<float>(int);
template char* gemm_scratch<double>(int);
template char* gemm_scratch<Half>(int);
template char* gemm_scratch<Bfloat16>(int);
template void team_gemm<float>(const Team&, const Gemm<float>&);
template void team_gemm<double>(const Team&, const Gemm<double>&);
template void team_gemm<Half>(const Team&, const Gemm<Half>&);
template void team_gemm<Bfloat16>(const Team&, const Gemm<Bfloat16>&);
template void team_gemm_narrow<float>(const Team&, const Gemm<float>&, float*);
template void team_gemm_narrow<double>(const Team&, const Gemm<double>&, double*);
template void team_gemm_narrow<Half>(const Team&, const Gemm<float>&, Half*);
template void team_gemm_narrow<Bfloat16>(const Team&, const Gemm<float>&, Bfloat16*);

}  // namespace prnn
