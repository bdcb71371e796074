// The calls that run one launch a timestep (rnn/cuda/step/) in the place of the resident kernels, which load their
// weights, and with a projection merge two matrices, before the first timestep. Measured on an H200.
#pragma once

#include "rnn/problem.h"

namespace prnn {

// Whether inference on the problem does, where its layers stay resident.
bool runs_step_by_step(const RnnProblem& problem);

}  // namespace prnn
