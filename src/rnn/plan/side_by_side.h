// Which stacks run neighbouring layers side by side: one launch of split-K kernels has two layers in the place of two
// directions, each on half of the GPU's blocks, the upper one with the first half of the timesteps and the lower one
// with the second. Plain C++ that needs no GPU, as plan.h. docs/resident_kernels.md, section "Side by side".
#pragma once

#include <vector>

#include "rnn/plan/plan.h"

namespace prnn {

constexpr int64_t kSideBySideSteps = 32;  // at least

// Timesteps [first, first + steps) of a layer, one of its two halves.
struct LayerHalf {
  int64_t layer, first, steps;
  bool is_first() const { return first == 0; }
};

// A launch of a layer alone or of two.
struct SideBySideLaunch {
  LayerHalf half[2];
  int count;
};

// The launches of a pass in their order: layers + 1.
std::vector<SideBySideLaunch> side_by_side_launches(int64_t layers, int64_t steps, Pass pass);

// The layout of a launch's layers.
const ResidentShape& shape_of(const RnnPlan& plan, const SideBySideLaunch& launch, Pass pass);

// Has the passes that are faster so run so, in a plan of layers alone and of their wavefronts; else adds why not.
void plan_side_by_side(const GpuRow& row, const RnnProblem& problem, RnnPlan* plan);

}  // namespace prnn
