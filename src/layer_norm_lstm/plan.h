// Which engine runs an LSTM with layer normalisation on a GPU. Plain C++ that needs no GPU.
#pragma once

#include "core/gpu_table.h"
#include "prnn_layer_norm_lstm.h"

namespace prnn {

// How a layer lies on clusters. `clusters` 0: it does not.
struct LayerNormLstmClusters {
  int hidden, cluster;  // of the kernel: H at most, and blocks
  int clusters, columns_per_cluster;
};

// Not double; H up to 512, and as many sequences as a few launches of all clusters that the GPU keeps resident.
LayerNormLstmClusters plan_layer_norm_lstm_clusters(const GpuRow& row, const prnnLayerNormLSTMOptions_t& options);

inline prnnLayerNormLSTMInfo_t layer_norm_lstm_info(const LayerNormLstmClusters& plan) {
  if (plan.clusters == 0) return {PRNN_LAYER_NORM_LSTM_STEPS, 0, 0};
  return {PRNN_LAYER_NORM_LSTM_CLUSTER, plan.clusters, plan.cluster};
}

}  // namespace prnn
