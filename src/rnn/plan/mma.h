// The mma engine's part of the plans: 8 warps a block, mma.sync, states exchanged through L2. Plain C++ that needs no
// GPU, as plan.h. docs/resident_kernels.md explains the design.
#pragma once

#include "rnn/plan/shape.h"

namespace prnn {

constexpr int kChunkKTiles = 4;  // k-tiles that a warp loads and multiplies together

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

// The large-layer kernels: one tile of sequences, a number of units a block that is no multiple of 8, more weights in
// registers. Each cell has one such number, that of the largest layer on 128 blocks.
constexpr int large_units(prnnRNNMode_t mode, bool is_float32) {
  switch (mode) {
    case PRNN_LSTM:
    case PRNN_SLSTM:
    case PRNN_SLSTM_EXP: return is_float32 ? 13 : 19;
    case PRNN_GRU: return is_float32 ? 15 : 22;
    default: return is_float32 ? 26 : 38;
  }
}

// Units that a lane of a large-layer kernel finishes: the gates of a unit lie in 4 lanes.
constexpr int large_rounds(prnnRNNMode_t mode, bool is_float32) {
  const bool gated = mode != PRNN_RNN_RELU && mode != PRNN_RNN_TANH;
  return gated ? (large_units(mode, is_float32) + 7) / 8 : (large_units(mode, is_float32) + 31) / 32;
}

// Row tiles of a k-tile whose weights a warp of a large-layer kernel keeps in registers (4 a thread each).
constexpr int large_register_tiles(bool is_float32) { return is_float32 ? 32 : 40; }
constexpr int kLargeSumColumns = kTileColumns + 1;  // of a row of sums, against bank conflicts

// Sets `shape` to the layout of the kernel with so many replicas; false if it does not fit the row.
bool mma_shape_for(const GpuRow& row, const RnnProblem& problem, KernelId kernel, int replicas, ResidentShape* shape);

// Sets `shape` to the best layout; false if the row has no room for the layer.
bool choose_mma_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, int recurrences, ResidentShape* best);

// Chooses the shape of the large-layer kernels, which have one replica and one direction.
bool choose_mma_large_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, int recurrences,
                            ResidentShape* best);

}  // namespace prnn
