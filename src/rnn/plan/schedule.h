// The launches of a pass over a stack, in their order: what runs a call and what sizes its memory read the same list.
// Plain C++ that needs no GPU, as plan.h.
#pragma once

#include <vector>

#include "rnn/plan/side_by_side.h"

namespace prnn {

// One launch of resident kernels for layers [first, first + count) or, where a layer's batch takes several passes or
// its recurrences several launches, all launches of that layer.
struct StackLaunch {
  Schedule schedule;        // kOneByOne and kStepByStep: one layer; kWavefront: all at once
  int64_t first, count;     // kSideBySide: not set
  SideBySideLaunch halves;  // kSideBySide
};

// Whether inference on a problem whose layers stay resident has a launch a timestep (rnn/cuda/step/) in the place of
// the resident kernels, which load their weights, and with a projection merge two matrices, before the first timestep.
// Measured on an H200.
bool runs_step_by_step(const RnnProblem& problem);

// aligned: the data of a backward pass that kernels by chunks read, w, dy and a GRU's y, is aligned to 16 bytes; with
// other data layers run one by one. Backward without frozen layers.
std::vector<StackLaunch> stack_launches(const RnnProblem& problem, const RnnPlan& plan, Pass pass, bool aligned = true);

// Partial sums of the bias gradients that the backward kernels leave for each layer that is not frozen.
std::vector<int64_t> bias_partials(const RnnProblem& problem, const RnnPlan& plan);

}  // namespace prnn
