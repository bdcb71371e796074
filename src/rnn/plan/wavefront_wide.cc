#include "rnn/plan/wavefront_wide.h"

#include <algorithm>

namespace prnn {

int choose_wide_wavefront(const GpuRow& row, const RnnProblem& problem, bool backward, ResidentShape* shape) {
  const int64_t hidden = problem.hidden, batch = problem.max_batch();
  // Fewer sequences gain nothing: measured on an H200.
  const int64_t largest = backward ? 512 : 1024, fewest = 2 * kTileColumns + 1;
  if (row.arch != 90 || problem.mode != PRNN_LSTM || hidden <= 256 || hidden > largest || batch < fewest) return 1;
  const int tiles = hidden <= 512 ? 2 : 1, cluster = backward ? kWideCluster : 1;
  const int64_t units = int64_t{kWideUnits} * tiles, cluster_units = units * cluster;
  const int64_t blocks = (hidden + cluster_units - 1) / cluster_units * cluster;
  const int64_t groups = (batch + kWavefrontWideColumns - 1) / kWavefrontWideColumns;
  const int64_t columns = (batch + groups - 1) / groups;
  const int64_t layers =
      std::min({problem.layers, resident_blocks(row, cluster) / (blocks * groups), int64_t{kWavefrontLayers}});
  if (layers < 2) return 1;
  *shape = ResidentShape();
  shape->unit_octets = static_cast<int>(units / kOctetRows);
  shape->cluster = cluster;
  shape->groups = static_cast<int>(groups);
  shape->blocks = static_cast<int>(blocks);
  shape->octets = tiles * 8;
  shape->pairs = wavefront_wide_chunks(tiles) * 2;
  shape->wide_columns = kWavefrontWideColumns;
  shape->tiles = static_cast<int>((columns + kTileColumns - 1) / kTileColumns);
  shape->shared_bytes = wavefront_wide_shared_bytes(tiles, backward);
  shape->pause_cycles = hidden <= 512 ? 1000 : 1200;  // measured on an H200
  return shape->shared_bytes + 1024 > row.shared_bytes ? 1 : static_cast<int>(layers);
}

}  // namespace prnn
