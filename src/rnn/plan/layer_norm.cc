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

int64_t weight_bytes(const RnnProblem& p) { return p.gates() * p.hidden * p.hidden * type_bytes(p.type); }

// Finds the pass's kernel of an engine with this shape, which there is.
KernelId find_kernel(const GpuRow& row, const RnnProblem& problem, Engine engine, Pass pass,
                     std::initializer_list<int> shape) {
  KernelId found;
  any_kernel(row, problem, engine, pass, [&](KernelId kernel) {
    if (!std::equal(shape.begin(), shape.end(), kernel->shape)) return false;
    found = kernel;
    return true;
  });
  return found;
}

// Not double; H up to 512, and as many sequences as a few launches of all clusters that the GPU keeps resident. Returns
// whether the layer lies on clusters.
bool choose_clusters(const GpuRow& row, const RnnProblem& p, Pass pass, ResidentShape* shape) {
  constexpr int64_t kMostRounds = 4;  // of all resident clusters with 8 sequences each, one after the other
  const int64_t batch = p.max_batch();
  if (p.type == PRNN_DATA_DOUBLE || p.hidden > 512) return false;
  const int hidden = p.hidden <= 128 ? 128 : p.hidden <= 256 ? 256 : 512;
  int cluster = hidden == 512 ? 16 : 8;
  // The H200 keeps as many clusters of 8 and of 16 as fit into the blocks of those of 4.
  const int blocks = resident_blocks(row, 4);
  if (cluster > row.largest_cluster || (cluster == 16 && blocks < kWholeGpu)) return false;
  // One launch of clusters of 8 in place of two of clusters of 16, or of one with two column tiles, which was not
  // faster.
  const int64_t narrow = blocks / 8 * layer_norm_lstm_cluster_columns(512 / 8);
  if (p.hidden == 512 && p.type != PRNN_DATA_FLOAT && batch > blocks / 16 * kTileColumns && batch <= narrow)
    cluster = 8;
  const int64_t room = blocks / cluster, columns = room * kTileColumns;
  if (room < 1 || batch > kMostRounds * columns) return false;
  // Two column tiles in place of twice the launches; see LayerNormLstmLayout for why not without normalisation.
  const bool has_two_tiles = cluster == 16 && p.normalize != PRNN_NORMALIZE_NONE && batch > columns;
  const int64_t replicas = has_two_tiles ? ceil_div(batch, 2 * columns) * room
                                         : std::max(std::min(room, batch), ceil_div(batch, kTileColumns));
  *shape = ResidentShape();
  shape->fewer_columns = static_cast<int>(ceil_div(batch, replicas));
  shape->tiles = static_cast<int>(ceil_div(shape->fewer_columns, kTileColumns));
  shape->replicas = static_cast<int>(ceil_div(batch, shape->fewer_columns));
  shape->cluster = shape->blocks = cluster;
  shape->units = hidden / cluster;
  shape->register_bytes = weight_bytes(p);
  // For few sequences float32's kernel, which multiplies on the multiply-add units without rounding, is faster than
  // tf32's. Measured on an H200.
  RnnProblem rounded = p;
  rounded.tf32 = p.tf32 && (hidden > 128 || shape->fewer_columns > 4);
  shape->kernel = find_kernel(row, rounded, Engine::kNormCluster, pass, {hidden / 8, cluster, shape->tiles});
  return true;
}

// Sets the layout of the pass with a kernel of the grid that takes `most` tiles at most, whose blocks have so many row
// tiles times k-tiles, of K. Returns how many launches, each for some of the sequences, the pass then takes; 0: it does
// not fit on the chip. See MmaProduct for the layout.
int64_t set_grid_pass(const GpuRow& row, const RnnProblem& p, KernelId kernel, int most, int row_tiles, int64_t k_tiles,
                      ResidentShape* shape) {
  const int unit_tiles = kernel.shape(0), cluster = std::max(kernel.shape(1), 1);
  const int64_t batch = p.max_batch(), padded = padded_hidden(p);
  const int64_t of_warp = ceil_div(k_tiles / cluster, kResidentWarps), wave = wave_tiles(row_tiles, unit_tiles);
  const int64_t in_shared = std::max<int64_t>(ceil_div(of_warp, 2) * 2 - register_k_tiles(row_tiles), 0);
  const int64_t tile_floats = kTileRows * kTileColumns;
  const int64_t sums = 2 * kResidentWarps * wave * row_tiles * (tile_floats + 1) * 4;
  const int64_t partial = 2 * int64_t{cluster} * wave * unit_tiles * tile_floats * 4;
  const int64_t of_lanes = 4 * kResidentThreads * (4 * most + 4) * unit_tiles;  // static; and 2 KB of less
  *shape = split_units(padded, unit_tiles * kTileRows, cluster, 0);
  shape->kernel = kernel;
  const int64_t room = std::min(resident_blocks(row, cluster), kLayerNormLstmGridBlocks) / shape->blocks;
  if (room < 1) return 0;
  const int64_t replicas = std::max(ceil_div(batch, int64_t{most} * kTileColumns), std::min(batch, room));
  shape->fewer_columns = static_cast<int>(ceil_div(batch, replicas));
  shape->tiles = static_cast<int>(ceil_div(shape->fewer_columns, kTileColumns));
  shape->replicas = static_cast<int>(std::min(room, ceil_div(batch, shape->fewer_columns)));
  const int64_t weights = in_shared * row_tiles * 512 * kResidentWarps;  // of a block in shared memory
  shape->shared_bytes = sums + partial + weights;
  shape->shared_weight_bytes = std::min(weight_bytes(p), shape->blocks * weights);
  shape->register_bytes = weight_bytes(p) - shape->shared_weight_bytes;
  const bool fits = shape->shared_bytes + of_lanes + 2048 <= row.shared_bytes;
  return fits ? ceil_div(batch, shape->batch_per_pass()) : 0;
}

