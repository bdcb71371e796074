// Which float32 layers the lone kernels take, those of one sequence a group or a few, and how: their part of the plans.
// Plain C++ that needs no GPU, as plan.h. docs/resident_kernels.md, section Lone sequences.
#pragma once

#include "rnn/plan/plan.h"

namespace prnn {

// A kernel that exists: units of a block; pieces of 16 bytes of K that a lane multiplies; sequences of a group, at
// most; blocks of the cluster that is a group, or 1 where the blocks of a group exchange through L2.
struct LoneKernel {
  int units, loads, columns, cluster;
};

// Each cell's, forward and backward alike; of those that take a layer the first one is the fastest.
constexpr LoneKernel kLoneWithoutGates[] = {{32, 2, 1, 8}, {32, 4, 1, 16}, {16, 4, 1, 1}, {16, 8, 1, 1}, {16, 2, 4, 1}};
constexpr LoneKernel kLoneGated[] = {{16, 4, 1, 16}, {8, 4, 1, 1}, {8, 6, 1, 1}, {8, 8, 1, 1}};

// By its number, from 1 on.
constexpr LoneKernel lone_kernel(bool gated, int number) {
  return gated ? kLoneGated[number - 1] : kLoneWithoutGates[number - 1];
}

// How its lanes split rows and K. Gated cells forward: a lane has all gates of a unit.
struct LoneSplit {
  int rows;      // of weights that a lane multiplies with the same piece of K
  int groups;    // of such rows, in each warp; 32 / groups lanes split K
  int elements;  // of K, all that the block's warps and lanes have room for
};

constexpr LoneSplit lone_split(int gates, bool backward, const LoneKernel& kernel) {
  LoneSplit split{};
  const bool by_unit = gates > 1 && !backward;
  split.rows = by_unit ? gates : kernel.columns == 1 ? 4 : kernel.units;
  split.groups = by_unit ? kernel.units : kernel.units / split.rows;
  split.elements = kResidentWarps * (32 / split.groups) * 4 * kernel.loads;
  return split;
}

// Sets `shape` to the layout of the first kernel that takes the problem; false if none does.
bool choose_lone_shape(const GpuRow& row, const RnnProblem& problem, bool backward, int directions,
                       ResidentShape* best);

}  // namespace prnn
