// Which float32 layers the simt kernels take, those of one sequence a replica or a few, and how: their part of the
// plans. Plain C++ that needs no GPU, as plan.h. docs/resident_kernels.md, section Lone sequences.
#pragma once

#include "rnn/plan/plan.h"

namespace prnn {

// A kernel that exists: units of a block; 16-byte vectors of K that a lane multiplies; sequences of a replica, at
// most; blocks of the cluster that is a replica, or 1 where the blocks of a replica exchange through L2.
struct SimtKernel {
  int units, loads, columns, cluster;
};

// Each cell's, forward and backward alike; of those that take a layer the first one is the fastest.
constexpr SimtKernel kSimtWithoutGates[] = {{32, 2, 1, 8}, {32, 4, 1, 16}, {16, 4, 1, 1}, {16, 8, 1, 1}, {16, 2, 4, 1}};
constexpr SimtKernel kSimtGated[] = {{16, 4, 1, 16}, {8, 4, 1, 1}, {8, 6, 1, 1}, {8, 8, 1, 1}};

// By its number, from 1 on.
constexpr SimtKernel simt_kernel(bool gated, int number) {
  return gated ? kSimtGated[number - 1] : kSimtWithoutGates[number - 1];
}

// How its lanes split rows and K. Gated cells forward: a lane has all gates of a unit.
struct SimtSplit {
  int rows;        // of weights that a lane multiplies with the same vec of K
  int row_groups;  // of such rows, in each warp; 32 / row_groups lanes split K
  int elements;    // of K, all that the block's warps and lanes have room for
};

constexpr SimtSplit simt_split(int gates, bool backward, const SimtKernel& kernel) {
  SimtSplit split{};
  const bool by_unit = gates > 1 && !backward;
  split.rows = by_unit ? gates : kernel.columns == 1 ? 4 : kernel.units;
  split.row_groups = by_unit ? kernel.units : kernel.units / split.rows;
  split.elements = kResidentWarps * (32 / split.row_groups) * 4 * kernel.loads;
  return split;
}

// Sets `shape` to the layout of the first kernel that takes the problem; false if none does.
bool choose_simt_shape(const GpuRow& row, const RnnProblem& problem, bool backward, int directions,
                       ResidentShape* best);

}  // namespace prnn
