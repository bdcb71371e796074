#include "rnn/plan/wavefront.h"

#include <algorithm>
#include <tuple>

#include "rnn/plan/wavefront_wgmma.h"

namespace prnn {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Sequences beyond which layers one after the other are as fast: each has the whole GPU, and the wide matrix
// instructions for its input products. Measured on an H200.
int64_t most_sequences(const RnnProblem& problem) {
  if (problem.gates() == 1) return 64;
  return problem.hidden > 512 ? 8 : std::min<int64_t>(64, 16384 / problem.hidden);
}

// Dynamic shared memory of a block; what is static comes on top.
int64_t shared_bytes(const RnnProblem& problem, const WavefrontKernel& kernel, bool backward, int tiles) {
  const int64_t gates = problem.gates(), gated = gates > 1;
  const int64_t row_tiles = kernel.unit_tiles * (backward ? kernel.cluster : gates);
  const int64_t sum_row_tiles = backward || !gated ? row_tiles : kernel.unit_tiles * 4;
  const int64_t fragments = 2 * kernel.k_tiles * row_tiles;
  const int64_t in_registers = wavefront_register_fragments(kernel.k_tiles);
  const int64_t weights = std::max<int64_t>(fragments - in_registers, 0) * 512 * kResidentWarps;
  const int64_t tile_sums = int64_t{4} * kTileRows * kTileColumns, wave = tiles == 1 ? 1 : kWavefrontWave;
  const int64_t sums = 2 * wave * kResidentWarps * sum_row_tiles * (tile_sums + 4);
  const int64_t partial = kernel.cluster > 1 ? 2 * wave * row_tiles * tile_sums : 0;
  return weights + sums + partial + 256;
}

int64_t static_bytes(const WavefrontKernel& kernel, int tiles) {
  return int64_t{4} * (tiles == 1 ? 1 : kMaxTiles) * kTileColumns * kernel.unit_tiles * kTileRows + 64;
}

// What makes a choice better, the most important first: launches of the whole stack, tiles that a replica works
// through, units of a block.
struct Rank {
  int64_t launches, tiles, units;
  bool operator<(const Rank& other) const {
    return std::tie(launches, tiles, units) < std::tie(other.launches, other.tiles, other.units);
  }
};

template <size_t COUNT>
int choose(const GpuRow& row, const RnnProblem& problem, bool backward, const WavefrontKernel (&kernels)[COUNT],
           ResidentShape* best) {
  int best_layers = 1;
  Rank best_rank{};
  for (const WavefrontKernel& kernel : kernels) {
    const int64_t total_k_tiles =
        problem.hidden / k_tile_elements(false) * (backward ? problem.gates() : 1) / kernel.cluster;
    const int64_t k_tiles = ceil_div(total_k_tiles, kResidentWarps);
    if (k_tiles > kernel.k_tiles || k_tiles * 2 <= kernel.k_tiles) continue;  // what is not there counts as zeros
    const int64_t units = int64_t{kTileRows} * kernel.unit_tiles * kernel.cluster;
    const int64_t blocks = ceil_div(problem.hidden, units) * kernel.cluster,
                  room = resident_blocks(row, kernel.cluster);
    const int64_t layers = std::min({problem.layers, room / blocks, int64_t{kWavefrontLayers}});
    if (layers < 2) continue;
    const int64_t batch = problem.max_batch();
    const int64_t most_replicas = std::min(room / (blocks * layers), ceil_div(batch, kTileColumns));
    const int64_t tiles = ceil_div(ceil_div(batch, most_replicas), kTileColumns);
    if (tiles > (has_one_tile(problem.mode, kernel) ? 1 : kMaxTiles)) continue;
    const int64_t bytes = shared_bytes(problem, kernel, backward, static_cast<int>(tiles));
    if (bytes + static_bytes(kernel, static_cast<int>(tiles)) > row.shared_bytes) continue;
    const Rank rank{ceil_div(problem.layers, layers), tiles, kernel.unit_tiles};
    if (best_layers > 1 && !(rank < best_rank)) continue;
    best_rank = rank;
    best_layers = static_cast<int>(layers);
    ResidentShape shape;
    shape.unit_tiles = kernel.unit_tiles;
    shape.cluster = kernel.cluster;
    shape.replicas = static_cast<int>(ceil_div(batch, tiles * kTileColumns));
    shape.blocks = static_cast<int>(blocks);
    shape.row_tiles = static_cast<int>(kernel.unit_tiles * (backward ? kernel.cluster : problem.gates()));
    shape.k_tiles = kernel.k_tiles;
    shape.tiles = static_cast<int>(tiles);
    shape.shared_bytes = bytes;
    shape.poll_delay_cycles = tiles > 1 ? 300 : backward ? 900 : kernel.k_tiles > 2 ? 700 : 500;  // measured on an H200
    *best = shape;
  }
  return best_layers;
}

template <prnnRNNMode_t MODE>
WavefrontPlan plan_of(const GpuRow& row, const RnnProblem& problem) {
  WavefrontPlan plan;
  plan.forward_layers = choose_wgmma_wavefront(row, problem, false, &plan.forward);
  plan.backward_layers = choose_wgmma_wavefront(row, problem, true, &plan.backward);
  if (problem.max_batch() > most_sequences(problem)) return plan;
  if (plan.forward_layers == 1) {
    plan.forward_layers = choose(row, problem, false, WavefrontKernels<MODE>::forward, &plan.forward);
  }
  if (plan.backward_layers == 1) {
    plan.backward_layers = choose(row, problem, true, WavefrontKernels<MODE>::backward, &plan.backward);
  }
  return plan;
}

}  // namespace

bool may_run_together(const RnnProblem& problem) {
  const bool has_own_plan = problem.forward_plan.unitsPerBlock > 0 || problem.backward_plan.unitsPerBlock > 0;
  return problem.layers > 1 && problem.directions == 1 && problem.projection == 0 && !has_own_plan &&
         (problem.type == PRNN_DATA_HALF || problem.type == PRNN_DATA_BFLOAT16) &&
         problem.hidden % k_tile_elements(false) == 0 && problem.batch.front() == problem.batch.back() &&
         problem.max_batch() <= 64;
}

WavefrontPlan plan_wavefront(const GpuRow& row, const RnnProblem& problem) {
  if (!may_run_together(problem)) return {};
  switch (problem.mode) {
    case PRNN_LSTM: return plan_of<PRNN_LSTM>(row, problem);
    case PRNN_GRU: return plan_of<PRNN_GRU>(row, problem);
    default: return plan_of<PRNN_RNN_TANH>(row, problem);
  }
}

}  // namespace prnn
