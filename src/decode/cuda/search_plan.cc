#include "decode/cuda/search_plan.h"

#include <algorithm>

namespace prnn::decode_cuda {
namespace {

constexpr int kLeastColumnTiles = 3;  // for which weights give way, the last ones off the critical path

constexpr int64_t kTileBytes = kKTileBytes * kTileRows;  // of a row tile and a k-tile

int tiles_of(int64_t rows, int per_tile) { return static_cast<int>((rows + per_tile - 1) / per_tile); }

// An odd number of 64 bytes, so that eight columns' loads of 16 bytes meet no bank twice.
int stride_of(int k_tiles) { return (k_tiles | 1) * kKTileBytes; }

// The blocks that have a tile more of a matrix follow those that have one more of the matrix before. A layer's two
// matrices have the same blocks for the same units.
void share_out(SearchPlan& plan) {
  int next = 0;
  for (int m : {kRecurrent, kUpperRecurrent, kProjection, kOutput}) {
    plan.tiles[m].first_larger = next;
    next = (next + plan.tiles[m].count % plan.blocks) % plan.blocks;
  }
  plan.tiles[kUpperInput].first_larger = plan.tiles[kUpperRecurrent].first_larger;
}

int64_t bytes_of_block(const SearchPlan& plan, int block) {
  int64_t bytes = 0;
  for (const RowTiles& tiles : plan.tiles)
    bytes += int64_t{share_of(tiles, plan.blocks, block).count} * tiles.k_tiles * kTileBytes;
  return bytes;
}

int most_tiles(const SearchPlan& plan, Matrix m) { return tiles_of(plan.tiles[m].count, plan.blocks); }

// The weights come first and have what is left. Negative: there is not enough for the others.
SharedLayout lay_out(const SearchPlan& plan, int column_tiles) {
  int64_t at = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t begin = at;
    at += (bytes + 127) / 128 * 128;
    return static_cast<int>(begin);
  };
  const int columns = column_tiles * kTileColumns;
  SharedLayout shared{};
  shared.activations = take(int64_t{columns} * plan.joiner_stride);
  for (int layer = 0; layer < std::max(plan.layers, 1); ++layer)
    shared.states[layer] = take(int64_t{kSlots} * plan.state_stride);
  shared.projection = take(int64_t{kSlots} * plan.joiner_stride);
  const int64_t sums = int64_t{2} * column_tiles * kWarps * 32 * 16;
  shared.sums = take(std::max(sums, int64_t{columns} * (plan.blocks + 2) * 16));
  const auto whole_passes = [](int tiles) { return (tiles + 1) / 2 * 2; };
  const int gates = whole_passes(std::max(most_tiles(plan, kProjection), most_tiles(plan, kUpperInput))) * kTileRows;
  shared.results = take(4 * std::max<int64_t>(2 * kTileRows * (columns + 1), gates * (kTileColumns + 1)));
  const Matrix recurrent[2] = {kRecurrent, kUpperRecurrent};
  for (int layer = 0; layer < plan.layers; ++layer) {
    const int tiles = most_tiles(plan, recurrent[layer]);
    shared.recurrent[layer] = take(4 * int64_t{whole_passes(tiles)} * kTileRows * (kTileColumns + 1));
    shared.cells[layer] = take(int64_t{4} * tiles * kTileUnits * kSlots);
  }
  shared.output_bias = take(4 * int64_t{most_tiles(plan, kOutput)} * kTileRows);
  shared.tiles = take(kMatrices * kBlockTilesBytes);
  shared.columns = take(int64_t{columns} * kColumnBytes);
  shared.slots = take(int64_t{kSlots} * kSlotBytes);
  shared.weights = static_cast<int>(at);
  shared.total = static_cast<int>(plan.shared_bytes / 128 * 128);
  return shared;
}

// Whether all weights, of so many bytes, find room with so many blocks and columns. A call plans more than once: most
// numbers of blocks are ruled out without a look at each block.
bool fits(SearchPlan& plan, int64_t weights) {
  const SharedLayout shared = lay_out(plan, plan.column_tiles);
  const int64_t room = shared.total - shared.weights;
  if (room * plan.blocks < weights) return false;
  share_out(plan);
  for (int block = 0; block < plan.blocks; ++block) {
    if (bytes_of_block(plan, block) > room) return false;
  }
  return true;
}

}  // namespace

