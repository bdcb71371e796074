// Which backend serves a CUDA handle.
#include "core/cuda/cuda_state.h"
#include "rnn/backend.h"
#include "rnn/cuda/layer_run.h"
#include "rnn/plan/plan.h"

namespace prnn {
namespace {

class ResidentBackend : public RnnBackend {
 public:
  size_t workspace_size(const RnnProblem& problem) const override { return Workspace(problem, nullptr).size; }
  size_t reserve_size(const RnnProblem& problem) const override { return Reserve(problem, nullptr).size; }
  void forward(prnnHandle_t handle, const RnnProblem& problem, const RnnForwardArgs& args) const override {
    run_layers_forward(handle, problem, args);
  }
  void backward_data(prnnHandle_t handle, const RnnProblem& problem, const RnnBackwardDataArgs& args) const override {
    run_layers_backward_data(handle, problem, args);
  }
  void backward_weights(prnnHandle_t handle, const RnnProblem& problem,
                        const RnnBackwardWeightsArgs& args) const override {
    run_layers_backward_weights(handle, problem, args);
  }
};

}  // namespace

const RnnBackend& select_cuda_backend(prnnContext& context, prnnRNNBackend_t wanted, const RnnProblem& problem) {
  static const ResidentBackend resident;
  if (wanted == PRNN_CUDNN_BACKEND) {
    fail(PRNN_STATUS_NOT_SUPPORTED,
         "this build has no cuDNN backend; choose PRNN_PERSISTENT_BACKEND or PRNN_BEST_BACKEND");
  }
  const RnnPlan plan = plan_rnn(cuda_gpu_row(context), problem);
  if (!plan.runnable) fail(PRNN_STATUS_NOT_SUPPORTED, "%s", plan.reason.c_str());
  if (problem.rows > INT32_MAX) {
    fail(PRNN_STATUS_NOT_SUPPORTED, "the sequences have %lld rows in all; the resident kernels take at most %d",
         static_cast<long long>(problem.rows), INT32_MAX);
  }
  return resident;
}

}  // namespace prnn
