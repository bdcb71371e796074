#include "decode/cuda/search_plan.h"

#include <algorithm>

namespace prnn::decode_cuda {
namespace {

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
    bytes += int64_t{share_of(tiles, plan.blocks, block).count} * tiles.k_tiles * kKTileBytes * kTileRows;
  return bytes;
}

int most_tiles(const SearchPlan& plan, Matrix m) { return tiles_of(plan.tiles[m].count, plan.blocks); }

// All but the weights, which come first and have what is left.
int64_t lay_out(SearchPlan& plan, int64_t weight_bytes) {
  int64_t at = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t begin = at;
    at += (bytes + 127) / 128 * 128;
    return static_cast<int>(begin);
  };
  const int columns = plan.column_tiles * kTileColumns;
  SharedLayout& shared = plan.shared;
  shared = {};
  shared.weights = take(weight_bytes);
  shared.activations = take(int64_t{columns} * plan.joiner_stride);
  for (int layer = 0; layer < std::max(plan.layers, 1); ++layer)
    shared.states[layer] = take(int64_t{kSlots} * plan.state_stride);
  shared.projection = take(int64_t{kSlots} * plan.joiner_stride);
  const int64_t sums = int64_t{2} * plan.column_tiles * kWarps * 32 * 16;
  shared.sums = take(std::max(sums, int64_t{columns} * (plan.blocks + 2) * 16));
  const int gates = std::max(most_tiles(plan, kProjection), most_tiles(plan, kUpperInput)) * kTileRows;
  shared.results = take(4 * std::max<int64_t>(2 * kTileRows * (columns + 1), gates * (kTileColumns + 1)));
  const Matrix recurrent[2] = {kRecurrent, kUpperRecurrent};
  for (int layer = 0; layer < plan.layers; ++layer) {
    const int64_t tiles = most_tiles(plan, recurrent[layer]);
    shared.recurrent[layer] = take(4 * tiles * kTileRows * (kTileColumns + 1));
    shared.cells[layer] = take(4 * tiles * kTileUnits * kSlots);
  }
  shared.output_bias = take(4 * int64_t{most_tiles(plan, kOutput)} * kTileRows);
  shared.columns = take(int64_t{columns} * kColumnBytes);
  shared.slots = take(int64_t{kSlots} * kSlotBytes);
  shared.total = static_cast<int>(at);
  return at;
}

// With so many blocks and columns: whether all weights find room, or, with `streams`, all but weights.
bool fits(SearchPlan& plan, int64_t shared_bytes, bool streams) {
  share_out(plan);
  int64_t weights = 0;
  for (int block = 0; block < plan.blocks; ++block) weights = std::max(weights, bytes_of_block(plan, block));
  const int64_t others = lay_out(plan, 0);
  if (others > shared_bytes) return false;
  plan.is_resident = others + weights + 127 <= shared_bytes;
  if (!plan.is_resident && !streams) return false;
  lay_out(plan, plan.is_resident ? weights : (shared_bytes - others) / 128 * 128);
  return true;
}

}  // namespace

bool plan_search(const prnnTransducerModel_t& model, int multiprocessors, int64_t shared_bytes, SearchPlan& plan) {
  plan = {};
  plan.element_bytes = model.dataType == PRNN_DATA_FLOAT ? 4 : 2;
  plan.layers = model.predictor == PRNN_PREDICTOR_STATELESS ? 0 : static_cast<int>(model.layers);
  const auto k_tiles_of = [&](int64_t k) { return tiles_of(k * plan.element_bytes, kKTileBytes); };
  const int of_hidden = k_tiles_of(model.hiddenSize), of_joiner = k_tiles_of(model.joinerSize);
  plan.joiner_stride = stride_of(of_joiner);
  plan.state_stride = stride_of(of_hidden);
  const int unit_tiles = tiles_of(model.hiddenSize, kTileUnits);
  plan.tiles[kOutput] = {tiles_of(model.classes, kTileRows) + (model.durationCount > 0 ? 1 : 0), of_joiner, 0};
  plan.tiles[kProjection] = {tiles_of(model.joinerSize, kTileRows), of_hidden, 0};
  plan.tiles[kRecurrent] = {plan.layers > 0 ? unit_tiles : 0, of_hidden, 0};
  plan.tiles[kUpperInput] = plan.tiles[kUpperRecurrent] = {plan.layers > 1 ? unit_tiles : 0, of_hidden, 0};

  for (const bool streams : {false, true}) {
    const int most = streams ? kMostColumnTiles / 2 : kMostColumnTiles;
    for (plan.column_tiles = most; plan.column_tiles > 0; plan.column_tiles /= 2) {
      for (plan.blocks = streams ? multiprocessors : 1; plan.blocks <= multiprocessors; ++plan.blocks) {
        if (!fits(plan, shared_bytes, streams)) continue;
        plan.groups = multiprocessors / plan.blocks;
        return true;
      }
    }
  }
  return false;
}

BatchPlan plan_batch(const SearchPlan& plan, int64_t batch) {
  BatchPlan chosen;
  chosen.groups = static_cast<int>(std::min<int64_t>(plan.groups, batch));
  chosen.slots = static_cast<int>(std::min<int64_t>(kSlots, (batch + chosen.groups - 1) / chosen.groups));
  const int columns = plan.column_tiles * kTileColumns;
  chosen.window = std::min(kMostWindow, columns / chosen.slots);
  chosen.column_tiles = 1;
  while (chosen.column_tiles * kTileColumns < chosen.slots * chosen.window) chosen.column_tiles *= 2;
  return chosen;
}

}  // namespace prnn::decode_cuda