// Chooses the better one of layouts of no more launches: fewer launches, then fewer tiles one after the other, then the
// earlier one. Blocks of many units leave room for other replicas. Without a kernel: there is none.
ResidentShape choose_grid_pass(const GpuRow& row, const RnnProblem& p, Pass pass, int64_t most_launches) {
  constexpr int kGates = 4;
  const bool is_backward = pass == Pass::kBackward, is_float32 = p.type == PRNN_DATA_FLOAT;
  const int64_t k_tiles = padded_hidden(p) / k_tile_elements(is_float32);
  std::pair<int64_t, int64_t> fewest{most_launches, std::numeric_limits<int64_t>::max()};
  ResidentShape best;
  any_kernel(row, p, Engine::kNormGrid, pass, [&](KernelId kernel) {
    const int unit_tiles = kernel.shape(0), cluster = kernel.shape(1);
    const int row_tiles = unit_tiles * (is_backward ? cluster : kGates);
    const int most = is_backward ? layer_norm_lstm_grid_backward_tiles(unit_tiles, cluster)
                                 : layer_norm_lstm_grid_forward_tiles(is_float32, unit_tiles);
    ResidentShape shape;
    const int64_t launches =
        set_grid_pass(row, p, kernel, most, row_tiles, is_backward ? kGates * k_tiles : k_tiles, &shape);
    const std::pair<int64_t, int64_t> cost{launches, shape.tiles};
    if (launches == 0 || cost >= fewest) return false;
    best = shape;
    fewest = cost;
    return false;
  });
  return best;
}

// Not double; H above 512, as far as the weights fit on the chip, and as many sequences as one launch takes, or two
// where they were measured to be faster than a kernel for each timestep.
void choose_grid(const GpuRow& row, const RnnProblem& p, ResidentShape* forward, ResidentShape* backward) {
  if (p.type == PRNN_DATA_DOUBLE || p.hidden <= 512 || p.hidden > 4096 || p.rows > kMostRows) return;
  // Measured (docs/layer_norm_lstm.md): two launches forward lose to a kernel for each timestep (bfloat16, H = 1024,
  // N = 64), but in float32 without the sums of normalisation; two backward win in 16 bits where forward is one. More
  // than one column tile backward loses there, and more than two in tf32 with these sums in both passes.
  const bool is_float32 = p.type == PRNN_DATA_FLOAT, is_exact = is_float32 && !p.tf32;
  const bool two_forward = is_exact && p.normalize == PRNN_NORMALIZE_NONE && p.hidden > 768;
  *forward = choose_grid_pass(row, p, Pass::kForward, two_forward ? 2 : 1);
  if (!forward->kernel.exists()) return;
  if (is_float32 && !is_exact && p.normalize != PRNN_NORMALIZE_NONE && forward->tiles > 2) {
    *forward = {};
    return;
  }
  *backward = choose_grid_pass(row, p, Pass::kBackward, is_float32 ? 1 : 2);
  if (!is_float32 && backward->tiles > 1) *backward = {};
  const auto& delays = row.delays->mma;
  const bool few_states = padded_hidden(p) * forward->columns() < 6144;
  forward->poll_delay_cycles = few_states ? delays.forward_few_states : delays.forward;
  backward->poll_delay_cycles = delays.backward;
}

// A kernel for each timestep, of all sequences.
ResidentShape steps_of(const RnnProblem& p) {
  ResidentShape shape;
  shape.replicas = 1;
  shape.fewer_columns = static_cast<int>(p.max_batch());
  return shape;
}

}  // namespace

void choose_norm_shapes(const GpuRow& row, const RnnProblem& problem, ResidentShape* forward, ResidentShape* backward) {
  if (choose_clusters(row, problem, Pass::kForward, forward)) {
    choose_clusters(row, problem, Pass::kBackward, backward);
    return;
  }
  choose_grid(row, problem, forward, backward);
  for (ResidentShape* shape : {forward, backward}) {
    if (!shape->kernel.exists()) *shape = steps_of(problem);
  }
}

int64_t largest_layer_norm_lstm(const GpuRow& row, prnnDataType_t type) {
  constexpr int64_t kOwnBytes = 1024;  // of shared memory, that a step's kernel and the driver have themselves
  return with_real(
      type, [&](auto real) { return (row.shared_bytes - kOwnBytes) / layer_norm_lstm_step_bytes<decltype(real)>(1); });
}

}  // namespace prnn
