#include "rnn/plan/step.h"

namespace prnn {

bool runs_step_by_step(const RnnProblem& problem) {
  if (problem.training || problem.type == PRNN_DATA_DOUBLE || problem.skip_input || problem.has_extras()) return false;
  if (problem.forward_plan.engine != PRNN_ENGINE_BEST) return false;
  if (problem.batch.front() != problem.batch.back() || problem.max_batch() > kStepSequences) return false;
  return problem.steps() <= 8;
}

}  // namespace prnn
