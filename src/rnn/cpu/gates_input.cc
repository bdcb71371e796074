#include "rnn/gates_input.h"

#include "core/cpu/gemm/gemm.h"
#include "core/with_real.h"

namespace prnn {

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
