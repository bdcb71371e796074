#include "rnn/plan/step.h"

namespace prnn {
namespace {

// Sequences and timesteps up to which the kernels were measured to be faster than the resident ones and than cuDNN's.
int64_t most_sequences(const RnnProblem& problem) {
  if (problem.type == PRNN_DATA_FLOAT) return problem.tf32 ? 8 : 32;
  return problem.hidden > 1024 ? 8 : 16;
}

int64_t most_steps(const RnnProblem& problem) {
  if (problem.projection > 0) return problem.layers > 1 ? 3 : 4;
  return problem.hidden > 1024 ? 1 : 2;
}

}  // namespace

bool runs_step_by_step(const RnnProblem& problem) {
  if (problem.training || problem.type == PRNN_DATA_DOUBLE || problem.skip_input || problem.has_extras()) return false;
  if (problem.heads > 1) return false;
  if (problem.forward_plan.engine != PRNN_ENGINE_BEST) return false;
  if (problem.gates() == 1 || problem.directions > 1 || problem.hidden < 256) return false;
  return problem.batch.front() == problem.batch.back() && problem.max_batch() <= most_sequences(problem) &&
         problem.steps() <= most_steps(problem);
}

}  // namespace prnn