bool plan_search(const prnnTransducerModel_t& model, int multiprocessors, int64_t shared_bytes, SearchPlan& plan) {
  plan = {};
  plan.element_bytes = model.dataType == PRNN_DATA_FLOAT ? 4 : 2;
  plan.layers = model.predictor == PRNN_PREDICTOR_STATELESS ? 0 : static_cast<int>(model.layers);
  // What has no room even alone. Sizes beyond may be more than the bytes of a row that an int holds.
  if (std::max(model.hiddenSize, model.joinerSize) > shared_bytes / (kSlots * plan.element_bytes)) return false;
  const auto k_tiles_of = [&](int64_t k) { return tiles_of(k * plan.element_bytes, kKTileBytes); };
  const int of_hidden = k_tiles_of(model.hiddenSize), of_joiner = k_tiles_of(model.joinerSize);
  plan.joiner_stride = stride_of(of_joiner);
  plan.state_stride = stride_of(of_hidden);
  const int unit_tiles = tiles_of(model.hiddenSize, kTileUnits);
  plan.tiles[kOutput] = {tiles_of(model.classes, kTileRows) + (model.durationCount > 0 ? 1 : 0), of_joiner, 0};
  plan.tiles[kProjection] = {tiles_of(model.joinerSize, kTileRows), of_hidden, 0};
  plan.tiles[kRecurrent] = {plan.layers > 0 ? unit_tiles : 0, of_hidden, 0};
  plan.tiles[kUpperInput] = plan.tiles[kUpperRecurrent] = {plan.layers > 1 ? unit_tiles : 0, of_hidden, 0};

  plan.shared_bytes = shared_bytes;

  int64_t weights = 0;
  for (const RowTiles& tiles : plan.tiles) weights += int64_t{tiles.count} * tiles.k_tiles * kTileBytes;
  SearchPlan best = plan;
  for (plan.column_tiles = kMostColumnTiles; plan.column_tiles > 0; --plan.column_tiles) {
    plan.blocks = 1;
    while (plan.blocks <= multiprocessors && !fits(plan, weights)) ++plan.blocks;
    if (plan.blocks > multiprocessors) continue;
    plan.groups = multiprocessors / plan.blocks;
    if (plan.groups * plan.column_tiles > best.groups * best.column_tiles) best = plan;
  }
  plan = best;
  if (plan.groups == 0) {
    plan.blocks = multiprocessors;
    plan.groups = 1;
    share_out(plan);
  }
  plan.column_tiles = std::max(plan.column_tiles, kLeastColumnTiles);
  while (plan.column_tiles > 0 && lay_out(plan, plan.column_tiles).weights > shared_bytes / 128 * 128)
    --plan.column_tiles;
  return plan.column_tiles > 0;
}

BatchPlan plan_batch(const SearchPlan& plan, int64_t batch) {
  BatchPlan chosen;
  chosen.groups = static_cast<int>(std::min<int64_t>(plan.groups, batch));
  chosen.slots = static_cast<int>(std::min<int64_t>(kSlots, (batch + chosen.groups - 1) / chosen.groups));
  const int columns = plan.column_tiles * kTileColumns;
  chosen.window = std::min(kMostWindow, columns / chosen.slots);
  chosen.column_tiles = 1;
  while (chosen.column_tiles * kTileColumns < chosen.slots * chosen.window) ++chosen.column_tiles;
  chosen.shared = lay_out(plan, chosen.column_tiles);
  chosen.weight_bytes = chosen.shared.total - chosen.shared.weights;
  return chosen;
}

}  // namespace prnn::decode_cuda
