// Which layers of a stack run together, as a wavefront: several layers in one launch, each in blocks of its own, the
// weights of all of them on the chip. Plain C++ that needs no GPU, as plan.h. docs/resident_kernels.md, section
// wavefront.
#pragma once

#include <string>

#include "rnn/plan/shape.h"

namespace prnn {

enum class Schedule : int8_t;  // rnn/plan/engines.h
struct WavefrontPlan;          // rnn/plan/plan.h

constexpr int kWavefrontLayers = 8;      // at most, in one launch
constexpr int kWavefrontSequences = 64;  // at most
constexpr int kWavefrontWave = 2;        // tiles with one barrier for all, where a replica has more than one

// Fragments of weights (16 rows, half a k-tile) that a warp keeps in registers, beside the states of its k-tiles.
// `tight`: backward, with sequences of different lengths or dropout.
constexpr int wavefront_register_fragments(int k_tiles, int row_tiles, bool tight) {
  return k_tiles > 4 ? 28 : !tight ? 32 : row_tiles > 8 ? 24 : 28;
}

// A kernel's shape: units of a block in eights, blocks that split K, k-tiles of a warp in each of the two parts of K (a
// layer's own state, and its neighbour's).
struct WavefrontKernel {
  int unit_tiles, cluster, k_tiles;
};

// Whether a replica has no more than one tile where this kernel runs: the weights of large gated layers, more than 2
// k-tiles, leave no room for more; nor, `tight`, do the sums of a GRU of 12 row tiles.
constexpr bool has_one_tile(prnnRNNMode_t mode, const WavefrontKernel& kernel, bool tight) {
  if (mode != PRNN_LSTM && mode != PRNN_GRU) return false;
  return kernel.k_tiles > 2 || (tight && mode == PRNN_GRU && kernel.unit_tiles * kernel.cluster > 8);
}

// Up to half a tile of sequences, where kernels for that exist: the neighbour's states of two timesteps, a pair, fill a
// tile, so that each weight is read once for both. The second timestep's sums are in the upper half of the tile's
// columns, where the own part adds nothing. Forward, the product takes two steps: the first part of K is multiplied in
// the step before the pair, whose sums lie in shared memory for so long, kPairFloats of a block. Backward, where only
// kernels with lengths or dropout gain from pairs, it is done in the pair's first step.
constexpr int kPairColumns = kTileColumns / 2;
constexpr int kPairFloats = 16 * kResidentThreads;
constexpr bool has_pairs(prnnRNNMode_t mode, const WavefrontKernel& kernel, int64_t columns_per_replica) {
  return has_one_tile(mode, kernel, false) && columns_per_replica <= kPairColumns;
}

// Why a stack's layers cannot run in this schedule whatever their number and the batch; empty if they can.
std::string why_not_together(const RnnProblem& problem, Schedule schedule, Pass pass);

// How many of a stack's layers the next launch of a pass takes, which takes `most` and has `left` ahead of it.
int64_t layers_of_launch(const ResidentShape& shape, int64_t most, int64_t left);

// The plan of a stack's wavefronts, with a reason where several layers do not run together.
WavefrontPlan plan_wavefront(const GpuRow& row, const RnnProblem& problem);

}  // namespace prnn
