// Which engine runs an LSTM on the input of its gates (RnnProblem::takes_gates()), normalised or not, on a GPU. Plain
// C++ that needs no GPU. docs/layer_norm_lstm.md describes the engines.
#pragma once

#include "core/gpu_table.h"
#include "rnn/plan/kernels.h"

namespace prnn {

struct RnnProblem;  // rnn/problem.h

// Rows of H elements that gateGain (4), gateBias (4), cellGain and cellBias have together, in this order: the layout of
// sums for their gradients.
constexpr int kLayerNormLstmParameterRows = 10;

// How a layer lies on clusters. `clusters` 0: it does not.
struct LayerNormLstmClusters {
  int hidden, cluster;  // of the kernel: H at most, and blocks
  int clusters, columns_per_cluster;

  // Whether tf32's kernel is faster than float32's. Of few sequences that multiplies on the multiply-add units, without
  // rounding. Measured on an H200.
  bool wants_tf32() const { return hidden > 128 || columns_per_cluster > 4; }
};

// Sequences of one column tile of a cluster whose blocks have so many units, at most: what shared memory has room for.
constexpr int layer_norm_lstm_cluster_columns(int units) { return units > 32 ? 6 : 8; }

// One pass of a layer on a grid of blocks, all of them resident at once, in clusters that split K.
struct LayerNormLstmGridPass {
  int unit_tiles, cluster, blocks;  // a block has unit_tiles * 8 units
  int replicas, columns;            // copies of the weights in a launch, and sequences of each
  int state_columns;                // the latter in whole tiles, where there are several
  int poll_delay_cycles;
  int64_t shared_bytes;         // of a block
  int64_t shared_weight_bytes;  // of these, those of its weights; the others are in registers
};

// How a layer lies on the whole GPU.
struct LayerNormLstmGrid {
  int padded;                               // H rounded up to whole k-tiles
  LayerNormLstmGridPass forward, backward;  // `replicas` 0: not on the grid
};

constexpr int kLayerNormLstmGridBlocks = 128;  // at most
// Tiles of 8 sequences that a replica has at most: what registers allow, and what plans want.
constexpr int layer_norm_lstm_grid_forward_tiles(bool is_float32, int unit_tiles) {
  return unit_tiles == 2 ? 2 : is_float32 ? 4 : 1;
}
constexpr int layer_norm_lstm_grid_backward_tiles(int unit_tiles, int cluster) {
  return unit_tiles == 1 ? 4 : cluster == 2 ? 1 : 2;
}

// Bytes of shared memory that a kernel of one timestep takes. Real: float, of double double.
template <class Real>
constexpr int64_t layer_norm_lstm_step_bytes(int64_t hidden) {
  return 6 * hidden * static_cast<int64_t>(sizeof(Real));
}

// The engines of a layer's passes, and its layout on them.
struct LayerNormLstmPlan {
  LayerNormLstmClusters clusters{};
  LayerNormLstmGrid grid{};

  Engine engine(Pass pass) const {
    if (clusters.clusters > 0) return Engine::kNormCluster;
    const LayerNormLstmGridPass& on_grid = pass == Pass::kForward ? grid.forward : grid.backward;
    return on_grid.replicas > 0 ? Engine::kNormGrid : Engine::kNormSteps;
  }
  bool is_resident() const {
    return engine(Pass::kForward) != Engine::kNormSteps && engine(Pass::kBackward) != Engine::kNormSteps;
  }
};

// The clusters, else the grid, else a kernel for each timestep. The last two keep the same for the backward pass: one
// may run the forward pass and the other the backward pass.
LayerNormLstmPlan plan_layer_norm_lstm(const GpuRow& row, const RnnProblem& problem);

// The largest H that a kernel of one timestep has room for.
int64_t largest_layer_norm_lstm(const GpuRow& row, prnnDataType_t type);

}  // namespace prnn
