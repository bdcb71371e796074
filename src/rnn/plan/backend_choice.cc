#include "rnn/plan/backend_choice.h"

namespace prnn {

BackendChoice choose_backend(const RnnProblem& problem, const RnnPlan& plan, prnnRNNBackend_t wanted) {
  const char* const lacks = why_not(Schedule::kCudnn, Pass::kBackward, problem.needs());
  BackendChoice choice;
  choice.resident =
      plan.runnable && (wanted == PRNN_BEST_BACKEND || (wanted == PRNN_PERSISTENT_BACKEND && plan.resident));
  choice.cudnn = lacks == nullptr && wanted != PRNN_PERSISTENT_BACKEND;
  if (wanted == PRNN_CUDNN_BACKEND) {
    choice.reason = lacks != nullptr ? lacks : plan.reason.empty() ? "PRNN_CUDNN_BACKEND was asked for" : plan.reason;
  } else if (plan.runnable && !choice.resident) {
    choice.reason = "the weights of the layer do not stay on the chip, which has room for " +
                    (plan.largest_hidden > 0 ? "hidden sizes up to " + std::to_string(plan.largest_hidden) : "none") +
                    ": a kernel for each timestep would run it";
  } else if (!choice.resident) {
    choice.reason = plan.reason + (wanted == PRNN_BEST_BACKEND && lacks != nullptr ? std::string("; ") + lacks : "");
  } else if (choice.cudnn && (problem.training ? plan.cudnn.training : plan.cudnn.inference)) {
    choice.reason = plan.cudnn.sentence;
  } else {
    choice.resident_first = true;
  }
  return choice;
}

}  // namespace prnn
