#include "rnn/plan/wavefront_wgmma.h"

#include <algorithm>

namespace prnn {

int choose_wgmma_wavefront(const GpuRow& row, const RnnProblem& problem, bool backward, ResidentShape* shape) {
  const int64_t hidden = problem.hidden, batch = problem.max_batch();
  // Fewer sequences gain nothing: measured on an H200.
  const int64_t largest = backward ? 512 : 1024, fewest = 2 * kTileColumns + 1;
  if (row.arch != 90 || problem.mode != PRNN_LSTM || hidden <= 256 || hidden > largest || batch < fewest) return 1;
  const int tiles = hidden <= 512 ? 2 : 1, cluster = backward ? kWgmmaCluster : 1;
  const int64_t units = int64_t{kWgmmaUnits} * tiles, cluster_units = units * cluster;
  const int64_t blocks = (hidden + cluster_units - 1) / cluster_units * cluster;
  const int64_t replicas = (batch + kWavefrontWgmmaColumns - 1) / kWavefrontWgmmaColumns;
  const int64_t columns = (batch + replicas - 1) / replicas;
  const int64_t layers =
      std::min({problem.layers, resident_blocks(row, cluster) / (blocks * replicas), int64_t{kWavefrontLayers}});
  if (layers < 2) return 1;
  *shape = ResidentShape();
  shape->unit_tiles = static_cast<int>(units / kTileRows);
  shape->cluster = cluster;
  shape->replicas = static_cast<int>(replicas);
  shape->blocks = static_cast<int>(blocks);
  shape->row_tiles = tiles * 8;
  shape->k_tiles = wavefront_wgmma_chunks(tiles) * 2;
  shape->wgmma_columns = kWavefrontWgmmaColumns;
  shape->tiles = static_cast<int>((columns + kTileColumns - 1) / kTileColumns);
  shape->shared_bytes = wavefront_wgmma_shared_bytes(tiles, backward);
  shape->poll_delay_cycles = hidden <= 512 ? 1000 : 1200;  // measured on an H200
  return shape->shared_bytes + 1024 > row.shared_bytes ? 1 : static_cast<int>(layers);
}

}  // namespace prnn
