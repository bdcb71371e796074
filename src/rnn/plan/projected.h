// The projected engine's part of the plans: LSTMs with a projection whose matrix of H columns does not stay resident,
// while the two smaller ones do. Plain C++ that needs no GPU, as plan.h. docs/resident_kernels.md explains the design.
#pragma once

#include "rnn/plan/mma.h"

namespace prnn {

constexpr int kProjectedTiles = 4;                                 // tiles that one launch serves
constexpr int kPartialLoads = 9;                                   // of partial sums, by a warp for a row tile
constexpr int kMostPartials = 2 * kResidentWarps * kPartialLoads;  // blocks that leave some

int64_t padded_projection(const RnnProblem& problem);  // P rounded up to whole k-tiles

// K-tiles of a block's own vector: forward its units, backward all their gates.
constexpr int projected_own_k_tiles(bool backward, int unit_tiles, bool is_float32) {
  const int elements = unit_tiles * kTileRows * (backward ? 4 : 1), k_tile = k_tile_elements(is_float32);
  return (elements + k_tile - 1) / k_tile;
}

// A warp's share in registers: k-tiles of the rows of its block's units, and pairs of row tiles of their columns.
constexpr int projected_register_k_tiles(bool backward, int unit_tiles, bool is_float32) {
  return backward ? 2 : is_float32 ? 6 / unit_tiles : register_k_tiles(4 * unit_tiles);
}
constexpr int projected_register_pairs(bool backward, int unit_tiles, bool is_float32) {
  return backward ? 12 / projected_own_k_tiles(backward, unit_tiles, is_float32) : 0;
}

// Sets `shape` to the best layout; false if the row has no room for the layer, or no kernel.
bool choose_projected_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, ResidentShape* best);

}  // namespace prnn
