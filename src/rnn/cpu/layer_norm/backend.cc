#include <algorithm>

#include "core/with_real.h"
#include "rnn/cpu/layer_norm/passes.h"
#include "rnn/gates_input.h"

namespace prnn {

size_t layer_norm_lstm_workspace_cpu(const RnnProblem& problem) {
  return with_real(problem.type, [&](auto real) {
    using T = decltype(real);
    const size_t forward = size_of(LayerNormLstmForwardWorkspace<T>(problem, nullptr).arena);
    if (!problem.training) return forward;
    return std::max(forward, size_of(LayerNormLstmBackwardWorkspace<T>(problem, nullptr).arena));
  });
}

size_t layer_norm_lstm_reserve_cpu(const RnnProblem& problem) {
  return with_real(problem.type, [&](auto real) {
    Arena arena(nullptr);
    LayerNormLstmRows<decltype(real)>(arena, problem.rows, problem.hidden);
    return size_of(arena);
  });
}

void multiply_gates_cpu(prnnDataType_t type, const GatesProduct& product) {
  const int threads =
      team_size(2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) * static_cast<double>(product.k));
  with_real(type, [&](auto real) {
    using T = decltype(real);
    Gemm<T> gemm;
    gemm.m = product.m;
    gemm.n = gemm.ldc = product.n;
    gemm.k = product.k;
    gemm.a = static_cast<const T*>(product.a);
    gemm.lda = product.a_stride();
    gemm.a_transposed = product.a_transposed;
    gemm.b = static_cast<const T*>(product.b);
    gemm.ldb = product.b_stride();
    gemm.b_transposed = product.b_transposed;
    gemm.c = static_cast<T*>(product.c);
    gemm.scratch = gemm_scratch<T>(threads);
    run_team(threads, [&](const Team& team) { team_gemm(team, gemm); });
  });
}

}  // namespace prnn
