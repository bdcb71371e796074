#include "rnn/cuda/backend.h"

#include <array>
#include <memory>

#include "core/cuda/cuda_state.h"
#include "rnn/cuda/layer/run.h"
#include "rnn/plan/canonical.h"

namespace prnn {
namespace {

// A training step, with its sizes, asks for one plan some eight times; streaming and bucketing ask for some in turn.
struct PlanCache {
  struct Entry {
    RnnProblem problem;  // canonical
    std::shared_ptr<const ResidentBackend> backend;
  };
  std::array<Entry, 16> entries;
  size_t oldest = 0;
};

}  // namespace

size_t ResidentBackend::workspace_size(prnnHandle_t, const RnnProblem& problem) const {
  return Workspace(problem, plan_, nullptr).size;
}

size_t ResidentBackend::reserve_size(prnnHandle_t, const RnnProblem& problem, bool keeps_gates) const {
  return Reserve(problem, plan_, keeps_gates, nullptr).size;
}

void ResidentBackend::forward(prnnHandle_t handle, const RnnProblem& problem, const RnnForwardArgs& args) const {
  run_layers_forward(handle, problem, plan_, args);
}

void ResidentBackend::backward_data(prnnHandle_t handle, const RnnProblem& problem,
                                    const RnnBackwardDataArgs& args) const {
  run_layers_backward_data(handle, problem, plan_, args);
}

void ResidentBackend::backward_weights(prnnHandle_t handle, const RnnProblem& problem,
                                       const RnnBackwardWeightsArgs& args) const {
  run_layers_backward_weights(handle, problem, plan_, args);
}

std::shared_ptr<const ResidentBackend> resident_backend(prnnContext& context, const RnnProblem& problem) {
  CudaState& state = cuda_state(context);
  if (state.plans == nullptr) state.plans = std::make_shared<PlanCache>();
  PlanCache& cache = *static_cast<PlanCache*>(state.plans.get());
  RnnProblem key = canonical(problem);
  for (const PlanCache::Entry& entry : cache.entries) {
    if (entry.backend != nullptr && entry.problem == key) return entry.backend;
  }
  auto made = std::make_shared<const ResidentBackend>(plan_rnn(cuda_gpu_row(context), key));
  cache.entries[cache.oldest] = {std::move(key), made};
  cache.oldest = (cache.oldest + 1) % cache.entries.size();
  return made;
}

}  // namespace prnn
