// The problem that stands for all problems of which the library decides the same. Plans are made and kept for canonical
// problems, so that nothing that a plan reads can be missing from the key that it is found by.
#pragma once

#include "rnn/problem.h"

namespace prnn {

// Timesteps that stand for T: the least T' of which every decision, of kernels, schedules and backends, is that of T.
// The one place that knows how many timesteps matter.
int64_t canonical_steps(int64_t steps);

// Sets everything in a problem that no decision reads to one value: no frozen layers, dropout of 0.5 or none,
// marks in the place of the caller's pointers, canonical_steps() timesteps. `rows` stays where it is more than the
// resident kernels count.
RnnProblem canonical(const RnnProblem& problem);

}  // namespace prnn
