#include "rnn/plan/cluster.h"

#include <algorithm>

namespace prnn {

bool cluster_shape_for(const GpuRow& row, const RnnProblem& problem, bool backward, const ClusterKernel& kernel,
                       int replicas, ResidentShape* shape) {
  const bool is_16bit = problem.type == PRNN_DATA_HALF || problem.type == PRNN_DATA_BFLOAT16;
  if (row.arch != 90 || !is_16bit || replicas < 1 || problem.hidden > kernel.k_tiles * k_tile_elements(false))
    return false;
  if (problem.max_batch() > int64_t{replicas} * kTileColumns) return false;
  const int gates = static_cast<int>(problem.gates());
  const ClusterForwardSplit forward_split = cluster_forward_split(gates, kernel.k_tiles, kernel.cluster);
  const ClusterBackwardSplit backward_split = cluster_backward_split(gates, kernel.k_tiles, kernel.cluster);
  *shape = ResidentShape();
  shape->unit_tiles = forward_split.units / kTileRows;
  shape->cluster = shape->blocks = kernel.cluster;
  shape->replicas = replicas;
  shape->row_tiles = backward ? kernel.k_tiles * 4 : shape->unit_tiles * gates;
  shape->k_tiles = backward ? backward_split.k_tiles : kernel.k_tiles / forward_split.shares;
  shape->tiles = 1;
  shape->shared_bytes = backward ? backward_split.shared_bytes : forward_split.shared_bytes;
  const int64_t k_tiles_of_row = backward ? backward_split.k_tiles : kernel.k_tiles;
  shape->register_bytes = 512 * k_tiles_of_row * shape->row_tiles * kernel.cluster;
  return true;
}

bool choose_cluster_shape(const GpuRow& row, const RnnProblem& problem, bool backward, int directions,
                          ResidentShape* best) {
  // The H200 keeps as many clusters of 8 and of 16 as fit into the blocks of those of 4: 15 and 7.
  const int blocks = resident_blocks(row, 4);
  const auto takes = [&](int k_tiles, int cluster, int64_t most_columns) {
    if (cluster == 16 && blocks < kWholeGpu) return false;
    const int64_t room = blocks / cluster / directions;
    const int replicas = static_cast<int>(std::min(room, problem.max_batch()));
    return problem.max_batch() <= replicas * most_columns &&
           cluster_shape_for(row, problem, backward, {k_tiles, cluster}, replicas, best);
  };
  const bool gated = problem.gates() > 1;
  if (takes(4, 8, kTileColumns) || takes(8, 8, kTileColumns)) return true;
  // Without gates, 8 blocks hold 512 units, too: more clusters, so fewer sequences in each.
  if (takes(16, 16, backward && !gated ? 2 : kTileColumns)) return true;
  if (!gated && takes(16, 8, kTileColumns)) return true;
  return !gated && !backward && takes(32, 16, 2);
}

}  // namespace prnn
