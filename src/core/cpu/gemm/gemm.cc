#include "core/cpu/gemm/gemm.h"

#include <algorithm>
#include <new>

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

}  // namespace

template <>
const GemmKernels<float>& gemm_kernels<float>() {
  return PRNN_FOR_ISA(gemm_tables).single;
}

template <>
const GemmKernels<double>& gemm_kernels<double>() {
  return PRNN_FOR_ISA(gemm_tables).twice;
}

template <class T>
char* gemm_scratch(int threads) {
  return thread_memory(static_cast<size_t>(threads) * gemm_kernels<T>().scratch_bytes);
}

template <class T>
void team_gemm(const Team& team, const Gemm<T>& gemm) {
  if (gemm.m <= 0 || gemm.n <= 0) return;
  const GemmKernels<T>& kernels = gemm_kernels<T>();
  constexpr int64_t kRowGroup = 12;
  const int64_t row_groups = (gemm.m + kRowGroup - 1) / kRowGroup;
  const int64_t panels = (gemm.n + kernels.width - 1) / kernels.width;

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
  row_share = {row_share.begin * kRowGroup, std::min(row_share.end * kRowGroup, gemm.m)};
  column_share = {column_share.begin * kernels.width, std::min(column_share.end * kernels.width, gemm.n)};
  if (row_share.size() > 0 && column_share.size() > 0) {
    kernels.gemm(gemm, row_share, column_share, gemm.scratch + team.rank() * kernels.scratch_bytes);
  }
}

template char* gemm_scratch<float>(int);
template char* gemm_scratch<double>(int);
template void team_gemm<float>(const Team&, const Gemm<float>&);
template void team_gemm<double>(const Team&, const Gemm<double>&);

}  // namespace prnn
