// Which backend serves a CUDA handle.
#include <string>

#include "core/cuda/cuda_state.h"
#include "rnn/backend.h"
#include "rnn/cuda/backend.h"
#include "rnn/cudnn/backend.h"
#include "rnn/plan/faster.h"

namespace prnn {
namespace {

// Why the resident kernels do not serve the problem; empty if they do, and then `resident` is how.
std::string why_not_resident(prnnContext& context, const RnnProblem& problem, const ResidentBackend** resident) {
  if (cuda_state(context).row.name == nullptr) return cuda_state(context).no_row;
  *resident = &resident_backend(context, problem);
  return (*resident)->plan().reason;
}

}  // namespace

const RnnBackend& select_cuda_backend(prnnContext& context, prnnRNNBackend_t wanted, const RnnProblem& problem) {
  const char* const lacks = what_cudnn_lacks(problem);
  if (wanted == PRNN_CUDNN_BACKEND) {
    if (lacks != nullptr) fail(PRNN_STATUS_NOT_SUPPORTED, "%s", lacks);
    return require_cudnn_backend();
  }
  const ResidentBackend* resident = nullptr;
  const std::string reason = why_not_resident(context, problem, &resident);
  const bool runs = reason.empty();
  const bool must = wanted == PRNN_PERSISTENT_BACKEND || lacks != nullptr;
  if (runs && (must || !is_cudnn_faster(cuda_state(context).row, problem, resident->plan()))) return *resident;
  if (wanted == PRNN_PERSISTENT_BACKEND) fail(PRNN_STATUS_NOT_SUPPORTED, "%s", reason.c_str());
  if (must) fail(PRNN_STATUS_NOT_SUPPORTED, "%s; %s", reason.c_str(), lacks);
  try {
    return require_cudnn_backend();
  } catch (const Failure& failure) {
    if (runs) return *resident;
    fail(failure.status(), "%s; %s", reason.c_str(), failure.what());
  }
}

}  // namespace prnn
