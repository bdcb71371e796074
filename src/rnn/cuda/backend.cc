#include "rnn/cuda/backend.h"

#include <algorithm>
#include <array>
#include <memory>

#include "core/cuda/cuda_state.h"
#include "rnn/cuda/layer/run.h"
#include "rnn/plan/chunked_steps.h"
#include "rnn/plan/side_by_side.h"

namespace prnn {
namespace {

// What of a problem its plan depends on.
using PlanKey = std::array<int64_t, 33>;

PlanKey key_of(const RnnProblem& p) {
  const prnnRNNPlan_t &f = p.forward_plan, &b = p.backward_plan;
  return {p.mode,
          p.type,
          p.tf32,
          p.input,
          p.hidden,
          p.projection,
          p.layers,
          p.directions,
          p.heads,
          p.max_batch(),
          p.batch.front() == p.batch.back(),
          p.steps() >= kSideBySideSteps,
          p.steps() >= chunked_least_steps(p, true),
          p.steps() >= chunked_least_steps(p, false),
          p.training,
          std::max(p.rows, kMostRows),
          p.skip_input,
          p.dropout.probability > 0,
          p.aligned,
          p.extras.reset != nullptr,
          p.extras.dcells != nullptr,
          p.has_extras(),
          p.masks_in_kernels(),
          f.engine,
          f.unitsPerBlock,
          f.clusterBlocks,
          f.replicas,
          f.pollDelayCycles,
          b.engine,
          b.unitsPerBlock,
          b.clusterBlocks,
          b.replicas,
          b.pollDelayCycles};
}

// A training step, with its sizes, asks for one plan some eight times; streaming and bucketing ask for some in turn.
struct PlanCache {
  struct Entry {
    PlanKey key;
    ResidentBackend backend;
  };
  std::array<std::unique_ptr<Entry>, 16> entries;
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

const ResidentBackend& resident_backend(prnnContext& context, const RnnProblem& problem) {
  CudaState& state = cuda_state(context);
  if (state.plans == nullptr) state.plans = std::make_shared<PlanCache>();
  PlanCache& cache = *static_cast<PlanCache*>(state.plans.get());
  const PlanKey key = key_of(problem);
  for (const auto& entry : cache.entries) {
    if (entry != nullptr && entry->key == key) return entry->backend;
  }
  auto made = std::make_unique<PlanCache::Entry>(
      PlanCache::Entry{key, ResidentBackend(plan_rnn(cuda_gpu_row(context), problem))});
  auto& place = cache.entries[cache.oldest];
  cache.oldest = (cache.oldest + 1) % cache.entries.size();
  place = std::move(made);
  return place->backend;
}

}  // namespace prnn
