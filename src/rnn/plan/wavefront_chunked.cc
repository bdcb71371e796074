#include "rnn/plan/wavefront_chunked.h"

#include "rnn/plan/wgmma.h"

namespace prnn {
namespace {

// Where it was measured to be faster than the other ways to run a stack, on an H100 and an H200.
constexpr int64_t kSmallest = 544, kLargest = kChunkedKTiles * kResidentWarps * k_tile_elements(false);
constexpr int64_t kLeastLayers = 3;  // of the stack, and that there is room for

}  // namespace

int64_t chunked_exchange_bytes(const RnnProblem& problem, Pass pass) {
  const int64_t row = (pass == Pass::kBackward ? problem.gates() : 1) * problem.hidden;
  return problem.steps() * problem.max_batch() * row * type_bytes(problem.type);
}

int64_t chunked_products_bytes(const RnnProblem& problem, Pass pass) {
  const int64_t row = (pass == Pass::kForward ? problem.gates() : 1) * problem.hidden;
  return kChunkedRows * row * type_bytes(problem.type);
}

int choose_chunked_wavefront(const GpuRow& row, const RnnProblem& problem, Pass pass, ResidentShape* shape) {
  const int64_t hidden = problem.hidden, batch = problem.max_batch();
  if (hidden < kSmallest || hidden > kLargest || hidden % kWgmmaChunk != 0) return 1;
  if (batch > kTileColumns || problem.steps() < kChunkedLeastSteps || problem.layers < kLeastLayers) return 1;
  const int gates = static_cast<int>(problem.gates());
  const bool half_tile = batch <= kChunkedHalfTile;
  int64_t most = 1;
  any_kernel(row, problem, Engine::kWavefrontChunked, pass, [&](KernelId kernel) {
    const int unit_tiles = kernel.shape(0), units = unit_tiles * kTileRows;
    const int64_t blocks = ceil_div(hidden, units);
    const int64_t layers = std::min({problem.layers, resident_blocks(row, 1) / blocks, int64_t{kWavefrontLayers}});
    const int operands = chunked_operands(gates, unit_tiles), in_registers = std::min(operands, kChunkedRegisters);
    const int64_t shared_weights = int64_t{operands - in_registers} * 16 * kResidentThreads;
    const int64_t shared_bytes = chunked_biases_at(gates, unit_tiles, half_tile) + units * 16 + shared_weights;
    if (layers < kLeastLayers || shared_bytes > row.shared_bytes) return false;
    // The fewest launches, and the fewest units a block.
    if (most > 1 && ceil_div(problem.layers, layers) >= ceil_div(problem.layers, most)) return false;
    most = layers;
    *shape = ResidentShape();
    shape->kernel = kernel;
    shape->units = units;
    shape->cluster = shape->replicas = shape->tiles = 1;
    shape->blocks = static_cast<int>(blocks);
    shape->register_bytes = int64_t{in_registers} * 16 * kResidentThreads * blocks;
    shape->shared_weight_bytes = shared_weights * blocks;
    shape->shared_bytes = shared_bytes;
    const auto& delays = row.delays->wavefront_chunked;
    shape->poll_delay_cycles = half_tile ? delays.half_tile : delays.tile;
    return false;
  });
  return static_cast<int>(most);
}

}  // namespace prnn
