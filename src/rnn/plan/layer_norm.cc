#include "rnn/plan/layer_norm.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>

#include "core/with_real.h"
#include "rnn/plan/cluster.h"
#include "rnn/plan/mma.h"
#include "rnn/plan/plan.h"

namespace prnn {
namespace {

// Not double; H up to 512, and as many sequences as a few launches of all clusters that the GPU keeps resident.
LayerNormLstmClusters plan_clusters(const GpuRow& row, const RnnProblem& p) {
  constexpr int64_t kMostRounds = 4;  // of all resident clusters with 8 sequences each, one after the other
  LayerNormLstmClusters plan{};
  const int64_t batch = p.max_batch();
  if (p.type == PRNN_DATA_DOUBLE || p.hidden > 512) return plan;
  plan.hidden = p.hidden <= 128 ? 128 : p.hidden <= 256 ? 256 : 512;
  plan.cluster = plan.hidden == 512 ? 16 : 8;
  // The H200 keeps as many clusters of 8 and of 16 as fit into the blocks of those of 4.
  const int blocks = resident_blocks(row, 4);
  if (plan.cluster > row.largest_cluster || (plan.cluster == 16 && blocks < kWholeGpu)) return plan;
  // One launch of clusters of 8 in place of two of clusters of 16, or of one with two column tiles, which was not
  // faster.
  const int64_t narrow = blocks / 8 * layer_norm_lstm_cluster_columns(512 / 8);
  if (p.hidden == 512 && p.type != PRNN_DATA_FLOAT && batch > blocks / 16 * kTileColumns && batch <= narrow)
    plan.cluster = 8;
  const int64_t room = blocks / plan.cluster, columns = room * kTileColumns;
  if (room < 1 || batch > kMostRounds * columns) return plan;
  // Two column tiles in place of twice the launches; see LayerNormLstmLayout for why not without normalisation.
  const bool has_two_tiles = plan.cluster == 16 && p.normalize != PRNN_NORMALIZE_NONE && batch > columns;
  const int64_t replicas = has_two_tiles ? ceil_div(batch, 2 * columns) * room
                                         : std::max(std::min(room, batch), ceil_div(batch, kTileColumns));
  plan.columns_per_cluster = static_cast<int>(ceil_div(batch, replicas));
  plan.clusters = static_cast<int>(ceil_div(batch, plan.columns_per_cluster));
  return plan;
}

// Returns how many launches, each for some of the sequences, a pass of this layout takes; 0: it does not fit on the
// chip. `k_tiles`: of K. See MmaProduct for the layout.
int64_t set_grid_pass(const GpuRow& row, int64_t batch, int64_t padded, int unit_tiles, int cluster, int tiles,
                      int row_tiles, int64_t k_tiles, LayerNormLstmGridPass* pass) {
  const int64_t units = int64_t{unit_tiles} * kTileRows * cluster;
  const int64_t of_warp = ceil_div(k_tiles / cluster, kResidentWarps), wave = wave_tiles(row_tiles, unit_tiles);
  const int64_t in_shared = std::max<int64_t>(ceil_div(of_warp, 2) * 2 - register_k_tiles(row_tiles), 0);
  const int64_t tile_floats = kTileRows * kTileColumns;
  const int64_t sums = 2 * kResidentWarps * wave * row_tiles * (tile_floats + 1) * 4;
  const int64_t partial = 2 * int64_t{cluster} * wave * unit_tiles * tile_floats * 4;
  const int64_t of_lanes = 4 * kResidentThreads * (4 * tiles + 4) * unit_tiles;  // static; and 2 KB of less
  pass->unit_tiles = unit_tiles;
  pass->cluster = cluster;
  pass->blocks = static_cast<int>(ceil_div(padded, units) * cluster);
  const int64_t room = std::min(resident_blocks(row, cluster), kLayerNormLstmGridBlocks) / pass->blocks;
  if (room < 1) return 0;
  const int64_t replicas = std::max(ceil_div(batch, int64_t{tiles} * kTileColumns), std::min(batch, room));
  pass->columns = static_cast<int>(ceil_div(batch, replicas));
  pass->replicas = static_cast<int>(std::min(room, ceil_div(batch, pass->columns)));
  pass->state_columns = static_cast<int>(
      pass->columns > kTileColumns ? ceil_div(pass->columns, kTileColumns) * kTileColumns : pass->columns);
  pass->shared_weight_bytes = in_shared * row_tiles * 512 * kResidentWarps;
  pass->shared_bytes = sums + partial + pass->shared_weight_bytes;
  const bool fits = pass->shared_bytes + of_lanes + 2048 <= row.shared_bytes;
  return fits ? ceil_div(batch, int64_t{pass->replicas} * pass->columns) : 0;
}

// Not double; H above 512, as far as the weights fit on the chip, and as many sequences as one launch takes, or two
// where they were measured to be faster than a kernel for each timestep.
LayerNormLstmGrid plan_grid(const GpuRow& row, const RnnProblem& p) {
  constexpr int kGates = 4;
  LayerNormLstmGrid plan{};
  if (p.type == PRNN_DATA_DOUBLE || p.hidden <= 512 || p.hidden > 4096 || p.rows > kMostRows) return plan;
  if (row.largest_cluster < 2) return plan;  // the backward pass splits K over a cluster
  const bool is_float32 = p.type == PRNN_DATA_FLOAT;
  const int64_t k_tiles = ceil_div(p.hidden, k_tile_elements(is_float32));
  const int64_t padded = k_tiles * k_tile_elements(is_float32);
  plan.padded = static_cast<int>(padded);
  // The better one of layouts, {unit tiles, cluster}, of no more launches: fewer launches, then fewer tiles one after
  // the other, then the earlier one. Blocks of many units leave room for other replicas.
  using Layouts = std::initializer_list<std::pair<int, int>>;
  const auto choose = [&](LayerNormLstmGridPass* best, bool backward, int64_t most_launches, Layouts layouts) {
    std::pair<int64_t, int64_t> fewest{most_launches, std::numeric_limits<int64_t>::max()};
    for (const auto& [unit_tiles, cluster] : layouts) {
      if (unit_tiles == 2 && is_float32) continue;
      LayerNormLstmGridPass pass{};
      const int row_tiles = unit_tiles * (backward ? cluster : kGates);
      const int most = backward ? layer_norm_lstm_grid_backward_tiles(unit_tiles, cluster)
                                : layer_norm_lstm_grid_forward_tiles(is_float32, unit_tiles);
      const int64_t launches = set_grid_pass(row, p.max_batch(), padded, unit_tiles, cluster, most, row_tiles,
                                             backward ? kGates * k_tiles : k_tiles, &pass);
      const std::pair<int64_t, int64_t> cost{launches, ceil_div(pass.columns, kTileColumns)};
      if (launches == 0 || cost >= fewest) continue;
      *best = pass;
      fewest = cost;
    }
    return best->replicas > 0;
  };
  // Measured (docs/layer_norm_lstm.md): two launches forward lose to a kernel for each timestep (bfloat16, H = 1024,
  // N = 64), but in float32 without the sums of normalisation; two backward win in 16 bits where forward is one. More
  // than one column tile backward loses there, and more than two in tf32 with these sums in both passes.
  const bool is_exact = is_float32 && !p.tf32;
  const bool two_forward = is_exact && p.normalize == PRNN_NORMALIZE_NONE && p.hidden > 768;
  if (choose(&plan.forward, false, two_forward ? 2 : 1, {{1, 1}, {2, 1}}))
    choose(&plan.backward, true, is_float32 ? 1 : 2, {{1, 2}, {2, 4}, {2, 2}});
  if (!is_float32 && plan.backward.columns > kTileColumns) plan.backward = {};
  if (is_float32 && !is_exact && p.normalize != PRNN_NORMALIZE_NONE && plan.forward.columns > 2 * kTileColumns)
    return {};
  const auto& delays = row.delays->mma;
  const bool few_states = padded * plan.forward.columns < 6144;
  plan.forward.poll_delay_cycles = few_states ? delays.forward_few_states : delays.forward;
  plan.backward.poll_delay_cycles = delays.backward;
  return plan;
}

}  // namespace

LayerNormLstmPlan plan_layer_norm_lstm(const GpuRow& row, const RnnProblem& problem) {
  LayerNormLstmPlan plan{plan_clusters(row, problem), {}};
  if (plan.clusters.clusters == 0) plan.grid = plan_grid(row, problem);
  return plan;
}

int64_t largest_layer_norm_lstm(const GpuRow& row, prnnDataType_t type) {
  constexpr int64_t kOwnBytes = 1024;  // of shared memory, that a step's kernel and the driver have themselves
  return with_real(
      type, [&](auto real) { return (row.shared_bytes - kOwnBytes) / layer_norm_lstm_step_bytes<decltype(real)>(1); });
}

}  // namespace prnn
