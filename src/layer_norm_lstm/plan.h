// Which engine runs an LSTM with layer normalisation on a GPU. Plain C++ that needs no GPU.
#pragma once

#include "core/gpu_table.h"
#include "prnn_layer_norm_lstm.h"

namespace prnn {

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

// Not double; H up to 512, and as many sequences as a few launches of all clusters that the GPU keeps resident.
LayerNormLstmClusters plan_layer_norm_lstm_clusters(const GpuRow& row, const prnnLayerNormLSTMOptions_t& options);

// One pass of a layer on a grid of blocks, all of them resident at once, in clusters that split K.
struct LayerNormLstmGridPass {
  int unit_tiles, cluster, blocks;  // a block has unit_tiles * 8 units
  int replicas, columns;            // copies of the weights in a launch, and sequences of each
  int state_columns;                // the latter in whole tiles, where there are several
  int poll_delay_cycles;
  int64_t shared_bytes;
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

// Not double; H above 512, as far as the weights fit on the chip, and as many sequences as one launch takes, or two
// where they were measured to be faster than a kernel for each timestep.
LayerNormLstmGrid plan_layer_norm_lstm_grid(const GpuRow& row, const prnnLayerNormLSTMOptions_t& options);

// The kernels that run calls with these options: the clusters, else the grid, else a kernel for each timestep. The last
// two keep the same for backward: one may run the forward pass and the other the backward pass.
struct LayerNormLstmPlan {
  LayerNormLstmClusters clusters;
  LayerNormLstmGrid grid;

  bool on_clusters() const { return clusters.clusters > 0; }
  bool on_grid(bool is_backward) const { return (is_backward ? grid.backward : grid.forward).replicas > 0; }
};

inline LayerNormLstmPlan plan_layer_norm_lstm(const GpuRow& row, const prnnLayerNormLSTMOptions_t& options) {
  LayerNormLstmPlan plan{plan_layer_norm_lstm_clusters(row, options), {}};
  if (!plan.on_clusters()) plan.grid = plan_layer_norm_lstm_grid(row, options);
  return plan;
}

inline prnnLayerNormLSTMInfo_t layer_norm_lstm_info(const LayerNormLstmPlan& plan) {
  if (plan.on_clusters()) {
    return {PRNN_LAYER_NORM_LSTM_CLUSTER, plan.clusters.clusters, plan.clusters.cluster, PRNN_LAYER_NORM_LSTM_CLUSTER};
  }
  const auto engine = [&](bool is_backward) {
    return plan.on_grid(is_backward) ? PRNN_LAYER_NORM_LSTM_GRID : PRNN_LAYER_NORM_LSTM_STEPS;
  };
  return {engine(false), 0, plan.grid.forward.blocks, engine(true)};
}

}  // namespace prnn
