// From how many timesteps on stacks are faster by chunks. docs/resident_kernels.md, section "Wavefront by chunks".
#pragma once

#include "rnn/problem.h"

namespace prnn {

// The numbers of timesteps from which on there is a difference.
constexpr int64_t kChunkedSteps[] = {32, 48, 64, 96, 128, 192, 256};

// The least T of a stack that kernels by chunks serve; INT64_MAX: whatever their number, other kernels are faster.
int64_t chunked_least_steps(const RnnProblem& problem, bool training);

}  // namespace prnn
