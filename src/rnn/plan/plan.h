// What runs on a GPU: how a recurrent layer's weights are split over thread blocks, warps, registers and shared memory.
// Plain C++ that needs no GPU: a plan is computed from a row of the GPU table and a problem. docs/resident_kernels.md
// explains the terms.
//
// Rows and K. A step of the forward pass multiplies the G H x H recurrent weights with the H x N state, a step of the
// backward pass their transpose, H x G H, with the G H x N gradients of the gates. "Rows" are the outputs, "K" is the
// dimension that is summed over. A replica holds all the weights once and serves a share of the batch. In it, a
// cluster of blocks owns a set of hidden units; each of its blocks holds the rows of all of them for its own share of
// K, and the partial sums meet in distributed shared memory. The 8 warps of a block split the block's K again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "rnn/plan/gpu_table.h"
#include "rnn/problem.h"

namespace prnn {

constexpr int kResidentThreads = 256;
constexpr int kResidentWarps = kResidentThreads / 32;
constexpr int kTileColumns = 8;  // sequences in one tile of the matrix instruction
constexpr int kTileRows = 8;     // rows in half a tile of the matrix instruction
constexpr int kMaxTiles = 16;    // tiles that a replica serves in one pass
constexpr int kChunkKTiles = 4;  // k-tiles that a warp loads and multiplies together

// The wgmma kernels: 16-bit gated cells on compute capability 9.0.
constexpr int kWgmmaUnits = 16;   // hidden units that a block finishes
constexpr int kWgmmaChunk = 64;   // elements of K in 128 bytes, what a swizzled row of shared memory holds
constexpr int kWgmmaCluster = 4;  // blocks that split K in the backward pass
constexpr int kWarpgroupThreads = 128;

// Chunks that a warpgroup fetches and multiplies together.
constexpr int wgmma_batch(int columns) { return columns <= 16 ? 4 : 64 / columns; }

// Chunks whose weights a warpgroup keeps in registers (16 a thread each).
constexpr int wgmma_register_chunks(int columns) { return columns <= 32 ? 8 : 6; }

// The split-K wgmma kernels: wgmma kernels for the largest layers. kSplitKCluster blocks split K; forward they are a
// gate set, backward a gate set has such a cluster for each gate.
constexpr int kSplitKCluster = 2;
constexpr int kSplitKStages = 4;          // batches of chunks that shared memory holds
constexpr int kSplitKRegisterChunks = 8;  // of a warpgroup
constexpr int split_k_batch(int columns) { return columns == 64 ? 1 : 4; }

// The large-layer mma kernels, for layers that fit no other: one tile of sequences, a number of units a block that is
// no multiple of 8, more weights in registers. Each cell has one such number, that of the largest layer on 128 blocks.
constexpr int large_units(prnnRNNMode_t mode, bool is_float32) {
  switch (mode) {
    case PRNN_LSTM: return is_float32 ? 13 : 19;
    case PRNN_GRU: return is_float32 ? 15 : 22;
    default: return is_float32 ? 26 : 38;
  }
}

// Units that a lane of a large-layer mma kernel finishes: the gates of a unit lie in 4 lanes.
constexpr int large_rounds(prnnRNNMode_t mode, bool is_float32) {
  const bool gated = mode == PRNN_LSTM || mode == PRNN_GRU;
  return gated ? (large_units(mode, is_float32) + 7) / 8 : (large_units(mode, is_float32) + 31) / 32;
}

// Row tiles of a k-tile whose weights a warp of a large-layer kernel keeps in registers (4 a thread each).
constexpr int large_register_tiles(bool is_float32) { return is_float32 ? 32 : 40; }
constexpr int kLargeSumColumns = kTileColumns + 1;  // of a row of sums, against bank conflicts

// Elements along K that a thread quad covers with one 16-byte load each: a k-tile of matrix instructions.
constexpr int k_tile_elements(bool is_float32) { return is_float32 ? 16 : 32; }

int64_t type_bytes(prnnDataType_t type);

// K-tiles that a warp keeps in registers for a block of `row_tiles` row tiles (4 registers a thread each).
constexpr int register_k_tiles(int row_tiles) { return row_tiles <= 4 ? 8 : 32 / row_tiles; }

// Units that a lane finishes of one tile: the gates of an LSTM or GRU lie in different lanes, the row tiles of an RNN
// too.
constexpr int lane_rounds(bool gated, int unit_tiles) { return gated ? unit_tiles : 1; }

// Tiles that go from the products to the finished states together, with one barrier for all.
constexpr int wave_tiles(int row_tiles, int rounds) {
  const int by_row_tiles = row_tiles <= 4 ? 4 : row_tiles <= 8 ? 2 : 1, by_rounds = 4 / rounds;
  return by_row_tiles < by_rounds ? by_row_tiles : by_rounds;
}

// How one resident kernel, forward or backward, is laid out.
struct ResidentShape {
  int unit_tiles = 0;               // hidden units that a block finishes, in eights
  int cluster = 1;                  // blocks that share rows and split K
  int replicas = 0;                 // copies of the weights, for each direction
  int blocks = 0;                   // blocks of one replica
  int row_tiles = 0;                // row tiles whose weights a block holds
  int k_tiles = 0;                  // k-tiles of one warp
  int tiles = 0;                    // tiles of 8 sequences that a replica serves in one pass
  int poll_delay_cycles = 0;        // from a block's own store to its first look at the others' data
  int64_t register_bytes = 0;       // recurrent weights in registers, whole replica
  int64_t shared_weight_bytes = 0;  // recurrent weights in shared memory, whole replica
  int64_t shared_bytes = 0;         // dynamic shared memory of a block
  int wgmma_columns = 0;  // 8, 16, 32 or 64: the wgmma or split-K wgmma kernel of that many columns; 0: the others
  int large_units = 0;    // the large-layer mma kernel of that many units a block; 0: the other kernels
  int simt_kernel = 0;    // the simt kernel of that number (simt.h), from 1 on; 0: the other kernels

