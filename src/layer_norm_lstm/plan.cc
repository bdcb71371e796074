#include "layer_norm_lstm/plan.h"

#include <algorithm>

#include "rnn/plan/cluster.h"

namespace prnn {

LayerNormLstmClusters plan_layer_norm_lstm_clusters(const GpuRow& row, const prnnLayerNormLSTMOptions_t& o) {
  constexpr int64_t kMostRounds = 4;  // launches of all resident clusters, one after the other
  LayerNormLstmClusters plan{};
  if (o.dataType == PRNN_DATA_DOUBLE || o.hiddenSize > 512) return plan;
  plan.hidden = o.hiddenSize <= 128 ? 128 : o.hiddenSize <= 256 ? 256 : 512;
  plan.cluster = plan.hidden == 512 ? 16 : 8;
  // The H200 keeps as many clusters of 8 and of 16 as fit into the blocks of those of 4.
  const int blocks = resident_blocks(row, 4);
  if (plan.cluster > row.largest_cluster || (plan.cluster == 16 && blocks < kWholeGpu)) return plan;
  const int64_t room = blocks / plan.cluster;
  if (room < 1 || o.batch > kMostRounds * room * kTileColumns) return plan;
  const int64_t replicas = std::max(std::min(room, o.batch), ceil_div(o.batch, kTileColumns));
  plan.columns_per_cluster = static_cast<int>(ceil_div(o.batch, replicas));
  plan.clusters = static_cast<int>(ceil_div(o.batch, plan.columns_per_cluster));
  return plan;
}

}  // namespace prnn
