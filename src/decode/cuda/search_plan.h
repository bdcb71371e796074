// How the resident searches are laid out: which row tiles of which matrix a block has, and what its shared memory
// holds. Plain C++ that needs no GPU. docs/decoder_kernel.md explains the design.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "prnn_decode.h"

namespace prnn::decode_cuda {

constexpr int kThreads = 256, kWarps = kThreads / 32;        // that go through rounds
constexpr int kHelpers = 4, kHelperThreads = kHelpers * 32;  // warps of a greedy search beside them
constexpr int kPlaces = 4;                                   // rounds whose keys and parts of columns are kept
constexpr int kRoundsKept = 3;                               // and whose slots and columns a block keeps
constexpr int kTileRows = 16;                                // rows of weights that a matrix instruction takes
constexpr int kTileUnits = 4;    // hidden units of a row tile of gates: four rows each, in the order of Cell
constexpr int kTileColumns = 8;  // columns of a matrix instruction
constexpr int kKTileBytes = 64;  // of K
constexpr int kSlots = 8;        // utterances that a group of blocks searches greedily at once
constexpr int kMostColumnTiles = 4, kMostGreedyTiles = 3;
constexpr int kMostBeam = 16;
constexpr int kMostWindow = 8;  // frames of an utterance that are scored at once
constexpr int kMostClasses = 1 << 16;

// The products of a search, in the order in which their weights get room in shared memory; what finds none is read from
// L2 each time. The last two are off the critical path.
enum Matrix { kOutput, kProjection, kUpperInput, kUpperRecurrent, kRecurrent, kMatrices };

// The row tiles of a matrix, shared out among the blocks of a group as evenly as whole pieces allow.
struct RowTiles {
  int count;
  int k_tiles;
  int together;      // row tiles of a piece; the last one may have fewer
  int first_larger;  // the blocks with one piece more begin with this one

  __host__ __device__ int pieces() const { return (count + together - 1) / together; }
};

struct Share {
  int first, count;
};

// The place of a block among those of its group, where those with a piece more come first.
__host__ __device__ inline int turn_of(const RowTiles& tiles, int blocks, int block) {
  return block >= tiles.first_larger ? block - tiles.first_larger : block - tiles.first_larger + blocks;
}

__host__ __device__ inline Share share_of(const RowTiles& tiles, int blocks, int block) {
  const int turn = turn_of(tiles, blocks, block);
  const int least = tiles.pieces() / blocks, larger = tiles.pieces() % blocks;
  const int first = (turn * least + (turn < larger ? turn : larger)) * tiles.together;
  const int end = first + (least + (turn < larger ? 1 : 0)) * tiles.together;
  return {first < tiles.count ? first : tiles.count,
          (end < tiles.count ? end : tiles.count) - (first < tiles.count ? first : tiles.count)};
}

// Where a block's arrays lie in its shared memory, in bytes.
struct SharedLayout {
  int weights;      // resident row tiles, [tile][k-tile][operand][lane] of 16 bytes
  int activations;  // [column][joiner_stride]: encoder frames, then the output layer's input
  int states[2];    // [slot][state_stride]: h of the layers; of a stateless predictor its output
  int projection;   // [slot][joiner_stride]: the projected predictor output
  int sums;     // float [warp][row of a pass][columns + 1]; later what the blocks publish of columns: beam: ListPart
                // [own column][entry][list_parts + 1]
  int results;  // float [row][column], of the upper layer's input product
  int scores;   // greedy: ColumnScores [own slot][frame], of the results that the block writes
  int recurrent[2];                  // float [row][slot]: the layers' recurrent products with the present h
  int cells[2];                      // float [unit][slot]: c
  int output_bias, projection_bias;  // float [row]
  int tiles;                         // BlockTiles [matrix]
  int columns;                       // greedy: Column [kRoundsKept][column]; beam: ListPart [column][list_room]
  int levels;                        // beam by levels: [utterance] Levels and its Paths
  int slots;  // greedy: Slot [slot], as they are, and [kRoundsKept][slot], as they were before rounds, double
              // [slot], Job; beam: Hypothesis [slot]
  int total;
};

// The part of a plan that follows from a model and a GPU.
struct SearchPlan {
  RowTiles tiles[kMatrices];  // first_larger: of a batch
  int element_bytes;
  int layers;  // recurrent; 0: stateless
  int durations;
  int joiner_stride, state_stride;
  int multiprocessors;
  int64_t shared_bytes, weight_bytes;

