#include "core/enums.h"
#include "ctc/cpu/ctc_loss.h"
#include "ctc/ctc.h"

namespace prnn {
namespace {

class CpuCtcBackend : public CtcBackend {
 public:
  void require_supported(prnnDataType_t type) const override {
    if (type == PRNN_DATA_FLOAT || type == PRNN_DATA_DOUBLE) return;
    fail(PRNN_STATUS_NOT_SUPPORTED, "dataType is %s; on the CPU the losses take PRNN_DATA_FLOAT and PRNN_DATA_DOUBLE",
         name_of(type));
  }
  size_t loss_workspace_size(const prnnCTCLossOptions_t& o) const override { return ctc_loss_workspace_size_cpu(o); }
  size_t loss_reserve_size(const prnnCTCLossOptions_t& o) const override { return ctc_loss_reserve_size_cpu(o); }
  size_t align_workspace_size(const prnnCTCLossOptions_t& o) const override { return ctc_align_workspace_size_cpu(o); }
  void loss(prnnHandle_t, const CtcParams& params, void* costs, void* gradients, void* reserve) const override {
    run_ctc_loss_cpu(params, costs, gradients, reserve);
  }
  void loss_backward(prnnHandle_t, const CtcParams& params, const void* cost_gradients, void* gradients,
                     const void* reserve) const override {
    run_ctc_loss_backward_cpu(params, cost_gradients, gradients, reserve);
  }
  void align(prnnHandle_t, const CtcParams& params, void* scores, int* begins, int* ends) const override {
    run_ctc_align_cpu(params, scores, begins, ends);
  }
};

}  // namespace

const CtcBackend& cpu_ctc_backend() {
  static const CpuCtcBackend backend;
  return backend;
}

}  // namespace prnn
