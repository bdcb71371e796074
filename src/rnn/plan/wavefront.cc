#include "rnn/plan/wavefront.h"

#include <algorithm>
#include <tuple>

#include "rnn/plan/plan.h"
#include "rnn/plan/wavefront_chunked.h"
#include "rnn/plan/wavefront_wgmma.h"

namespace prnn {
namespace {

// Sequences beyond which layers one after the other are as fast: each has the whole GPU, clusters where they hold it,
// and the wgmma instructions for its input products. Measured on an H200. Backward, they also keep less memory: layers
// that run together cannot leave their gradients where each other's gates are.
int64_t most_sequences(const RnnProblem& problem) {
  if (problem.hidden <= 256) return 64;
  if (problem.hidden <= 512) return 2 * kTileColumns;
  return problem.gates() == 1 ? kWavefrontSequences : kTileColumns;
}

// Whether a kernel is `tight`, as wavefront_register_fragments() and has_one_tile() call it.
bool is_tight(const RnnProblem& problem, bool backward) {
  return backward && (problem.batch.front() != problem.batch.back() || problem.dropout.probability > 0);
}

int64_t register_fragments(const RnnProblem& problem, const WavefrontKernel& kernel, bool backward, int64_t row_tiles) {
  return wavefront_register_fragments(kernel.k_tiles, static_cast<int>(row_tiles), is_tight(problem, backward));
}

// Dynamic shared memory of a block; what is static comes on top.
int64_t shared_bytes(const RnnProblem& problem, const WavefrontKernel& kernel, bool backward, int tiles) {
  const int64_t gates = problem.gates(), gated = gates > 1;
  const int64_t row_tiles = kernel.unit_tiles * (backward ? kernel.cluster : gates);
  const int64_t sum_row_tiles = backward || !gated ? row_tiles : kernel.unit_tiles * 4;
  const int64_t fragments = 2 * kernel.k_tiles * row_tiles;
  const int64_t in_registers = register_fragments(problem, kernel, backward, row_tiles);
  const int64_t weights = std::max<int64_t>(fragments - in_registers, 0) * 512 * kResidentWarps;
  const int64_t tile_sums = int64_t{4} * kTileRows * kTileColumns, wave = tiles == 1 ? 1 : kWavefrontWave;
  const int64_t sums = 2 * wave * kResidentWarps * sum_row_tiles * (tile_sums + 4);
  const int64_t partial = kernel.cluster > 1 ? 2 * wave * row_tiles * tile_sums : 0;
  const bool parks = !backward && has_pairs(problem.mode, kernel, problem.max_batch());
  const int64_t pairs = parks ? int64_t{4} * kPairFloats : 0;
  return weights + sums + partial + pairs + 256;
}

int64_t static_bytes(const WavefrontKernel& kernel, int tiles) {
  return int64_t{4} * (tiles == 1 ? 1 : kMaxTiles) * kTileColumns * kernel.unit_tiles * kTileRows + 64;
}

int choose(const GpuRow& row, const RnnProblem& problem, Pass pass, ResidentShape* best) {
  const bool backward = pass == Pass::kBackward;
  int best_layers = 1;
  // The most important first: launches of the whole stack, tiles that a replica works through, units of a block.
  std::tuple<int64_t, int64_t, int> best_rank;
  any_kernel(row, problem, Engine::kWavefrontMma, pass, [&](KernelId id) {
    const WavefrontKernel kernel{id.shape(0), id.shape(1), id.shape(2)};
    const int64_t block_k_tiles =
        problem.hidden / k_tile_elements(false) * (backward ? problem.gates() : 1) / kernel.cluster;
    const int64_t k_tiles = ceil_div(block_k_tiles, kResidentWarps);
    if (k_tiles > kernel.k_tiles || k_tiles * 2 <= kernel.k_tiles) return false;  // what is not there counts as zeros
    const int64_t units = int64_t{kTileRows} * kernel.unit_tiles * kernel.cluster;
    const int64_t blocks = ceil_div(problem.hidden, units) * kernel.cluster,
                  room = resident_blocks(row, kernel.cluster);
    const int64_t layers = std::min({problem.layers, room / blocks, int64_t{kWavefrontLayers}});
    if (layers < 2) return false;
    const int64_t batch = problem.max_batch();
    const int64_t most_replicas = std::min(room / (blocks * layers), ceil_div(batch, kTileColumns));
    const int64_t tiles = ceil_div(ceil_div(batch, most_replicas), kTileColumns);
    if (tiles > (has_one_tile(problem.mode, kernel, is_tight(problem, backward)) ? 1 : kMaxTiles)) return false;
    const int64_t bytes = shared_bytes(problem, kernel, backward, static_cast<int>(tiles));
    if (bytes + static_bytes(kernel, static_cast<int>(tiles)) > row.shared_bytes) return false;
    const auto rank = std::make_tuple(ceil_div(problem.layers, layers), tiles, kernel.unit_tiles);
    if (best_layers > 1 && rank >= best_rank) return false;
    best_rank = rank;
    best_layers = static_cast<int>(layers);
    *best = split_units(problem.hidden, kernel.unit_tiles * kTileRows, kernel.cluster,
                        ceil_div(batch, tiles * kTileColumns));
    best->kernel = id;
    best->tiles = static_cast<int>(tiles);
    best->shared_bytes = bytes;
    const int64_t row_tiles = kernel.unit_tiles * (backward ? kernel.cluster : problem.gates()),
                  fragments = 2 * kernel.k_tiles * row_tiles,
                  in_registers = std::min<int64_t>(fragments, register_fragments(problem, kernel, backward, row_tiles));
    set_weights(in_registers * 512 * kResidentWarps, (fragments - in_registers) * 512 * kResidentWarps, best);
    const auto& delays = row.delays->wavefront_mma;
    best->poll_delay_cycles = tiles > 1            ? delays.several_tiles
                              : backward           ? delays.backward
                              : kernel.k_tiles > 2 ? delays.forward_long_k
                                                   : delays.forward;
    return false;
  });
  return best_layers;
}

LayersTogether choose_layers(const GpuRow& row, const RnnProblem& problem, Pass pass) {
  LayersTogether chosen;
  const auto alone = [](const std::string& reason) { return LayersTogether{Schedule::kOneByOne, 1, {}, reason}; };
  // By chunks, kernels multiply with products of a projection's matrix, with itself where it has dropout behind it.
  // Kernels that keep it apart (keeps_projection_apart()) are of layers of which not even one has room here.
  chosen.layers = choose_chunked_wavefront(row, problem, pass, &chosen.shape);
  if (chosen.exist()) {
    chosen.layers = static_cast<int>(layers_of_launch(chosen.shape, chosen.layers, problem.layers));
    return chosen;
  }
  if (!serves(Engine::kWavefrontMma, pass, problem.needs())) {
    std::string of_dropout;
    if (chunked_drops_projected(problem)) {
      of_dropout = "; with dropout P is a multiple of " + std::to_string(kChunkedColumnsK) + ", " +
                   std::to_string(2 * kChunkedColumnsK) + " or more";
    }
    return alone("layers with a projection run together by chunks alone, where that is faster: " +
                 where_chunks_are_faster() + of_dropout);
  }
  const std::string batch = std::to_string(problem.max_batch()), hidden = std::to_string(problem.hidden);
  if (problem.max_batch() > kWavefrontSequences) {
    return alone("layers run together for up to " + std::to_string(kWavefrontSequences) + " sequences; N is " + batch);
  }
  if (pass == Pass::kForward) chosen.layers = choose_wgmma_wavefront(row, problem, &chosen.shape);
  if (chosen.exist()) return chosen;
  const int64_t most = most_sequences(problem);
  if (problem.max_batch() > most) {
    return alone("layers of hidden size " + hidden + " run together for up to " + std::to_string(most) +
                 " sequences; N is " + batch);
  }
  chosen.layers = choose(row, problem, pass, &chosen.shape);
  return chosen.exist() ? chosen : alone("two layers of hidden size " + hidden + " have no room at once");
}

}  // namespace

std::string why_not_together(const RnnProblem& problem, Schedule schedule, Pass pass) {
  if (const char* const reason = why_not(schedule, pass, problem.needs())) return reason;
  if (problem.type == PRNN_DATA_FLOAT) return "layers run together in 16 bits alone";
  if (problem.hidden % k_tile_elements(false) != 0) {
    return "hidden size " + std::to_string(problem.hidden) + " is not a multiple of " +
           std::to_string(k_tile_elements(false));
  }
  return "";
}

int64_t layers_of_launch(const ResidentShape& shape, int64_t most, int64_t left) {
  // By chunks no layer runs alone, and launches of about as many layers take the least time together.
  return is_chunked(shape) ? ceil_div(left, ceil_div(left, most)) : std::min(most, left);
}

WavefrontPlan plan_wavefront(const GpuRow& row, const RnnProblem& problem) {
  WavefrontPlan plan;
  if (problem.layers == 1) return plan;
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    plan[pass].reason = why_not_together(problem, Schedule::kWavefront, pass);
    if (plan[pass].reason.empty()) plan[pass] = choose_layers(row, problem, pass);
    if (plan[pass].exist()) plan[pass].schedule = Schedule::kWavefront;
  }
  return plan;
}

}  // namespace prnn
