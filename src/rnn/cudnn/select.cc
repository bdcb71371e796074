// Which backend serves a CUDA handle.
#include <string>

#include "core/cuda/cuda_state.h"
#include "rnn/backend.h"
#include "rnn/cuda/backend.h"
#include "rnn/cudnn/backend.h"

namespace prnn {
namespace {

// Why the resident kernels do not serve the problem; empty if they do, and then `resident` is how.
std::string why_not_resident(prnnContext& context, const RnnProblem& problem, const ResidentBackend** resident) {
  if (cuda_state(context).row.name == nullptr) return cuda_state(context).no_row;
  if (problem.rows > INT32_MAX) {
    return "the sequences have " + std::to_string(problem.rows) + " rows in all; the resident kernels take at most " +
           std::to_string(INT32_MAX);
  }
  *resident = &resident_backend(context, problem);
  return (*resident)->plan().reason;
}

// The large-layer mma kernels read a part of the weights again for every 8 sequences. In 16 bits, where cuDNN has
// matrix products for a large batch, it is ahead of three such passes: docs/resident_kernels_measured.md has the measurements.
bool is_behind_cudnn(const RnnProblem& problem, const RnnPlan& plan) {
  const bool is_large = plan.forward.kernel.is(Engine::kMmaLarge) || plan.backward.kernel.is(Engine::kMmaLarge);
  return is_large && problem.type != PRNN_DATA_FLOAT && problem.max_batch() > 2 * kTileColumns;
}

}  // namespace

const RnnBackend& select_cuda_backend(prnnContext& context, prnnRNNBackend_t wanted, const RnnProblem& problem) {
  if (wanted == PRNN_CUDNN_BACKEND) return require_cudnn_backend();
  const ResidentBackend* resident = nullptr;
  const std::string reason = why_not_resident(context, problem, &resident);
  const bool runs = reason.empty();
  if (runs && (wanted == PRNN_PERSISTENT_BACKEND || !is_behind_cudnn(problem, resident->plan()))) return *resident;
  if (wanted == PRNN_PERSISTENT_BACKEND) fail(PRNN_STATUS_NOT_SUPPORTED, "%s", reason.c_str());
  try {
    return require_cudnn_backend();
  } catch (const Failure& failure) {
    if (runs) return *resident;
    fail(failure.status(), "%s; %s", reason.c_str(), failure.what());
  }
}

}  // namespace prnn
