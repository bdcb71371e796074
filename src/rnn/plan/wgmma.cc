#include "rnn/plan/wgmma.h"

#include <algorithm>
#include <tuple>

#include "rnn/plan/cluster.h"
#include "rnn/plan/plan.h"

namespace prnn {
namespace {

// The kernel of the fewest columns, `fewest` or more, that serves `sequences` of a replica in as few passes as one of
// 64 columns does, and for which fits(columns), which sets the rest of the shape.
template <class Fits>
bool find_columns(const GpuRow& row, const RnnProblem& problem, Engine engine, Pass pass, int fewest, int64_t sequences,
                  ResidentShape* shape, const Fits& fits) {
  for (int columns = 64; columns >= fewest; columns /= 2) {
    const int64_t needed = ceil_div(sequences, ceil_div(sequences, columns));  // of a pass, passes being even
    if (columns > fewest && needed <= columns / 2) continue;
    const auto is_kernel = [&](KernelId kernel) {
      if (kernel.shape(0) != columns || !fits(columns)) return false;
      shape->kernel = kernel;
      shape->tiles = static_cast<int>(ceil_div(needed, kTileColumns));
      return true;
    };
    if (any_kernel(row, problem, engine, pass, is_kernel)) return true;
  }
  return false;
}

// Dynamic shared memory of a block, with what the barriers and the alignment to 1024 bytes take, fits.
bool fits_block(const GpuRow& row, int64_t bytes) { return bytes + 1024 <= row.shared_bytes; }

// Whether a layer that wgmma takes is faster on it. Staging the states in shared memory costs a small layer more than
// the wider instructions save. Measured on an H200.
bool wants_wgmma(const RnnProblem& problem, Pass pass, int recurrences) {
  const int64_t columns = problem.max_batch() * recurrences, states = problem.hidden * columns;
  if (pass == Pass::kBackward) return problem.hidden > 256 || states >= 4096;
  return states >= (columns >= 32 ? 16384 : 32768);
}

// Whether split-K is faster: for layers that are bound by what a block reads. Measured on an H200.
bool wants_split_k(const RnnProblem& problem, int recurrences) {
  return problem.max_batch() * recurrences >= 32 && problem.hidden >= 1024;
}

// Whether multicast is faster: for layers of many states. Measured on an H200. The other wgmma kernels have no resets:
// there it is ahead of what clusters take from fewer states on, and of mma, which is all that there is in tf32, still
// earlier.
bool wants_multicast(const RnnProblem& problem, Pass pass, int recurrences) {
  const int64_t states = problem.max_batch() * recurrences * problem.hidden;
  if (problem.type == PRNN_DATA_FLOAT) return states > 32 * 1024;
  if (!serves(Engine::kWgmma, pass, problem.needs())) {
    return problem.hidden > cluster_hidden(problem.gates() > 1) ? states > 32 * 1024 : states >= 64 * 1024;
  }
  if (pass == Pass::kForward) return states > 64 * 1024;
  return states > (wants_split_k(problem, recurrences) ? 96 : 60) * 1024;
}

bool has_multicast_size(const RnnProblem& problem) {
  constexpr int kSetUnits = kMulticastUnits * kMulticastParts;
  static_assert(kSetUnits % (2 * multicast_chunk(2)) == 0, "a set of blocks has whole pairs of chunks");
  const int element = static_cast<int>(type_bytes(problem.type));
  return problem.hidden % kSetUnits == 0 && problem.hidden >= kMulticastMinHidden &&
         problem.hidden <= multicast_max_hidden(element);
}

// Chunks of H.
int multicast_unit_chunks(const RnnProblem& problem) {
  return static_cast<int>(problem.hidden) / multicast_chunk(static_cast<int>(type_bytes(problem.type)));
}

using ShapeFor = bool (*)(const GpuRow&, const RnnProblem&, Pass, int, ResidentShape*);

bool choose_replicas(const GpuRow& row, const RnnProblem& problem, Pass pass, int recurrences, ShapeFor shape_for,
                     ResidentShape* best) {
  const auto rank = [&](const ResidentShape& shape) {
    const int64_t passes = ceil_div(problem.max_batch(), shape.batch_per_pass());
    return std::make_tuple(passes * shape.kernel.shape(0), ceil_div(problem.max_batch(), shape.replicas));
  };
  *best = ResidentShape();
  keep_best_replicas(
      row, problem, recurrences,
      [&](int replicas, ResidentShape* shape) { return shape_for(row, problem, pass, replicas, shape); }, rank, best);
  return best->kernel.exists();
}

}  // namespace

bool wgmma_shape_for(const GpuRow& row, const RnnProblem& problem, Pass pass, int replicas, ResidentShape* shape) {
  const bool backward = pass == Pass::kBackward;
  const int64_t padded = padded_hidden(problem);
  const int cluster = backward ? kWgmmaCluster : 1;
  *shape = split_units(padded, kWgmmaUnits, cluster, replicas);
  if (shape->blocks > resident_blocks(row, cluster)) return false;
  const int64_t share = padded * (backward ? problem.gates() : 1) / cluster;
  const int64_t chunks = ceil_div(share, 2 * kWgmmaChunk);  // of a warpgroup
  const int64_t sequences = ceil_div(problem.max_batch(), replicas);
  return find_columns(row, problem, Engine::kWgmma, pass, 8, sequences, shape, [&](int columns) {
    const int64_t in_registers = std::min<int64_t>(chunks, wgmma_register_chunks(columns));
    const int64_t in_shared = chunks - in_registers;
    const int64_t ring = int64_t{4} * wgmma_batch(columns) * columns * kWgmmaChunk * 2;
    // Backward, twice: sums for the units, of each block or, of up to 16 columns, of each warpgroup; and otherwise what
    // the warpgroups give each other.
    const int64_t sums = backward ? int64_t{2} * 2 * 4 * 64 * columns : 0;
    shape->shared_bytes = ring + sums + 2 * in_shared * kWgmmaTileBytes;
    set_weights(2 * in_registers * kWgmmaTileBytes, 2 * in_shared * kWgmmaTileBytes, shape);
    const auto& delays = row.delays->wgmma;
    shape->poll_delay_cycles = backward
                                   ? (problem.hidden * sequences < 6144 ? delays.backward_few_states : delays.backward)
                               : shape->blocks < 48 ? delays.forward_few_blocks
                               : columns <= 16      ? delays.forward_narrow
                                                    : delays.forward;
    return fits_block(row, shape->shared_bytes);
  });
}

int split_k_blocks(const RnnProblem& problem, Pass pass) {
  return kSplitKCluster * static_cast<int>(pass == Pass::kBackward ? problem.gates() : 1);
}

int64_t wgmma_sums_bytes(const RnnProblem& problem, const ResidentShape& backward, int64_t replicas,
                         int64_t recurrences) {
  if (backward.kernel.is(Engine::kWgmmaMulticast)) {
    const int columns = backward.kernel.shape(0), groups = backward.kernel.shape(1);
    const int of_gate = multicast_unit_chunks(problem), gates = static_cast<int>(problem.gates());
    return replicas * recurrences *
           (multicast_exchange_bytes(of_gate, gates * of_gate, columns, groups) +
            multicast_sums_bytes(backward.blocks, gates, columns, groups));
  }
  if (!backward.kernel.is(Engine::kWgmmaSplitK)) return 0;
  const int64_t blocks = int64_t{backward.blocks} * replicas * recurrences;
  return blocks * 2 * problem.gates() * backward.kernel.shape(0) * kWgmmaUnits * static_cast<int64_t>(sizeof(float));
}

bool split_k_shape_for(const GpuRow& row, const RnnProblem& problem, Pass pass, int replicas, ResidentShape* shape) {
  if (problem.hidden % 2 != 0) return false;
  const bool backward = pass == Pass::kBackward;
  const int64_t padded = padded_hidden(problem);
  const int together = split_k_blocks(problem, pass);
  *shape = split_units(padded, kWgmmaUnits, together, replicas);
  shape->cluster = kSplitKCluster;
  if (shape->blocks > resident_blocks(row, kSplitKCluster)) return false;
  const int64_t chunks = 2 * ceil_div(padded, 2 * kSplitKCluster * kWgmmaChunk);  // of a tile
  const int64_t in_registers = std::min<int64_t>(chunks, kSplitKRegisterChunks), in_shared = chunks - in_registers;
  const int64_t sequences = ceil_div(problem.max_batch(), replicas);
  return find_columns(row, problem, Engine::kWgmmaSplitK, pass, 16, sequences, shape, [&](int columns) {
    const int64_t ring = int64_t{kSplitKStages} * split_k_batch(columns) * columns * kWgmmaChunk * 2;
    const int64_t sums = int64_t{3} * 4 * 64 * columns, inputs = int64_t{2} * 8 * kWgmmaUnits * columns;
    shape->shared_bytes = ring + sums + inputs + 2 * in_shared * kWgmmaTileBytes;
    set_weights(2 * in_registers * kWgmmaTileBytes, 2 * in_shared * kWgmmaTileBytes, shape);
    const auto& delays = row.delays->split_k;
    shape->poll_delay_cycles = backward        ? delays.backward
                               : columns <= 16 ? delays.forward_narrow
                               : columns == 32 ? delays.forward
                                               : delays.forward_wide;
    return fits_block(row, shape->shared_bytes);
  });
}

int64_t multicast_exchange_bytes(const RnnProblem& problem, const ResidentShape& forward, int64_t replicas) {
  const int chunks = multicast_unit_chunks(problem);
  return replicas * multicast_exchange_bytes(chunks, chunks, forward.kernel.shape(0), forward.kernel.shape(1));
}

bool multicast_shape_for(const GpuRow& row, const RnnProblem& problem, Pass pass, int replicas, ResidentShape* shape) {
  const bool backward = pass == Pass::kBackward;
  const int element = static_cast<int>(type_bytes(problem.type));
  if (!has_multicast_size(problem)) return false;
  // A warpgroup has all of K forward, a part of it backward.
  const int of_gate = multicast_unit_chunks(problem),
            all = backward ? static_cast<int>(problem.gates()) * of_gate : of_gate;
  const int chunks = backward ? multicast_part_chunks(all) : all;
  const int in_shared = multicast_shared_chunks(element, backward, chunks);
  *shape = split_units(problem.hidden, kMulticastUnits, kMulticastCluster, replicas);
  if (shape->blocks > resident_blocks(row, kMulticastCluster)) return false;
  const int64_t sequences = ceil_div(problem.max_batch(), replicas),
                passes = ceil_div(sequences, int64_t{multicast_columns(element)});
  const int64_t needed = ceil_div(sequences, passes);
  bool found = false;
  any_kernel(row, problem, Engine::kWgmmaMulticast, pass, [&](KernelId kernel) {
    const int columns = kernel.shape(0), groups = kernel.shape(1);
    if (columns * groups < needed) return true;  // the table's order is from many columns to few
    const int of_column = backward ? multicast_backward_column(element, in_shared, columns, groups)
                                   : multicast_forward_column(element, groups);
    if (multicast_slots(in_shared, columns, of_column) < 2) return false;
    shape->kernel = kernel;
    shape->tiles = static_cast<int>(ceil_div(needed, kTileColumns));
    shape->shared_bytes = multicast_shared_bytes(in_shared, columns, of_column);
    set_weights(int64_t{2} * (chunks - in_shared) * kWgmmaTileBytes, int64_t{2} * in_shared * kWgmmaTileBytes, shape);
    found = true;
    return false;
  });
  return found && fits_block(row, shape->shared_bytes);
}

bool choose_split_k_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, int recurrences,
                          ResidentShape* best) {
  return choose_replicas(row, problem, pass, recurrences, split_k_shape_for, best);
}

bool runs_multicast(const GpuRow& row, const RnnProblem& problem) {
  const bool has_type = problem.type != PRNN_DATA_FLOAT || problem.tf32;
  return row.has_wgmma && has_type && problem.gates() > 1 && has_multicast_size(problem) &&
         wants_multicast(problem, Pass::kForward, static_cast<int>(problem.recurrences()));
}

bool choose_multicast_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, int recurrences,
                            ResidentShape* best) {
  return wants_multicast(problem, pass, recurrences) &&
         choose_replicas(row, problem, pass, recurrences, multicast_shape_for, best);
}

bool choose_wgmma_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, int recurrences, ResidentShape* best) {
  if (choose_multicast_shape(row, problem, pass, recurrences, best)) return true;
  if (wants_split_k(problem, recurrences) && choose_split_k_shape(row, problem, pass, recurrences, best)) return true;
  return wants_wgmma(problem, pass, recurrences) &&
         choose_replicas(row, problem, pass, recurrences, wgmma_shape_for, best);
}

}  // namespace prnn
