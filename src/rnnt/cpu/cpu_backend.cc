#include "core/enums.h"
#include "rnnt/cpu/mutual_information.h"
#include "rnnt/cpu/rnnt_loss.h"
#include "rnnt/rnnt.h"

namespace prnn {
namespace {

class CpuRnntBackend : public RnntBackend {
 public:
  void require_supported(prnnDataType_t type) const override {
    if (type == PRNN_DATA_FLOAT || type == PRNN_DATA_DOUBLE) return;
    fail(PRNN_STATUS_NOT_SUPPORTED, "dataType is %s; on the CPU the losses take PRNN_DATA_FLOAT and PRNN_DATA_DOUBLE",
         name_of(type));
  }
  size_t loss_workspace_size(const prnnRNNTLossOptions_t& o) const override { return rnnt_lattices_size_cpu(o); }
  size_t loss_reserve_size(const prnnRNNTLossOptions_t& o) const override { return rnnt_loss_reserve_size_cpu(o); }
  size_t align_workspace_size(const prnnRNNTLossOptions_t& o) const override { return rnnt_lattices_size_cpu(o); }
  size_t mutual_information_workspace_size(const prnnMutualInformationOptions_t& o) const override {
    return mutual_information_workspace_size_cpu(o);
  }
  void loss(prnnHandle_t, const RnntParams& params, void* costs, void* gradients, void* reserve) const override {
    run_rnnt_loss_cpu(params, costs, gradients, reserve);
  }
  void loss_backward(prnnHandle_t, const RnntParams& params, const void* cost_gradients, void* gradients,
                     const void* reserve) const override {
    run_rnnt_loss_backward_cpu(params, cost_gradients, gradients, reserve);
  }
  void align(prnnHandle_t, const RnntParams& params, void* scores, int* frames) const override {
    run_rnnt_align_cpu(params, scores, frames);
  }
  void mutual_information(prnnHandle_t, const MutualInformationParams& params) const override {
    run_mutual_information_cpu(params);
  }
  void prune_ranges(prnnHandle_t, const PruneRangesParams& params) const override { run_prune_ranges_cpu(params); }
};

}  // namespace

const RnntBackend& cpu_rnnt_backend() {
  static const CpuRnntBackend backend;
  return backend;
}

}  // namespace prnn
