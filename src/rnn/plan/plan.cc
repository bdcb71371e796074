#include "rnn/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <tuple>

#include "rnn/plan/cluster.h"
#include "rnn/plan/simt.h"
#include "rnn/plan/tuned.h"

namespace prnn {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

const char* mode_name(prnnRNNMode_t mode) {
  switch (mode) {
    case PRNN_LSTM: return "LSTM";
    case PRNN_GRU: return "GRU";
    default: return "RNN";
  }
}

std::string format(const char* text, long long a = 0, long long b = 0, const char* c = "") {
  char buffer[256];
  std::snprintf(buffer, sizeof buffer, text, a, b, c);
  return buffer;
}

// How long a block leaves the others alone after it has published its share. Looking too early slows down the very
// stores that it waits for, the more so the more blocks look; measured on an H200. `states`: of a timestep and replica.
int poll_delay_cycles(const ResidentShape& shape, bool backward, int64_t states) {
  if (shape.wgmma_columns > 0) {
    if (backward) return states < 6144 ? 600 : 900;
    return shape.blocks < 48 ? 600 : shape.wgmma_columns <= 16 ? 900 : 1200;
  }
  if (shape.blocks < 48) return 100;
  if (shape.blocks < 96) return 250;
  return backward ? 700 : states < 6144 ? 450 : 600;
}

// What makes a shape better than another, the most important first. Measured: docs/resident_kernels.md.
// - Tiles of sequences that a replica works through one after the other, over all passes.
// - Backward, a cluster that splits K: its blocks read a share of the gates' gradients. Small layers do without.
// - The matrix instructions and sums of a block: few units with gates, many without, whose blocks have little else to
//   do and leave more SMs to other replicas.
// - Few sequences a replica.
// One sequence of floats has products of its own (MmaProduct::uses_ffma), which are short: without gates fewer
// units a block are better then, and backward a large layer does not gain from a cluster.
struct Rank {
  int64_t tiles, cluster, units, columns;
  bool operator<(const Rank& other) const {
    return std::tie(tiles, cluster, units, columns) < std::tie(other.tiles, other.cluster, other.units, other.columns);
  }
};

Rank rank_of(const RnnProblem& problem, const ResidentShape& shape) {
  const bool is_single_sequence = problem.type == PRNN_DATA_FLOAT && !problem.tf32 && problem.max_batch() == 1;
  const bool wants_cluster = problem.hidden > 256 && !(is_single_sequence && problem.hidden > 768);
  const int64_t units = problem.gates() > 1  ? shape.unit_tiles
                        : is_single_sequence ? std::abs(shape.unit_tiles - 2)
                                             : -shape.unit_tiles;
  const int64_t passes = ceil_div(problem.max_batch(), shape.batch_per_pass());
  return {passes * shape.tiles, wants_cluster ? -shape.cluster : shape.cluster, units,
          ceil_div(problem.max_batch(), shape.replicas)};
}

// The shape of a plan that somebody else chose; false if it has no kernel or does not fit.
bool take_shape(const GpuRow& row, const RnnProblem& problem, bool backward, int directions, const prnnRNNPlan_t& plan,
                ResidentShape* shape) {
  const int unit_tiles = plan.unitsPerBlock / kTileRows, cluster = plan.clusterBlocks, replicas = plan.groups;
  if (replicas > problem.max_batch()) return false;
  const bool may_be_wgmma = problem.gates() > 1 && problem.type != PRNN_DATA_FLOAT && plan.unitsPerBlock == kWgmmaUnits;
  if (may_be_wgmma && cluster == split_k_blocks(problem, backward)) {
    if (!split_k_shape_for(row, problem, backward, replicas, shape)) return false;
  } else if (may_be_wgmma && cluster == kWgmmaCluster) {
    if (!wgmma_shape_for(row, problem, backward, replicas, shape)) return false;
  } else {
    if (!(backward ? has_backward_kernel : has_forward_kernel)(problem, unit_tiles, cluster)) return false;
    if (!shape_for(row, problem, backward, unit_tiles, cluster, replicas, shape)) return false;
  }
  shape->poll_delay_cycles = plan.pauseCycles;
  return int64_t{shape->blocks} * replicas * directions <= resident_blocks(row, shape->cluster);
}

// Whether a layer that the wgmma kernels take is theirs. Staging the states in shared memory costs a small layer more
// than the wider instructions save. Measured.
bool wants_wgmma(const RnnProblem& problem, bool backward, int directions) {
  const int64_t columns = problem.max_batch() * directions, states = problem.hidden * columns;
  if (backward) return problem.hidden > 256 || states >= 4096;
  return states >= (columns >= 32 ? 16384 : 32768);
}

// Whether a layer is the split-K wgmma kernels' where they fit: those that are bound by what a block reads. Measured.
bool wants_split_k(const RnnProblem& problem, int directions) {
  return problem.max_batch() * directions >= 32 && problem.hidden >= 1024;
}

using ShapeFor = bool (*)(const GpuRow&, const RnnProblem&, bool, int, ResidentShape*);

// Of the wgmma or of the split-K wgmma kernels.
bool choose_wgmma_shape(const GpuRow& row, const RnnProblem& problem, bool backward, int directions,
                        ShapeFor shape_for_replicas, ResidentShape* best) {
  const auto rank = [&](const ResidentShape& shape) {
    const int64_t passes = ceil_div(problem.max_batch(), shape.batch_per_pass());
    return std::make_tuple(passes * shape.wgmma_columns, ceil_div(problem.max_batch(), shape.replicas));
  };
  bool found = false;
  for (int replicas = 1; replicas <= std::min<int64_t>(problem.max_batch(), 64); ++replicas) {
    ResidentShape shape;
    if (!shape_for_replicas(row, problem, backward, replicas, &shape)) break;
    if (shape.blocks * replicas * directions > resident_blocks(row, shape.cluster)) break;
    if (!found || rank(shape) < rank(*best)) *best = shape;
    found = true;
  }
  return found;
}

bool choose_shape(const GpuRow& row, const RnnProblem& problem, bool backward, int directions, bool may_be_large,
                  ResidentShape* best) {
  const prnnRNNPlan_t& asked = backward ? problem.backward_plan : problem.forward_plan;
  if (asked.unitsPerBlock > 0) return take_shape(row, problem, backward, directions, asked, best);
  const prnnRNNPlan_t* const tuned = find_tuned_plan(row, problem, backward);
  if (tuned != nullptr && take_shape(row, problem, backward, directions, *tuned, best)) return true;
  if (choose_cluster_shape(row, problem, backward, directions, best)) return true;
  if (choose_simt_shape(row, problem, backward, directions, best)) return true;
  if (wants_split_k(problem, directions) &&
      choose_wgmma_shape(row, problem, backward, directions, split_k_shape_for, best)) {
    return true;
  }
  if (wants_wgmma(problem, backward, directions) &&
      choose_wgmma_shape(row, problem, backward, directions, wgmma_shape_for, best)) {
    return true;
  }
  bool found = false;
  for (int cluster : {1, 2, 3, 4}) {
    for (int unit_tiles = 1; unit_tiles <= 4; ++unit_tiles) {
      if (!(backward ? has_backward_kernel : has_forward_kernel)(problem, unit_tiles, cluster)) continue;
      for (int replicas = 1; replicas <= std::min<int64_t>(problem.max_batch(), 64); ++replicas) {
        ResidentShape shape;
        if (!shape_for(row, problem, backward, unit_tiles, cluster, replicas, &shape)) break;
        if (shape.blocks * replicas * directions > resident_blocks(row, cluster)) break;
        if (!found || rank_of(problem, shape) < rank_of(problem, *best)) *best = shape;
        found = true;
      }
    }
  }
  return found || (may_be_large && directions == 1 && large_shape_for(row, problem, backward, best));
}

bool choose_both(const GpuRow& row, const RnnProblem& problem, bool may_be_large, RnnPlan* plan) {
  for (int directions = static_cast<int>(problem.directions); directions >= 1; --directions) {
    plan->directions_at_once = directions;
    if (choose_shape(row, problem, false, directions, may_be_large, &plan->forward) &&
        choose_shape(row, problem, true, directions, may_be_large, &plan->backward)) {
      return true;
    }
  }
  return false;
}

// A batch whose tiles do not fit together beside the weights is served in passes of one tile a replica. Where that does
// not fit either, there are the large-layer mma kernels.
bool choose_with_passes(const GpuRow& row, const RnnProblem& problem, RnnPlan* plan) {
  if (choose_both(row, problem, false, plan)) return true;
  if (problem.max_batch() > kTileColumns) {
    RnnProblem one_tile = problem;
    one_tile.batch = {kTileColumns};
    if (choose_both(row, one_tile, false, plan)) return true;
  }
  return choose_both(row, problem, true, plan);
}

// The original project's GPUs: capacity is what its largest RNN layer takes.
RnnPlan plan_legacy(const GpuRow& row, const RnnProblem& problem) {
  RnnPlan plan;
  const bool is_16bit = problem.type == PRNN_DATA_HALF || problem.type == PRNN_DATA_BFLOAT16;
  const int64_t largest = is_16bit ? row.legacy_largest16 : row.legacy_largest32;
  plan.largest_hidden = static_cast<int64_t>(largest / std::sqrt(static_cast<double>(problem.gates())));
  plan.fits = problem.hidden <= plan.largest_hidden;
  if (plan.fits) {
    ResidentShape shape;
    shape.replicas = 1;
    shape.blocks = row.multiprocessors;
    shape.unit_tiles = static_cast<int>(ceil_div(problem.hidden, kTileRows * row.multiprocessors));
    shape.row_tiles = static_cast<int>(shape.unit_tiles * problem.gates());
    shape.tiles = 1;
    shape.register_bytes = problem.gates() * problem.hidden * problem.hidden * type_bytes(problem.type);
    plan.forward = plan.backward = shape;
  }
  plan.reason = format("compute capability %lld.%lld (%s) is not compiled by the CUDA versions that prnn builds with",
                       row.arch / 10, row.arch % 10, row.name);
  return plan;
}

bool fits_hidden(const GpuRow& row, RnnProblem problem, int64_t hidden) {
  problem.hidden = hidden;
  problem.forward_plan = problem.backward_plan = {};
  RnnPlan scratch;
  return choose_with_passes(row, problem, &scratch);
}

// Whether a layer fits is monotonic in H up to the rounding of units and k-tiles, which steps of a k-tile respect.
int64_t find_largest_hidden(const GpuRow& row, const RnnProblem& problem) {
  const int64_t step = k_tile_elements(problem.type == PRNN_DATA_FLOAT);
  int64_t low = 0, high = 8192 / step;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (fits_hidden(row, problem, middle * step)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low * step;
}

}  // namespace

int resident_blocks(const GpuRow& row, int cluster) {
  if (cluster == 1) return row.multiprocessors;
  return cluster <= 4 ? row.cluster_blocks[cluster - 2] : 0;
}

int64_t type_bytes(prnnDataType_t type) { return type == PRNN_DATA_DOUBLE ? 8 : type == PRNN_DATA_FLOAT ? 4 : 2; }

bool has_forward_kernel(const RnnProblem& problem, int unit_tiles, int cluster) {
  if (cluster != 1) return false;
  switch (problem.mode) {
    case PRNN_LSTM: return unit_tiles == 1 || unit_tiles == 2;
    case PRNN_GRU: return unit_tiles >= 1 && unit_tiles <= 3;
    default: return unit_tiles == 2 || unit_tiles == 4;
  }
}

bool has_backward_kernel(const RnnProblem& problem, int unit_tiles, int cluster) {
  if (cluster == 1) return has_forward_kernel(problem, unit_tiles, 1);
  const bool is_float32 = problem.type == PRNN_DATA_FLOAT;  // in 16 bits the wgmma kernels serve most of such layers
  switch (problem.mode) {
    case PRNN_LSTM: return (cluster == 2 && unit_tiles == 2) || (cluster == 4 && unit_tiles <= 2 && is_float32);
    case PRNN_GRU: return cluster == 3 && (unit_tiles == 3 || (unit_tiles <= 2 && is_float32));
    default: return false;
  }
}

bool shape_for(const GpuRow& row, const RnnProblem& problem, bool backward, int unit_tiles, int cluster, int replicas,
               ResidentShape* shape) {
  const int64_t gates = problem.gates();
  const int64_t unit = k_tile_elements(problem.type == PRNN_DATA_FLOAT);
  const int64_t padded = ceil_div(problem.hidden, unit) * unit;
  shape->unit_tiles = unit_tiles;
  shape->cluster = cluster;
  shape->replicas = replicas;
  shape->row_tiles = static_cast<int>(unit_tiles * cluster * (backward ? 1 : gates));
  shape->blocks = static_cast<int>(ceil_div(padded, int64_t{kTileRows} * unit_tiles * cluster) * cluster);
  if (shape->blocks > resident_blocks(row, cluster)) return false;
  const int64_t total_k_tiles = padded / unit * (backward ? gates : 1);
  if (total_k_tiles % cluster != 0) return false;
  shape->k_tiles = static_cast<int>(ceil_div(total_k_tiles / cluster, kResidentWarps));

  const int64_t fragment = 512 * kResidentWarps;  // one row tile x one k-tile of every warp
  const int64_t in_registers = std::min<int64_t>(shape->k_tiles, register_k_tiles(shape->row_tiles));
  const int64_t in_shared = shape->k_tiles - in_registers;
  // In shared memory k-tiles are rounded up to an even number.
  const int64_t in_shared_rounded =
      std::max<int64_t>(ceil_div(shape->k_tiles, 2) * 2 - register_k_tiles(shape->row_tiles), 0);
  const int64_t weights = in_shared_rounded * shape->row_tiles * fragment;
  const int64_t tile_sums = int64_t{4} * kTileRows * kTileColumns;
  const bool gated = gates > 1;
  const int64_t wanted = ceil_div(ceil_div(problem.max_batch(), replicas), kTileColumns);
  const int64_t wave = wanted == 1 ? 1 : wave_tiles(shape->row_tiles, lane_rounds(gated, unit_tiles));
  const int64_t sums =
      2 * kResidentWarps * wave * (shape->row_tiles * tile_sums + (backward ? 4 : 4 * shape->row_tiles));
  const int64_t partial = cluster > 1 ? 2 * wave * shape->row_tiles * tile_sums : 0;
  // Static: what a tile carries from step to step, for each unit and sequence; forward, the biases.
  const int64_t biases = backward ? 0 : int64_t{4} * 32 * lane_rounds(gated, unit_tiles);
  const int64_t carried =
      biases + (gated || !backward ? int64_t{4} * kMaxTiles * kTileColumns * unit_tiles * kTileRows : 512);
  const int64_t bias_sums = backward ? int64_t{4} * kResidentWarps * 32 * (gated ? unit_tiles : 1) : 0;  // a tile
  const int64_t fixed = weights + sums + partial + 256;
  if (fixed + carried + bias_sums > row.shared_bytes) return false;
  const int64_t room = backward ? (row.shared_bytes - fixed - carried) / bias_sums : kMaxTiles;
  const int64_t most = std::min<int64_t>(room, kMaxTiles);
  const int64_t passes = ceil_div(wanted, most);
  shape->tiles = static_cast<int>(ceil_div(wanted, passes));
  shape->shared_bytes = fixed + bias_sums * shape->tiles;
  shape->register_bytes = in_registers * shape->row_tiles * fragment * shape->blocks;
  shape->shared_weight_bytes = in_shared * shape->row_tiles * fragment * shape->blocks;
  const bool is_float32 = problem.type == PRNN_DATA_FLOAT;
  const int64_t states = is_float32 ? 0 : problem.hidden * ceil_div(problem.max_batch(), replicas);
  shape->poll_delay_cycles = poll_delay_cycles(*shape, backward, states);
  return true;
}

bool wgmma_shape_for(const GpuRow& row, const RnnProblem& problem, bool backward, int replicas, ResidentShape* shape) {
  const bool is_16bit = problem.type == PRNN_DATA_HALF || problem.type == PRNN_DATA_BFLOAT16;
  if (row.arch != 90 || !is_16bit || problem.gates() == 1) return false;
  const int64_t padded = ceil_div(problem.hidden, k_tile_elements(false)) * k_tile_elements(false);
  const int cluster = backward ? kWgmmaCluster : 1;
  *shape = ResidentShape();
  shape->unit_tiles = kWgmmaUnits / kTileRows;
  shape->cluster = cluster;
  shape->replicas = replicas;
  shape->row_tiles = 8;
  shape->blocks = static_cast<int>(ceil_div(padded, int64_t{kWgmmaUnits} * cluster) * cluster);
  if (shape->blocks > resident_blocks(row, cluster)) return false;
  const int64_t share = padded * (backward ? problem.gates() : 1) / cluster;
  const int64_t chunks = ceil_div(share, 2 * kWgmmaChunk);  // of a warpgroup
  const int64_t wanted = ceil_div(problem.max_batch(), replicas);
  for (int columns = 64; columns >= 8; columns /= 2) {
    const int64_t needed = ceil_div(wanted, ceil_div(wanted, columns));  // of a pass, passes being even
    if (columns > 8 && needed <= columns / 2) continue;
    const int64_t in_registers = std::min<int64_t>(chunks, wgmma_register_chunks(columns));
    const int64_t chunk_bytes = 64 * kWgmmaChunk * 2, in_shared = chunks - in_registers;
    const int64_t ring = int64_t{4} * wgmma_batch(columns) * columns * kWgmmaChunk * 2;
    // Backward, twice: sums for the units, of each block or, of up to 16 columns, of each warpgroup; and otherwise what
    // the warpgroups give each other.
    const int64_t sums = backward ? int64_t{2} * 2 * 4 * 64 * columns : 0;
    const int64_t bytes = ring + sums + 2 * in_shared * chunk_bytes;
    if (bytes + 1024 > row.shared_bytes) continue;  // for the barriers, and the alignment to 1024
    shape->wgmma_columns = columns;
    shape->tiles = static_cast<int>(ceil_div(needed, kTileColumns));
    shape->k_tiles = static_cast<int>(chunks * 2);
    shape->shared_bytes = bytes;
    shape->register_bytes = 2 * in_registers * chunk_bytes * shape->blocks;
    shape->shared_weight_bytes = 2 * in_shared * chunk_bytes * shape->blocks;
    shape->poll_delay_cycles = poll_delay_cycles(*shape, backward, problem.hidden * wanted);
    return true;
  }
  return false;
}

int split_k_blocks(const RnnProblem& problem, bool backward) {
  return kSplitKCluster * static_cast<int>(backward ? problem.gates() : 1);
}

bool split_k_shape_for(const GpuRow& row, const RnnProblem& problem, bool backward, int replicas,
                       ResidentShape* shape) {
  const bool is_16bit = problem.type == PRNN_DATA_HALF || problem.type == PRNN_DATA_BFLOAT16;
  if (row.arch != 90 || !is_16bit || problem.gates() == 1 || problem.hidden % 2 != 0) return false;
  const int64_t padded = ceil_div(problem.hidden, k_tile_elements(false)) * k_tile_elements(false);
  const int together = split_k_blocks(problem, backward);
  *shape = ResidentShape();
  shape->unit_tiles = kWgmmaUnits / kTileRows;
  shape->cluster = kSplitKCluster;
  shape->replicas = replicas;
  shape->row_tiles = 16;
  shape->blocks = static_cast<int>(ceil_div(padded, int64_t{kWgmmaUnits} * together) * together);
  if (shape->blocks > resident_blocks(row, kSplitKCluster)) return false;
  const int64_t chunks = 2 * ceil_div(padded, 2 * kSplitKCluster * kWgmmaChunk);  // of a tile
  const int64_t wanted = ceil_div(problem.max_batch(), replicas);
  const int64_t in_registers = std::min<int64_t>(chunks, kSplitKRegisterChunks), in_shared = chunks - in_registers;
  const int64_t chunk_bytes = 64 * kWgmmaChunk * 2;
  for (int columns = 64; columns >= 8; columns /= 2) {
    const int64_t needed = ceil_div(wanted, ceil_div(wanted, columns));  // of a pass, passes being even
    if (columns > 8 && needed <= columns / 2) continue;
    const int64_t ring = int64_t{kSplitKStages} * split_k_batch(columns) * columns * kWgmmaChunk * 2;
    const int64_t sums = int64_t{3} * 4 * 64 * columns;
    const int64_t inputs = int64_t{2} * 8 * kWgmmaUnits * columns;
    const int64_t bytes = ring + sums + inputs + 2 * in_shared * chunk_bytes;
    if (bytes + 1024 > row.shared_bytes) continue;  // for the barriers, and the alignment to 1024
    shape->wgmma_columns = columns;
    shape->tiles = static_cast<int>(ceil_div(needed, kTileColumns));
    shape->k_tiles = static_cast<int>(chunks);
    shape->shared_bytes = bytes;
    shape->register_bytes = 2 * in_registers * chunk_bytes * shape->blocks;
    shape->shared_weight_bytes = 2 * in_shared * chunk_bytes * shape->blocks;
    shape->poll_delay_cycles = backward ? (columns > 8 ? 1200 : 900) : columns <= 16 ? 450 : columns == 32 ? 600 : 1000;
    return true;
  }
  return false;
}

bool large_shape_for(const GpuRow& row, const RnnProblem& problem, bool backward, ResidentShape* shape) {
  const bool is_float32 = problem.type == PRNN_DATA_FLOAT;
  const int64_t unit = k_tile_elements(is_float32), padded = ceil_div(problem.hidden, unit) * unit;
  const int64_t units = large_units(problem.mode, is_float32), rows = units * (backward ? 1 : problem.gates());
  const int64_t total_k_tiles = padded / unit * (backward ? problem.gates() : 1);
  *shape = ResidentShape();
  shape->large_units = static_cast<int>(units);
  shape->unit_tiles = static_cast<int>(ceil_div(units, kTileRows));
  shape->replicas = shape->tiles = 1;
  shape->blocks = static_cast<int>(ceil_div(padded, units));
  if (shape->blocks > resident_blocks(row, 1)) return false;
  shape->row_tiles = static_cast<int>(ceil_div(rows, kTileRows));
  shape->k_tiles = static_cast<int>(ceil_div(total_k_tiles, kResidentWarps));

  // See MmaLargeProduct. `split`: the row tiles of the k-tile of which only some are in registers.
  const int64_t fragment = 512, whole = rows / kTileRows, in_registers = large_register_tiles(is_float32);
  const int64_t split = in_registers % whole > 0 ? whole - in_registers % whole : 0;
  const int64_t first_shared = kResidentWarps * ceil_div(in_registers, whole);
  const int64_t weights = kResidentWarps * split * fragment +
                          std::max<int64_t>(total_k_tiles - first_shared, 0) * whole * fragment +
                          total_k_tiles * (rows % kTileRows) * fragment / kTileRows;
  const int64_t sums = int64_t{4} * kResidentWarps * rows * kLargeSumColumns;
  // Static: what a tile carries from step to step; biases of what a lane finishes or their sums; inputs that wait.
  const int64_t rounds = large_rounds(problem.mode, is_float32);
  const int64_t own = int64_t{4} * (kResidentWarps * units + (backward ? kResidentWarps : 1) * rounds * 32) +
                      (is_float32 ? 0 : int64_t{backward ? 4 : 2} * kResidentThreads * rounds) + 64;
  shape->shared_bytes = weights + sums;
  if (shape->shared_bytes + own > row.shared_bytes) return false;
  shape->register_bytes = in_registers * fragment * kResidentWarps * shape->blocks;
  shape->shared_weight_bytes = weights * shape->blocks;
  shape->poll_delay_cycles = poll_delay_cycles(*shape, backward, 0);
  return true;
}

RnnPlan plan_rnn(const GpuRow& row, const RnnProblem& problem) {
  if (problem.type == PRNN_DATA_DOUBLE) {
    RnnPlan plan;
    plan.reason = "the data type is double; the resident kernels take float, half and bfloat16";
    return plan;
  }
  if (row.is_legacy()) return plan_legacy(row, problem);
  RnnPlan plan;
  plan.fits = choose_with_passes(row, problem, &plan);
  plan.largest_hidden = find_largest_hidden(row, problem);
  if (!plan.fits) {
    plan.forward = plan.backward = ResidentShape();
    plan.directions_at_once = 1;
    if (problem.hidden <= plan.largest_hidden) {
      plan.reason = "the plan of prnnSetRNNPlan has no kernel, or does not fit this GPU";
      return plan;
    }
    plan.reason = format("hidden size %lld is more than stays resident on this GPU, at most %lld for %s of this type",
                         problem.hidden, plan.largest_hidden, mode_name(problem.mode));
    return plan;
  }
  if (problem.projection > 0) {
    plan.reason = format("projSize is %lld; the resident kernels have no projection", problem.projection);
    return plan;
  }
  plan.runnable = true;
  return plan;
}

}  // namespace prnn