  int class_tiles(int64_t classes) const { return static_cast<int>((classes + kTileRows - 1) / kTileRows); }
};

// Sizes in bytes of what lies in shared memory as a structure of the kernel.
constexpr int kBlockTilesBytes = 40, kColumnBytes = 8, kColumnScoresBytes = 16, kSlotBytes = 96, kHypothesisBytes = 144;
constexpr int kPathBytes = 56, kLevelsBytes = 168, kJobBytes = 8;

// `multiprocessors`, `shared_bytes`: of the GPU. Returns false where not even the activations find room.
bool plan_search(const prnnTransducerModel_t& model, int multiprocessors, int64_t shared_bytes, SearchPlan& plan);

// Column tiles of so many slots of a beam search: 1, 2 or 4, which its kernel is compiled for.
int slot_tiles_of(int slots);

// How a batch is searched. No result depends on it. blocks: 0: there is no room for any way. A greedy search has a slot
// for each utterance, a beam search K for each, one for a hypothesis. Each slot has columns for the frames of a window.
// A search by levels, of several symbols a frame or with durations, has 2 K slots for each utterance, K of a level and
// K that wait, and a round scores a level on one frame.
struct BatchPlan {
  int groups, blocks;  // blocks: of a group
  int beam;            // 0: a greedy search
  int64_t waiting;     // by levels: most hypotheses of an utterance that wait; else 0
  int utterances;      // that a group has at once
  int slots;           // of a group
  int column_tiles;
  int window;          // frames of an utterance that are scored at once
  int duration_parts;  // of a list, two logits in each
  int entries;  // of a column: what the pieces of the output layer say of it; blocks without a piece have one, too
  RowTiles tiles[kMatrices];
  SharedLayout shared;
  int weight_bytes;  // of resident weights at most

  int columns() const { return column_tiles * kTileColumns; }
  // Slots of an utterance.
  int width() const { return std::max(beam, 1) * (waiting > 0 ? 2 : 1); }
  int slot_tiles() const { return beam > 0 ? slot_tiles_of(slots) : 1; }
  int slot_room() const { return slot_tiles() * kTileColumns; }
  // Slots of states that a product reads.
  int state_rows() const { return slot_room() > kTileColumns ? slot_room() : slots; }
  // The number of parts of a list of `beam` candidates, two in each.
  int list_parts() const { return (beam + 1) / 2; }
  // The number of parts that a piece of the output layer or all of them publish of a column.
  int parts_of_list() const { return list_parts() + 1; }
  // Parts of a list with the logits of durations, of all pieces together.
  int list_room() const { return parts_of_list() + duration_parts; }
  // Bytes of an utterance's lists, by levels.
  int64_t levels_bytes() const { return waiting > 0 ? kLevelsBytes + (2 * beam + waiting) * kPathBytes : 0; }
  // Columns whose lists a block puts together.
  int own_columns() const { return (columns() + blocks - 1) / blocks; }
};
BatchPlan plan_batch(const SearchPlan& plan, int64_t batch, int beam = 0, int64_t waiting = 0);

// The rest of a plan with these groups, blocks, beam, waiting, utterances and column tiles. Returns false where they
// find no room.
bool complete(const SearchPlan& plan, BatchPlan& batch);

}  // namespace prnn::decode_cuda
