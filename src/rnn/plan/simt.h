// The simt engine's part of the plans: float32 layers of one sequence a replica, or a few. Plain C++ that needs no GPU,
// as plan.h. docs/resident_kernels.md explains the design.
#pragma once

#include "rnn/plan/shape.h"

namespace prnn {

constexpr int64_t kSimtSequences = 4;  // of a layer, at most

// A kernel's shape: units of a block; 16-byte loads of K of a lane; sequences of a replica, at most; blocks of the
// cluster that is a replica, or 1 where the blocks of a replica exchange through L2.
struct SimtKernel {
  int units, loads, columns, cluster;
};

// How its lanes split rows and K. Gated cells forward: a lane has all gates of a unit.
struct SimtSplit {
  int rows;        // of weights that a lane multiplies with the same vec of K
  int row_groups;  // of such rows, in each warp; 32 / row_groups lanes split K
  int elements;    // of K, all that the block's warps and lanes have room for
};

// Loads of a large layer that a lane waits for and multiplies together. With 3, backward kernels spill.
constexpr int simt_chunk(bool backward) { return backward ? 2 : 5; }

// Loads whose weights a lane of so many rows keeps in registers, 128 floats; those of the others lie in shared memory.
constexpr int simt_register_loads(int rows, int loads) { return loads < 32 / rows ? loads : 32 / rows; }

constexpr SimtSplit simt_split(int gates, bool backward, const SimtKernel& kernel) {
  SimtSplit split{};
  const bool by_unit = gates > 1 && !backward;
  split.rows = by_unit ? gates : kernel.columns == 1 ? 4 : kernel.units;
  split.row_groups = by_unit ? kernel.units : kernel.units / split.rows;
  split.elements = kResidentWarps * (32 / split.row_groups) * 4 * kernel.loads;
  return split;
}

// Sets `best` to the layout of the first kernel that takes the problem; false where other engines are faster.
bool choose_simt_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, int recurrences, ResidentShape* best);

}  // namespace prnn
