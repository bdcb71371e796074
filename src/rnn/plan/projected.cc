#include "rnn/plan/projected.h"

#include <algorithm>

#include "rnn/plan/plan.h"

namespace prnn {
namespace {

// Bytes of shared memory of a block: `fixed`, and of each tile of sequences.
struct SharedBytes {
  int64_t fixed, of_tile, weights;
};

SharedBytes shared_bytes(const RnnProblem& problem, bool backward, int unit_tiles) {
  const bool is_float32 = problem.type == PRNN_DATA_FLOAT;
  const int64_t fragment = 512 * kResidentWarps;  // one row tile x one k-tile of every warp
  const int64_t padded = padded_projection(problem), row_tiles = unit_tiles * (backward ? 1 : 4);
  const int64_t k_tiles = ceil_div(padded / k_tile_elements(is_float32), kResidentWarps),
                pairs = ceil_div(padded / (2 * kTileRows), kResidentWarps);  // of a warp
  const int64_t own = projected_own_k_tiles(backward, unit_tiles, is_float32);
  const int64_t shared_k_tiles =
                    std::max<int64_t>(k_tiles - projected_register_k_tiles(backward, unit_tiles, is_float32), 0),
                shared_pairs = std::max<int64_t>(pairs - projected_register_pairs(backward, unit_tiles, is_float32), 0);
  SharedBytes bytes{};
  bytes.weights = (shared_k_tiles * row_tiles + shared_pairs * 2 * own) * fragment;
  const int64_t sums = row_tiles * kTileRows * kTileColumns + (backward ? 1 : row_tiles),
                added_up = backward ? kTileRows * kTileColumns : 0;  // floats of a warp
  bytes.fixed = bytes.weights + 4 * kResidentWarps * (sums + added_up) + own * 512 +
                (backward ? 0 : int64_t{4} * 32 * unit_tiles);  // static: the biases
  bytes.of_tile = int64_t{4} * kResidentWarps * unit_tiles * (kTileRows + (backward ? 32 : 0));
  return bytes;
}

int64_t weight_bytes(const RnnProblem& problem, bool backward, int unit_tiles) {
  const bool is_float32 = problem.type == PRNN_DATA_FLOAT;
  const int64_t padded = padded_projection(problem), fragment = 512;
  const int64_t rows = padded / k_tile_elements(is_float32) * unit_tiles * (backward ? 1 : 4),
                columns = padded / kTileRows * projected_own_k_tiles(backward, unit_tiles, is_float32);
  return (rows + columns) * fragment;
}

}  // namespace

int64_t padded_projection(const RnnProblem& problem) {
  // At least 16 rows, and whole pairs of row tiles, are in a k-tile.
  const int64_t unit = k_tile_elements(problem.type == PRNN_DATA_FLOAT);
  return ceil_div(problem.projection, unit) * unit;
}

bool choose_projected_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, ResidentShape* best) {
  if (problem.projection == 0) return false;
  return any_kernel(row, problem, Engine::kProjected, pass, [&](KernelId kernel) {
    const bool backward = pass == Pass::kBackward;
    const int unit_tiles = kernel.shape(0);
    *best = split_units(padded_hidden(problem), unit_tiles * kTileRows, 1, 1);
    best->kernel = kernel;
    if (best->blocks > std::min(resident_blocks(row, 1), kMostPartials)) return false;
    const SharedBytes bytes = shared_bytes(problem, backward, unit_tiles);
    const int64_t room = (row.shared_bytes - bytes.fixed) / bytes.of_tile;
    if (bytes.fixed + bytes.of_tile > row.shared_bytes) return false;
    const int64_t wanted = ceil_div(problem.max_batch(), kTileColumns),
                  passes = ceil_div(wanted, std::min<int64_t>(room, kProjectedTiles));
    best->tiles = static_cast<int>(ceil_div(wanted, passes));
    best->shared_bytes = bytes.fixed + bytes.of_tile * best->tiles;
    best->shared_weight_bytes = bytes.weights * best->blocks;
    best->register_bytes = weight_bytes(problem, backward, unit_tiles) * best->blocks - best->shared_weight_bytes;
    best->poll_delay_cycles = 300;
    return true;
  });
}

}  // namespace prnn
