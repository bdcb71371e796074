// Which engine runs an LSTM on the input of its gates (RnnProblem::takes_gates()), normalised or not, on a GPU. Plain
// C++ that needs no GPU. docs/layer_norm_lstm.md describes the engines.
#pragma once

#include "core/gpu_table.h"
#include "rnn/plan/shape.h"

namespace prnn {

// Rows of H elements that gateGain (4), gateBias (4), cellGain and cellBias have together, in this order: the layout of
// sums for their gradients.
constexpr int kLayerNormLstmParameterRows = 10;

// Sequences of one column tile of a cluster whose blocks have so many units, at most: what shared memory has room for.
constexpr int layer_norm_lstm_cluster_columns(int units) { return units > 32 ? 6 : 8; }

constexpr int kLayerNormLstmGridBlocks = 128;  // at most
// Tiles of 8 sequences that a replica has at most: what registers allow, and what plans want.
constexpr int layer_norm_lstm_grid_forward_tiles(bool is_float32, int unit_tiles) {
  return unit_tiles == 2 ? 2 : is_float32 ? 4 : 1;
}
constexpr int layer_norm_lstm_grid_backward_tiles(int unit_tiles, int cluster) {
  return unit_tiles == 1 ? 4 : cluster == 2 ? 1 : 2;
}
// Sequences of a replica whose states it exchanges forward: whole tiles, where there are several.
constexpr int64_t layer_norm_lstm_state_columns(int64_t columns) {
  return columns > kTileColumns ? ceil_div(columns, kTileColumns) * kTileColumns : columns;
}

// Bytes of shared memory that a kernel of one timestep takes. Real: float, of double double.
template <class Real>
constexpr int64_t layer_norm_lstm_step_bytes(int64_t hidden) {
  return 6 * hidden * static_cast<int64_t>(sizeof(Real));
}

// Sets the layouts of both passes, without a kernel where a pass has one for each timestep (Engine::kNormSteps): the
// clusters, else the grid, else steps. The last two keep the same for the backward pass: one may run the forward pass
// and the other the backward pass.
void choose_norm_shapes(const GpuRow& row, const RnnProblem& problem, ResidentShape* forward, ResidentShape* backward);

// The largest H that a kernel of one timestep has room for.
int64_t largest_layer_norm_lstm(const GpuRow& row, prnnDataType_t type);

}  // namespace prnn
