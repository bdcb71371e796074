// The timesteps of a variable-length batch in the order in which a direction walks through them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "rnn/problem.h"

namespace prnn {

struct Step {
  int64_t row;       // first packed row
  int64_t batch;     // sequences
  int64_t prev_row;  // first packed row of the step before in this direction
  int64_t carried;   // sequences [0, carried) come from the step before, the others from the initial state
  int64_t kept;      // sequences [0, kept) go on to the step after, for the others this is the last
};

inline std::vector<Step> direction_steps(const RnnProblem& problem, int64_t direction) {
  const int64_t count = problem.steps();
  std::vector<Step> steps(count);
  int64_t row = 0;
  for (int64_t t = 0; t < count; ++t) {
    steps[direction == 0 ? t : count - 1 - t] = {row, problem.batch[t], 0, 0, 0};
    row += problem.batch[t];
  }
  for (int64_t s = 1; s < count; ++s) {
    steps[s].prev_row = steps[s - 1].row;
    steps[s].carried = steps[s - 1].kept = std::min(steps[s].batch, steps[s - 1].batch);
  }
  return steps;
}

// Of every direction of the problem. A pass makes them before it writes anything: they take memory.
inline std::array<std::vector<Step>, 2> all_direction_steps(const RnnProblem& problem) {
  return {direction_steps(problem, 0), problem.directions == 2 ? direction_steps(problem, 1) : std::vector<Step>()};
}

// The largest of layer_input().
inline int64_t widest_input(const RnnProblem& problem) {
  return problem.layers == 1 ? problem.input : std::max(problem.input, problem.layer_input(1));
}

// Threads for a pass in which every row costs that many multiply-adds, spread over the timesteps.
inline double flops_per_step(const RnnProblem& problem, double macs_per_row) {
  return 2 * macs_per_row * static_cast<double>(problem.rows) / static_cast<double>(problem.steps() + 1);
}

}  // namespace prnn
