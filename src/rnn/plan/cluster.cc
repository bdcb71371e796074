#include "rnn/plan/cluster.h"

#include <algorithm>

namespace prnn {

bool cluster_shape_for(const GpuRow& row, const RnnProblem& problem, bool backward, const ClusterKernel& kernel,
                       int groups, ResidentShape* shape) {
  const bool is_16bit = problem.type == PRNN_DATA_HALF || problem.type == PRNN_DATA_BFLOAT16;
  if (row.arch != 90 || !is_16bit || groups < 1 || problem.hidden > kernel.pairs * pair_units(false)) return false;
  if (problem.max_batch() > int64_t{groups} * kTileColumns) return false;
  const int gates = static_cast<int>(problem.gates());
  const ClusterForwardSplit forward_split = cluster_forward_split(gates, kernel.pairs, kernel.cluster);
  const ClusterBackwardSplit backward_split = cluster_backward_split(gates, kernel.pairs, kernel.cluster);
  *shape = ResidentShape();
  shape->unit_octets = forward_split.units / kOctetRows;
  shape->cluster = shape->blocks = kernel.cluster;
  shape->groups = groups;
  shape->octets = backward ? kernel.pairs * 4 : shape->unit_octets * gates;
  shape->pairs = backward ? backward_split.pairs : kernel.pairs / forward_split.shares;
  shape->tiles = 1;
  shape->shared_bytes = backward ? backward_split.shared_bytes : forward_split.shared_bytes;
  const int64_t pairs_of_row = backward ? backward_split.pairs : kernel.pairs;
  shape->register_bytes = 512 * pairs_of_row * shape->octets * kernel.cluster;
  return true;
}

bool choose_cluster_shape(const GpuRow& row, const RnnProblem& problem, bool backward, int directions,
                          ResidentShape* best) {
  // The H200 keeps as many clusters of 8 and of 16 as fit into the blocks of those of 4: 15 and 7.
  const int blocks = resident_blocks(row, 4);
  const auto takes = [&](int pairs, int cluster, int64_t most_columns) {
    if (cluster == 16 && blocks < kWholeGpu) return false;
    const int64_t room = blocks / cluster / directions;
    const int groups = static_cast<int>(std::min(room, problem.max_batch()));
    return problem.max_batch() <= groups * most_columns &&
           cluster_shape_for(row, problem, backward, {pairs, cluster}, groups, best);
  };
  const bool gated = problem.gates() > 1;
  if (takes(4, 8, kTileColumns) || takes(8, 8, kTileColumns)) return true;
  // Without gates, 8 blocks hold 512 units, too: more clusters, so fewer sequences in each.
  if (takes(16, 16, backward && !gated ? 2 : kTileColumns)) return true;
  if (!gated && takes(16, 8, kTileColumns)) return true;
  return !gated && !backward && takes(32, 16, 2);
}

}  // namespace prnn
