#include "rnn/cuda/backend.h"

#include <array>
#include <memory>

#include "core/cuda/cuda_state.h"
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

std::shared_ptr<const ResidentBackend> resident_backend(prnnContext& context, const RnnProblem& problem) {
  CudaState& state = cuda_state(context);
  if (state.plans == nullptr) state.plans = std::make_shared<PlanCache>();
  PlanCache& cache = *static_cast<PlanCache*>(state.plans.get());
  RnnProblem key = canonical(problem);
  for (const PlanCache::Entry& entry : cache.entries) {
    if (entry.backend != nullptr && entry.problem == key) return entry.backend;
  }
  const auto made = std::make_shared<const ResidentBackend>(plan_rnn(cuda_gpu_row(context), key));
  cache.entries[cache.oldest] = {std::move(key), made};
  cache.oldest = (cache.oldest + 1) % cache.entries.size();
  return made;
}

}  // namespace prnn
