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

}  // namespace prnn
