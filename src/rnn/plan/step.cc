#include "rnn/plan/step.h"

#include "rnn/plan/engines.h"

namespace prnn {
namespace {

// Sequences and timesteps up to which the kernels were measured to be faster than the resident ones and than cuDNN's.
int64_t most_sequences(const RnnProblem& problem) {
  if (problem.type == PRNN_DATA_FLOAT) return problem.tf32 ? 8 : 32;
  return problem.hidden > 1024 ? 8 : 16;
}

// Bytes of the first layer's matrices, which each timestep reads again: from L2 if they fit there.
int64_t matrix_bytes(const RnnProblem& problem) {
  const int64_t of_gates = 4 * problem.hidden * (problem.input + problem.state());
  return (of_gates + problem.hidden * problem.projection) * (problem.type == PRNN_DATA_FLOAT ? 4 : 2);
}

int64_t most_steps(const RnnProblem& problem) {
  if (problem.projection > 0 && matrix_bytes(problem) > 40'000'000) return matrix_bytes(problem) > 128'000'000 ? 0 : 1;
  if (problem.projection > 0) return problem.layers > 1 ? 3 : 4;
  return problem.hidden > 1024 ? 1 : 2;
}

}  // namespace

bool runs_step_by_step(const RnnProblem& problem) {
  if (problem.training || problem.type == PRNN_DATA_DOUBLE || problem.gates() == 1 || problem.hidden < 256)
    return false;
  return serves(Schedule::kStepByStep, Pass::kForward, problem.needs()) &&
         problem.max_batch() <= most_sequences(problem) && problem.steps() <= most_steps(problem);
}

}  // namespace prnn
