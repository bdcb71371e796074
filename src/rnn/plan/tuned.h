// Shapes that were measured to be better than the ones plan_rnn() works out. `prnn bench rnn --tune`
// writes the lines; docs/adding_a_gpu.md says how they get here.
#pragma once

#include "core/gpu_table.h"
#include "rnn/plan/kernels.h"
#include "rnn/problem.h"

namespace prnn {

// The measured shape for exactly this GPU, cell, width of type, H and N in one direction; NULL if there is none.
const prnnRNNPlan_t* find_tuned_plan(const GpuRow& row, const RnnProblem& problem, Pass pass);

}  // namespace prnn
