// How wavefronts by chunks are laid out: layers of a stack in one launch, each with its recurrent weights alone on the
// chip, a chunk of timesteps behind the layer below. Plain C++ that needs no GPU. docs/resident_kernels.md, section
// "Wavefront by chunks".
#pragma once

#include <algorithm>

#include "rnn/plan/wavefront.h"

namespace prnn {

constexpr int64_t kChunkedLeastLayers = 3;  // of the stack, and that there is room for

constexpr int kChunkedRows = 64;       // of a chunk's product: timesteps times sequences
constexpr int kChunkedMostSteps = 16;  // of a chunk
constexpr int kChunkedStageK = 32;     // elements of K of a stage of its operands
constexpr int kChunkedStages = 4;      // on their way to shared memory
constexpr int kChunkedKTiles = 4;      // of a warp

// Timesteps of a chunk.
constexpr int chunked_steps(int64_t batch) {
  return static_cast<int>(std::clamp<int64_t>(kChunkedRows / batch, 1, kChunkedMostSteps));
}

// Up to 4 sequences have half of a tile's columns each.
constexpr int kChunkedHalfTile = kTileColumns / 2;

// Shared memory of a product's stage: its rows, and those of the input matrices.
constexpr int chunked_stage_bytes(int matrix_rows) { return (kChunkedRows + matrix_rows) * kChunkedStageK * 2; }

// The bytes of a step's sums, two sets of them where there is room.
constexpr int chunked_sum_bytes(int unit_tiles, bool half_tile) {
  return (half_tile ? 2 : 1) * kResidentWarps * unit_tiles * (half_tile ? 32 : 64) * 16;
}

// Pairs of row tiles of a block's recurrent weights, and a warp's operands of them (16 bytes a thread each).
constexpr int chunked_pairs(int gates, int unit_tiles) { return (unit_tiles * gates + 1) / 2; }
constexpr int chunked_operands(int gates, int unit_tiles) {
  return 2 * chunked_pairs(gates, unit_tiles) * kChunkedKTiles;
}

// The number of operands that it keeps in registers.
constexpr int chunked_registers(int gates, int unit_tiles) {
  return std::min(chunked_operands(gates, unit_tiles), gates == 4 ? 39 : unit_tiles < 6 ? 37 : 31);
}

// Columns of a chunk's product that each of two warpgroups has: of three gates, whole units of them.
constexpr int chunked_product_columns(int gates, int unit_tiles) {
  return (gates == 3 ? (unit_tiles + 1) / 2 * 3 : unit_tiles * gates / 2) * kTileRows;
}

// Where in dynamic shared memory the biases begin, 16 bytes a unit, and after them the weights: before them are stages
// and sums, at different times.
constexpr int chunked_biases_at(int gates, int unit_tiles, bool half_tile) {
  return std::max(kChunkedStages * chunked_stage_bytes(2 * chunked_product_columns(gates, unit_tiles)),
                  chunked_sum_bytes(unit_tiles, half_tile));
}

// Where there is dropout behind a projection (ChunkedProjection), blocks, backward clusters, share the columns of h of
// a chunk, whole bytes of the mask; at most so many. Forward, a stage is of as many of the projection's rows.
constexpr int kChunkedProjected = 32, kChunkedProjectedBack = 64;
constexpr int chunked_projected_columns(int64_t projection, int64_t sharers) {
  return static_cast<int>(ceil_div(projection, 8 * sharers) * 8);
}
constexpr int chunked_projected_stages(int gates, int unit_tiles) {
  return std::min(8, kChunkedStages * chunked_stage_bytes(2 * chunked_product_columns(gates, unit_tiles)) /
                         chunked_stage_bytes(kChunkedProjected));
}

// Backward: clusters of 2 blocks split K, two gates each (GRU: by units). A launch's kernel has 4 or 8 columns. The
// exchanged gradients of the gates lie in a ring of so many timesteps.
constexpr int kChunkedBackwardCluster = 2;
constexpr int kChunkedBackwardUnits = 40;  // of a block
constexpr int kChunkedBackwardSaved = 4;   // steps whose saved values are on their way to shared memory
constexpr int kChunkedBackwardTable = 32;  // timesteps in shared memory, of sequences of different lengths
constexpr int kChunkedColumnsK = 64;       // elements of K of a stage of a chunk's product
constexpr int kChunkedColumnsStages = 3;
constexpr int chunked_columns(int64_t batch) { return batch <= kChunkedHalfTile ? kChunkedHalfTile : kTileColumns; }
constexpr int chunked_ring_steps(int64_t batch) { return 4 * chunked_steps(batch); }

// K-tiles of a warp, 32 gradients each; and its operands of recurrent weights, 16 bytes a thread.
constexpr int chunked_backward_k_tiles(int gates) { return 2 * gates; }
constexpr int chunked_backward_operands(int gates) {
  return chunked_backward_k_tiles(gates) * 2 * kChunkedBackwardCluster * kChunkedBackwardUnits / 16;
}

// Operands of recurrent weights that a warp keeps in registers.
constexpr int chunked_backward_registers(int columns) { return columns == kChunkedHalfTile ? 42 : 40; }

// A stage of a product with a matrix whose rows are along K, of so many columns: rows of one and of the other.
constexpr int kChunkedColumns = kChunkedBackwardCluster * kChunkedBackwardUnits;
constexpr int chunked_columns_stage_bytes() { return (kChunkedRows + kChunkedColumns) * kChunkedColumnsK * 2; }

// ChunkedBackwardMemory of the kernel, which says what these are. Stages and what a step needs lie there at different
// times.
constexpr int chunked_backward_shared_bytes(int gates, int columns) {
  constexpr int kUnits = kChunkedBackwardUnits, kRows = kChunkedBackwardCluster * kUnits, kFinishing = 4 * kUnits;
  const int weights = (chunked_backward_operands(gates) - chunked_backward_registers(columns)) * kResidentThreads * 16;
  const int sums = kResidentWarps * kRows * 4, saved = kChunkedBackwardSaved * kUnits * 6 * 2;  // of a column
  const int derived = kFinishing / 4 * 32, published = 2 * 2 * kUnits * 4;                      // the same
  const int of_step = columns * (sums + saved + derived + published);
  const int stages = kChunkedColumnsStages * chunked_columns_stage_bytes();
  const int partial_and_carried = columns * (2 * kUnits * 4 + kFinishing / 4 * 4);
  const int tables = kFinishing * 16 + (kResidentThreads - kFinishing) * 2 * 16 + kChunkedBackwardTable * 8;
  return weights + std::max(of_step, stages) + partial_and_carried + tables + 16;
}

// Bytes of a layer's `exchange` and `products`, of WavefrontForwardLayer. The gates' gradients, of G H numbers a row,
// are what blocks exchange backward, and their products with the input matrices above have H.
int64_t chunked_exchange_bytes(const RnnProblem& problem, Pass pass);
int64_t chunked_products_bytes(const RnnProblem& problem, Pass pass);

// Whether layers that run so multiply with a projection and, after the dropout behind it, with the input matrices
// above: in training alone; else with the product of both.
bool chunked_drops_projected(const RnnProblem& problem);

// Whether a pass runs so.
inline bool is_chunked(const ResidentShape& wavefront) { return wavefront.kernel.is(Engine::kWavefrontChunked); }

// Describes the stacks that choose_chunked_wavefront() takes, as a reason why it does not take others.
std::string where_chunks_are_faster();

// Sets `shape` to the layout of a launch; returns how many layers it takes at most, 1: there is none.
int choose_chunked_wavefront(const GpuRow& row, const RnnProblem& problem, Pass pass, ResidentShape* shape);

}  // namespace prnn
