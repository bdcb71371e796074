#include "rnn/plan/mma.h"

#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "rnn/plan/plan.h"

namespace prnn {
namespace {

// `states`: of a timestep and replica, 0 in float32.
int poll_delay(const GpuRow& row, const ResidentShape& shape, Pass pass, int64_t states) {
  const auto& delays = row.delays->mma;
  if (shape.blocks < 48) return delays.few_blocks;
  if (shape.blocks < 96) return delays.some_blocks;
  if (pass == Pass::kBackward) return delays.backward;
  return states < 6144 ? delays.forward_few_states : delays.forward;
}

// The properties that make a shape better than another, the most important first. Measured: docs/resident_kernels.md.
// - Tiles of sequences that a replica works through one after the other, over all passes.
// - Backward, a cluster that splits K: its blocks read a share of the gates' gradients. Small layers do without.
// - The matrix instructions and sums of a block: few units with gates; many without, whose blocks have little else to
//   do and leave more SMs to other replicas.
// - Few sequences a replica.
// One sequence of floats has products of its own (MmaProduct::uses_ffma), which are short: without gates fewer units
// a block are better then, and backward a large layer does not gain from a cluster.
auto rank_of(const RnnProblem& problem, const ResidentShape& shape) {
  const bool is_single = problem.type == PRNN_DATA_FLOAT && !problem.tf32 && problem.max_batch() == 1;
  const bool wants_cluster = problem.hidden > 256 && !(is_single && problem.hidden > 768);
  const int unit_tiles = shape.kernel.shape(0);
  const int64_t units = problem.gates() > 1 ? unit_tiles : is_single ? std::abs(unit_tiles - 2) : -unit_tiles;
  const int64_t passes = ceil_div(problem.max_batch(), shape.batch_per_pass());
  return std::make_tuple(passes * shape.tiles, wants_cluster ? -shape.cluster : shape.cluster, units,
                         ceil_div(problem.max_batch(), shape.replicas));
}

bool carries_h(const RnnProblem& problem, KernelId kernel) {
  return problem.mode == PRNN_LSTM && row_of(kernel->engine).carries_h;
}

}  // namespace

bool mma_shape_for(const GpuRow& row, const RnnProblem& problem, KernelId kernel, int replicas, ResidentShape* shape) {
  const bool backward = kernel->pass == Pass::kBackward, is_float32 = problem.type == PRNN_DATA_FLOAT;
  const int unit_tiles = kernel.shape(0), cluster = backward ? kernel.shape(1) : 1;
  const int64_t gates = problem.gates(), padded = padded_hidden(problem);
  *shape = split_units(padded, unit_tiles * kTileRows, cluster, replicas);
  shape->kernel = kernel;
  if (shape->blocks > resident_blocks(row, cluster)) return false;
  const int row_tiles = static_cast<int>(unit_tiles * cluster * (backward ? 1 : gates));
  const int64_t block_k_tiles = padded / k_tile_elements(is_float32) * (backward ? gates : 1);
  if (block_k_tiles % cluster != 0) return false;
  const int64_t k_tiles = ceil_div(block_k_tiles / cluster, kResidentWarps);  // of a warp

  const int64_t fragment = 512 * kResidentWarps;  // one row tile x one k-tile of every warp
  const int64_t in_registers = std::min<int64_t>(k_tiles, register_k_tiles(row_tiles));
  const int64_t in_shared = k_tiles - in_registers;
  // Room in shared memory is for an even number of k-tiles.
  const int64_t in_shared_rounded = std::max<int64_t>(ceil_div(k_tiles, 2) * 2 - register_k_tiles(row_tiles), 0);
  const int64_t weights = in_shared_rounded * row_tiles * fragment;
  const int64_t tile_sums = int64_t{4} * kTileRows * kTileColumns;
  const bool gated = gates > 1;
  const int64_t wanted = ceil_div(ceil_div(problem.max_batch(), replicas), kTileColumns);
  const int64_t wave = wanted == 1 ? 1 : wave_tiles(row_tiles, lane_rounds(gated, unit_tiles));
  const int64_t sums = 2 * kResidentWarps * wave * (row_tiles * tile_sums + (backward ? 4 : 4 * row_tiles));
  const int64_t partial = cluster > 1 ? 2 * wave * row_tiles * tile_sums : 0;
  // Static: what a tile carries from step to step, for each unit and sequence; forward, the biases.
  const int64_t biases = backward ? 0 : int64_t{4} * 32 * lane_rounds(gated, unit_tiles);
  const int64_t tile_states =
      int64_t{4} * std::max<int64_t>(problem.cell_states(), 1) * kTileColumns * unit_tiles * kTileRows;
  const int64_t carried_h =
      carries_h(problem, kernel) ? (wanted == 1 ? 1 : kMaxTiles) * (backward ? 1 : 2) * tile_states : 0;
  const int64_t carried = biases + carried_h + (gated || !backward ? kMaxTiles * tile_states : 512);
  const int64_t bias_sums = backward ? int64_t{4} * kResidentWarps * 32 * (gated ? unit_tiles : 1) : 0;  // a tile
  const int64_t fixed = weights + sums + partial + 256;
  if (fixed + carried + bias_sums > row.shared_bytes) return false;
  const int64_t room = backward ? (row.shared_bytes - fixed - carried) / bias_sums : kMaxTiles;
  const int64_t passes = ceil_div(wanted, std::min<int64_t>(room, kMaxTiles));
  shape->tiles = static_cast<int>(ceil_div(wanted, passes));
  shape->shared_bytes = fixed + bias_sums * shape->tiles;
  set_weights(in_registers * row_tiles * fragment, in_shared * row_tiles * fragment, shape);
  const int64_t states = is_float32 ? 0 : problem.hidden * ceil_div(problem.max_batch(), replicas);
  shape->poll_delay_cycles = poll_delay(row, *shape, kernel->pass, states);
  return true;
}

bool choose_mma_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, int recurrences, ResidentShape* best) {
  *best = ResidentShape();
  any_kernel(row, problem, mma_engine(problem, pass), pass, [&](KernelId kernel) {
    keep_best_replicas(
        row, problem, recurrences,
        [&](int replicas, ResidentShape* shape) { return mma_shape_for(row, problem, kernel, replicas, shape); },
        [&](const ResidentShape& shape) { return rank_of(problem, shape); }, best);
    return false;
  });
  return best->kernel.exists();
}

