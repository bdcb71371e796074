#include "rnn/plan/cluster.h"

#include <algorithm>

#include "rnn/plan/plan.h"
#include "rnn/plan/simt.h"
#include "rnn/plan/wgmma.h"

namespace prnn {
namespace {

void set_shape(const RnnProblem& problem, KernelId kernel, int replicas, ResidentShape* shape) {
  const bool backward = kernel->pass == Pass::kBackward;
  const int gates = static_cast<int>(problem.gates()), k_tiles = kernel.shape(0), cluster = kernel.shape(1);
  const int k_tile = k_tile_elements(problem.type == PRNN_DATA_FLOAT);
  const ClusterForwardSplit forward_split = cluster_forward_split(gates, k_tiles, cluster, k_tile);
  const ClusterBackwardSplit backward_split = cluster_backward_split(gates, k_tiles, cluster, k_tile);
  *shape = split_units(k_tiles * k_tile, forward_split.units, cluster, replicas);
  shape->kernel = kernel;
  shape->tiles = 1;
  shape->shared_bytes = backward ? backward_split.shared_bytes : forward_split.shared_bytes;
  const int64_t row_tiles = backward ? k_tiles * k_tile / kTileRows : shape->units / kTileRows * gates;
  shape->register_bytes = 512 * (backward ? backward_split.k_tiles : k_tiles) * row_tiles * cluster;
}

}  // namespace

bool choose_cluster_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, int recurrences,
                          ResidentShape* best) {
  // The H200 keeps as many clusters of 8 and of 16 as fit into the blocks of those of 4: 15 and 7.
  const int blocks = resident_blocks(row, 4);
  const bool gated = problem.gates() > 1, backward = pass == Pass::kBackward;
  const bool is_float32 = problem.type == PRNN_DATA_FLOAT;
  if (is_float32 && problem.max_batch() <= kSimtSequences) return false;  // simt is as fast, and exact
  // Any batch where there is no wgmma: mma would work through several tiles of sequences one after the other. Clusters
  // do not wait for each other, so one launch takes more of them than are resident at once.
  ResidentShape multicast;
  const bool takes_any_batch =
      gated && (is_float32 || (!serves(Engine::kWgmma, pass, problem.needs()) &&
                               !choose_multicast_shape(row, problem, pass, recurrences, &multicast)));
  const auto takes = [&](int k_tiles, int cluster, int64_t most_columns) {
    if (cluster > row.largest_cluster || (cluster == 16 && blocks < kWholeGpu)) return false;
    const int64_t room = blocks / cluster / recurrences;
    if (room < 1 || problem.hidden > k_tiles * k_tile_elements(is_float32)) return false;
    int64_t replicas = std::min(room, problem.max_batch());
    if (problem.max_batch() > replicas * most_columns) {
      if (!takes_any_batch) return false;
      replicas = ceil_div(problem.max_batch(), most_columns);
    }
    if (replicas * cluster * recurrences > INT32_MAX) return false;  // blocks of a launch
    return any_kernel(row, problem, Engine::kCluster, pass, [&](KernelId kernel) {
      if (kernel.shape(0) != k_tiles || kernel.shape(1) != cluster) return false;
      set_shape(problem, kernel, static_cast<int>(replicas), best);
      return true;
    });
  };
  if (takes(4, 8, kTileColumns) || takes(8, 8, kTileColumns)) return true;
  // Without gates, 8 blocks hold 512 units, too: more clusters, so fewer sequences in each.
  if (takes(16, 16, backward && !gated ? 2 : kTileColumns)) return true;
  return takes(16, 8, kTileColumns) || takes(32, 16, 2);
}

}  // namespace prnn
