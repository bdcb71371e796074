// The wgmma engines' part of the plans: 16-bit gated layers of many states, a replica's sequences all at once. Plain
// C++ that needs no GPU, as plan.h. docs/resident_kernels.md explains the design.
#pragma once

#include "rnn/plan/plan.h"

namespace prnn {

constexpr int kWarpgroupThreads = 128;
constexpr int kWgmmaUnits = 16;   // hidden units that a block finishes
constexpr int kWgmmaChunk = 64;   // elements of K in 128 bytes, what a swizzled row of shared memory holds
constexpr int kWgmmaCluster = 4;  // blocks that split K in the backward pass

// Chunks that a warpgroup fetches and multiplies together.
constexpr int wgmma_batch(int columns) { return columns <= 16 ? 4 : 64 / columns; }

// Chunks whose weights a warpgroup keeps in registers (16 a thread each).
constexpr int wgmma_register_chunks(int columns) { return columns <= 32 ? 8 : 6; }

// Split-K: kSplitKCluster blocks split K; forward they own their units, backward a gate set, a cluster for each gate,
// does.
constexpr int kSplitKCluster = 2;
constexpr int kSplitKStages = 4;          // batches of chunks that shared memory holds
constexpr int kSplitKRegisterChunks = 8;  // of a warpgroup
constexpr int split_k_batch(int columns) { return columns == 64 ? 1 : 4; }

// Blocks that own their units together.
int split_k_blocks(const RnnProblem& problem, Pass pass);

// Bytes of BackwardParams::sums of one launch of `directions` directions.
int64_t split_k_sums_bytes(const RnnProblem& problem, const ResidentShape& backward, int64_t replicas,
                           int64_t directions);

// Sets `shape` to the layout with so many replicas; false if it does not fit the row.
bool wgmma_shape_for(const GpuRow& row, const RnnProblem& problem, Pass pass, int replicas, ResidentShape* shape);
bool split_k_shape_for(const GpuRow& row, const RnnProblem& problem, Pass pass, int replicas, ResidentShape* shape);

// Sets `best` to the layout of split-K for the fewest passes; false if no replica of all directions fits.
bool choose_split_k_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, int directions, ResidentShape* best);

// Sets `best` to the layout of the engine that is faster; false where another engine is, or neither fits.
bool choose_wgmma_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, int directions, ResidentShape* best);

}  // namespace prnn