bool choose_mma_large_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, int recurrences,
                            ResidentShape* best) {
  if (recurrences > 1) return false;
  const Engine engine = first_serving({Engine::kMmaLarge, Engine::kMmaLargeExtras}, pass, problem.needs());
  return any_kernel(row, problem, engine, pass, [&](KernelId kernel) {
    const bool backward = pass == Pass::kBackward, is_float32 = problem.type == PRNN_DATA_FLOAT;
    const int64_t padded = padded_hidden(problem), units = large_units(problem.mode, is_float32),
                  rows = units * (backward ? 1 : problem.gates());
    const int64_t k_tiles = padded / k_tile_elements(is_float32) * (backward ? problem.gates() : 1);
    *best = split_units(padded, units, 1, 1);
    best->kernel = kernel;
    best->tiles = 1;
    if (best->blocks > resident_blocks(row, 1)) return false;

    // See MmaLargeProduct. `split`: the row tiles of the k-tile of which only some are in registers.
    const int64_t fragment = 512, whole = rows / kTileRows, in_registers = large_register_tiles(is_float32);
    const int64_t split = in_registers % whole > 0 ? whole - in_registers % whole : 0;
    const int64_t first_shared = kResidentWarps * ceil_div(in_registers, whole);
    const int64_t weights = kResidentWarps * split * fragment +
                            std::max<int64_t>(k_tiles - first_shared, 0) * whole * fragment +
                            k_tiles * (rows % kTileRows) * fragment / kTileRows;
    const int64_t sums = int64_t{4} * kResidentWarps * rows * kLargeSumColumns;
    // Static: what a tile carries from step to step; biases of what a lane finishes or their sums; inputs that wait.
    const int64_t rounds = large_rounds(problem.mode, is_float32);
    const int64_t states = std::max<int64_t>(problem.cell_states(), 1) + (carries_h(problem, kernel) ? 1 : 0);
    const int64_t carried = kResidentWarps * units * states;
    const int64_t own = int64_t{4} * (carried + (backward ? kResidentWarps : 1) * rounds * 32) +
                        (is_float32 ? 0 : int64_t{backward ? 4 : 2} * kResidentThreads * rounds) + 64;
    best->shared_bytes = weights + sums;
    if (best->shared_bytes + own > row.shared_bytes) return false;
    set_weights(in_registers * fragment * kResidentWarps, weights, best);
    best->poll_delay_cycles = poll_delay(row, *best, pass, 0);
    return true;
  });
}

}  // namespace prnn
