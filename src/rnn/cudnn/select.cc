// The backend that serves a CUDA handle.
#include "core/cuda/cuda_state.h"
#include "rnn/cuda/backend.h"
#include "rnn/cudnn/backend.h"

namespace prnn {

SharedRnnBackend cuda_rnn_backend(prnnHandle_t handle, prnnRNNBackend_t wanted, const RnnProblem& problem) {
  std::shared_ptr<const ResidentBackend> resident;
  RnnPlan without;
  if (cuda_state(*handle).row.name == nullptr) {
    without.reason = cuda_state(*handle).no_row;
  } else if (wanted != PRNN_CUDNN_BACKEND) {
    resident = resident_backend(*handle, problem);
  }
  const BackendChoice choice = choose_backend(problem, resident != nullptr ? resident->plan() : without, wanted);
  if (choice.resident_first) return resident;
  if (!choice.cudnn) fail(PRNN_STATUS_NOT_SUPPORTED, "%s", choice.reason.c_str());
  try {
    return require_cudnn_backend();
  } catch (const Failure& failure) {
    if (choice.resident) return resident;
    if (wanted == PRNN_CUDNN_BACKEND) throw;
    fail(failure.status(), "%s; %s", choice.reason.c_str(), failure.what());
  }
}

}  // namespace prnn
