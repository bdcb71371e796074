#include <algorithm>

#include "core/enums.h"
#include "core/with_real.h"
#include "layer_norm_lstm/cpu/passes.h"

namespace prnn {
namespace {

template <class T>
void multiply_on_cpu(const LayerNormLstmProduct& product) {
  const int threads =
      team_size(2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) * static_cast<double>(product.k));
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
}

class CpuLayerNormLstmBackend final : public LayerNormLstmBackend {
 public:
  void require_supported(prnnHandle_t, const LayerNormLstmOptions& o) const override {
    if (o.dataType == PRNN_DATA_FLOAT || o.dataType == PRNN_DATA_DOUBLE) return;
    fail(PRNN_STATUS_NOT_SUPPORTED,
         "dataType is %s; on the CPU recurrent layers take PRNN_DATA_FLOAT and PRNN_DATA_DOUBLE", name_of(o.dataType));
  }
  prnnLayerNormLSTMInfo_t plan(prnnHandle_t, const LayerNormLstmOptions&) const override {
    return {PRNN_LAYER_NORM_LSTM_CPU, 0, 0, PRNN_LAYER_NORM_LSTM_CPU};
  }
  size_t workspace_size(prnnHandle_t, const LayerNormLstmOptions& o) const override {
    return with_real(o.dataType, [&](auto real) {
      using T = decltype(real);
      return std::max(LayerNormLstmForwardWorkspace<T>(o, nullptr).arena.size(),
                      LayerNormLstmBackwardWorkspace<T>(o, nullptr).arena.size());
    });
  }
  size_t reserve_size(prnnHandle_t, const LayerNormLstmOptions& o) const override {
    return with_real(o.dataType, [&](auto real) {
      Arena arena(nullptr);
      LayerNormLstmRows<decltype(real)>(arena, o.steps * o.batch, o.hiddenSize);
      return arena.size();
    });
  }
  void forward(prnnHandle_t, const LayerNormLstmOptions& o, const LayerNormLstmInputs& inputs,
               const LayerNormLstmForwardArgs& args) const override {
    with_real(o.dataType, [&](auto real) { layer_norm_lstm_forward_cpu<decltype(real)>(o, inputs, args); });
  }
  void backward(prnnHandle_t, const LayerNormLstmOptions& o, const LayerNormLstmInputs& inputs,
                const LayerNormLstmBackwardArgs& args) const override {
    with_real(o.dataType, [&](auto real) { layer_norm_lstm_backward_cpu<decltype(real)>(o, inputs, args); });
  }
  void multiply(prnnHandle_t, const LayerNormLstmOptions& o, const LayerNormLstmProduct& product) const override {
    with_real(o.dataType, [&](auto real) { multiply_on_cpu<decltype(real)>(product); });
  }
};

}  // namespace

const LayerNormLstmBackend& cpu_layer_norm_lstm_backend() {
  static const CpuLayerNormLstmBackend backend;
  return backend;
}

}  // namespace prnn
