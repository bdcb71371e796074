#include "rnn/plan/wavefront_chunked.h"

#include "rnn/plan/chunked_steps.h"
#include "rnn/plan/plan.h"
#include "rnn/plan/wgmma.h"

namespace prnn {
namespace {

constexpr int64_t kSmallest = 544, kLargest = kChunkedKTiles * kResidentWarps * k_tile_elements(false);

int64_t layers_at_once(const GpuRow& row, const RnnProblem& problem, int64_t blocks, int cluster) {
  return std::min({problem.layers, resident_blocks(row, cluster) / blocks, int64_t{kWavefrontLayers}});
}

// A launch's layout but for its shared memory and poll delay; a thread keeps so many of its operands in registers, the
// others are in shared memory.
ResidentShape shape_of(int64_t hidden, KernelId kernel, int cluster, int operands, int in_registers) {
  constexpr int64_t kOperandBytes = int64_t{16} * kResidentThreads;
  ResidentShape shape = split_units(hidden, kernel.shape(0) * kTileRows, cluster, 1);
  shape.kernel = kernel;
  shape.tiles = 1;
  set_weights(in_registers * kOperandBytes, (operands - in_registers) * kOperandBytes, &shape);
  return shape;
}

int choose_forward(const GpuRow& row, const RnnProblem& problem, ResidentShape* shape) {
  const int gates = static_cast<int>(problem.gates());
  const bool half_tile = problem.max_batch() <= kChunkedHalfTile;
  int64_t most = 1;
  any_kernel(row, problem, Engine::kWavefrontChunked, Pass::kForward, [&](KernelId kernel) {
    const int unit_tiles = kernel.shape(0), units = unit_tiles * kTileRows;
    const int64_t blocks = ceil_div(problem.hidden, units);
    const int64_t layers = layers_at_once(row, problem, blocks, 1);
    const int operands = chunked_operands(gates, unit_tiles), in_registers = chunked_registers(gates, unit_tiles);
    const int64_t shared_weights = int64_t{operands - in_registers} * 16 * kResidentThreads;
    const int64_t shared_bytes = chunked_biases_at(gates, unit_tiles, half_tile) + units * 16 + shared_weights;
    if (layers < kChunkedLeastLayers || shared_bytes > row.shared_bytes) return false;
    if (chunked_drops_projected(problem) && problem.projection > kChunkedProjected * blocks) return false;
    // The fewest launches, and the fewest units a block.
    if (most > 1 && ceil_div(problem.layers, layers) >= ceil_div(problem.layers, most)) return false;
    most = layers;
    *shape = shape_of(problem.hidden, kernel, 1, operands, in_registers);
    shape->shared_bytes = shared_bytes;
    const auto& delays = row.delays->wavefront_chunked;
    shape->poll_delay_cycles = half_tile ? delays.half_tile : delays.tile;
    return false;
  });
  return static_cast<int>(most);
}

int choose_backward(const GpuRow& row, const RnnProblem& problem, ResidentShape* shape) {
  ResidentShape forward;
  if (choose_forward(row, problem, &forward) == 1) return 1;
  const int gates = static_cast<int>(problem.gates());
  int64_t most = 1;
  any_kernel(row, problem, Engine::kWavefrontChunked, Pass::kBackward, [&](KernelId kernel) {
    const int units = kernel.shape(0) * kTileRows, cluster = kernel.shape(1);
    const int columns = chunked_columns(problem.max_batch());
    const int64_t blocks = ceil_div(problem.hidden, int64_t{units} * cluster) * cluster;
    const int64_t layers = layers_at_once(row, problem, blocks, cluster);
    const int64_t shared_bytes = chunked_backward_shared_bytes(gates, columns);
    if (layers < kChunkedLeastLayers || shared_bytes > row.shared_bytes) return false;
    most = layers;
    *shape = shape_of(problem.hidden, kernel, cluster, chunked_backward_operands(gates),
                      chunked_backward_registers(columns));
    shape->shared_bytes = shared_bytes;
    const auto& delays = row.delays->wavefront_chunked;
    shape->poll_delay_cycles = columns == kChunkedHalfTile ? delays.backward_half_tile : delays.backward_tile;
    return true;
  });
  return static_cast<int>(most);
}

}  // namespace

int64_t chunked_exchange_bytes(const RnnProblem& problem, Pass pass) {
  const int64_t batch = problem.max_batch(), row = problem.hidden * type_bytes(problem.type);
  if (pass == Pass::kForward) return problem.steps() * batch * row;
  return chunked_ring_steps(batch) * problem.gates() * chunked_columns(batch) * row;
}

// Forward, no more rows than a chunk has are stored.
int64_t chunked_products_bytes(const RnnProblem& problem, Pass pass) {
  const int64_t row = problem.hidden * type_bytes(problem.type), batch = problem.max_batch();
  return pass == Pass::kForward ? chunked_steps(batch) * batch * problem.gates() * row : kChunkedRows * row;
}

bool chunked_drops_projected(const RnnProblem& problem) {
  return problem.training && problem.projection > 0 && problem.dropout.probability > 0;
}

std::string where_chunks_are_faster() {
  return "from " + std::to_string(kChunkedLeastLayers) + " layers on of " +
         std::to_string(ceil_div(kSmallest, kWgmmaChunk) * kWgmmaChunk) + " to " + std::to_string(kLargest) +
         " units (multiples of " + std::to_string(kWgmmaChunk) + ") with up to " + std::to_string(kTileColumns) +
         " sequences over many timesteps, compute capability 9.0";
}

int choose_chunked_wavefront(const GpuRow& row, const RnnProblem& problem, Pass pass, ResidentShape* shape) {
  const int64_t hidden = problem.hidden, batch = problem.max_batch(), layers = problem.layers;
  if (hidden < kSmallest || hidden > kLargest || hidden % kWgmmaChunk != 0) return 1;
  if (chunked_drops_projected(problem)) {
    // Backward, each block of a cluster has a stage of K at least of the product with a projection, and each cluster so
    // many columns at most of that with the input matrices.
    const int64_t projection = problem.projection, clusters = ceil_div(hidden, kChunkedColumns);
    if (projection % kChunkedColumnsK != 0 || projection < 2 * kChunkedColumnsK) return 1;
    if (projection > kChunkedProjectedBack * clusters) return 1;
  }
  if (batch > kTileColumns || layers < kChunkedLeastLayers) return 1;
  if (problem.steps() < chunked_least_steps(problem, problem.training)) return 1;
  ResidentShape found;  // the caller's has a kernel of this engine only where layers run so
  const int most =
      pass == Pass::kForward ? choose_forward(row, problem, &found) : choose_backward(row, problem, &found);
  if (most == 1) return 1;
  *shape = found;
  return most;
}

}  // namespace prnn