  bool is_split_k() const { return wgmma_columns > 0 && cluster == kSplitKCluster; }

  int units_per_block() const { return large_units > 0 ? large_units : unit_tiles * kTileRows; }
  int64_t columns() const { return int64_t{tiles} * kTileColumns; }
  int64_t batch_per_pass() const { return replicas * columns(); }
};

struct RnnPlan {
  bool fits = false;      // the row's GPU has room for the layer
  bool runnable = false;  // ... and this library has the kernel: the only plans that run
  std::string reason;     // one sentence when not runnable
  ResidentShape forward, backward;
  int directions_at_once = 1;  // 2: both directions of a layer run in one launch
  int64_t largest_hidden = 0;  // largest H with the same mode, type, N and directions that fits
};

RnnPlan plan_rnn(const GpuRow& row, const RnnProblem& problem);

// Blocks that the row keeps resident at once in clusters of this size.
int resident_blocks(const GpuRow& row, int cluster);

// The shapes that kernels are compiled for: those that some plan takes.
bool has_forward_kernel(const RnnProblem& problem, int unit_tiles, int cluster);
bool has_backward_kernel(const RnnProblem& problem, int unit_tiles, int cluster);

// Sets `shape` to the layout with these choices; false if it does not fit the row. For tuning and for tests;
// plan_rnn() makes the choices itself.
bool shape_for(const GpuRow& row, const RnnProblem& problem, bool backward, int unit_tiles, int cluster, int replicas,
               ResidentShape* shape);
// The same for the wgmma and for the split-K wgmma kernels.
bool wgmma_shape_for(const GpuRow& row, const RnnProblem& problem, bool backward, int replicas, ResidentShape* shape);
bool split_k_shape_for(const GpuRow& row, const RnnProblem& problem, bool backward, int replicas, ResidentShape* shape);
// The same for the large-layer mma kernels, which have one replica.
bool large_shape_for(const GpuRow& row, const RnnProblem& problem, bool backward, ResidentShape* shape);

// Blocks of a gate set.
int split_k_blocks(const RnnProblem& problem, bool backward);

}  // namespace prnn
