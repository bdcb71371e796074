// About how long the resident kernels take, so that measurements of one size can tell of another.
#pragma once

#include "rnn/plan/plan.h"

namespace prnn {

struct StepEstimate {
  double microseconds = 1;
  double of_call = 0;     // microseconds of a call besides its timesteps
  bool is_large = false;  // a pass has the kernels of large layers
};

// A timestep of inference or of training, products of the input and of the weights' gradients included; off by some
// 10 to 20 %.
StepEstimate estimate_step(const GpuRow& gpu, const RnnProblem& problem, bool training);

// A training step of all layers, one after the other, of so many timesteps.
inline double estimate_microseconds(const GpuRow& gpu, const RnnProblem& problem, int64_t steps) {
  const StepEstimate step = estimate_step(gpu, problem, true);
  return static_cast<double>(problem.layers * problem.directions) *
         (step.of_call + step.microseconds * static_cast<double>(steps));
}

}  // namespace prnn
