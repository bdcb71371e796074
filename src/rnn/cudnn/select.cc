// Which backend serves a CUDA handle.
#include <string>

#include "core/cuda/cuda_state.h"
#include "rnn/backend.h"
#include "rnn/cuda/layer/run.h"
#include "rnn/cudnn/backend.h"
#include "rnn/plan/plan.h"

namespace prnn {
namespace {

class ResidentBackend : public RnnBackend {
 public:
  size_t workspace_size(prnnHandle_t, const RnnProblem& problem) const override {
    return Workspace(problem, nullptr).size;
  }
  size_t reserve_size(prnnHandle_t, const RnnProblem& problem) const override { return Reserve(problem, nullptr).size; }
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

// Why the resident kernels do not serve the problem; empty if they do, and then `plan` is how.
std::string why_not_resident(const prnnContext& context, const RnnProblem& problem, RnnPlan* plan) {
  const GpuRow& row = cuda_state(context).row;
  if (row.name == nullptr) return cuda_state(context).no_row;
  if (problem.rows > INT32_MAX) {
    return "the sequences have " + std::to_string(problem.rows) + " rows in all; the resident kernels take at most " +
           std::to_string(INT32_MAX);
  }
  *plan = plan_rnn(row, problem);
  return plan->reason;
}

// The large-layer mma kernels read a part of the weights again for every 8 sequences. In 16 bits, where cuDNN has
// matrix products for a large batch, it is ahead of three such passes: docs/resident_kernels.md has the measurements.
bool is_behind_cudnn(const RnnProblem& problem, const RnnPlan& plan) {
  const bool is_large = plan.forward.large_units > 0 || plan.backward.large_units > 0;
  return is_large && problem.type != PRNN_DATA_FLOAT && problem.max_batch() > 2 * kTileColumns;
}

}  // namespace

const RnnBackend& select_cuda_backend(prnnContext& context, prnnRNNBackend_t wanted, const RnnProblem& problem) {
  static const ResidentBackend resident;
  if (wanted == PRNN_CUDNN_BACKEND) return require_cudnn_backend();
  RnnPlan plan;
  const std::string reason = why_not_resident(context, problem, &plan);
  const bool runs = reason.empty();
  if (runs && (wanted == PRNN_PERSISTENT_BACKEND || !is_behind_cudnn(problem, plan))) return resident;
  if (wanted == PRNN_PERSISTENT_BACKEND) fail(PRNN_STATUS_NOT_SUPPORTED, "%s", reason.c_str());
  try {
    return require_cudnn_backend();
  } catch (const Failure& failure) {
    if (runs) return resident;
    fail(failure.status(), "%s; %s", reason.c_str(), failure.what());
  }
}

}  // namespace prnn
