#include "decode/cuda/search_plan.h"

#include <algorithm>
#include <limits>

namespace prnn::decode_cuda {
namespace {

constexpr int kMostPieces = 96;  // of the output layer

constexpr int64_t kTileBytes = kKTileBytes * kTileRows;  // of a row tile and a k-tile

int tiles_of(int64_t rows, int per_tile) { return static_cast<int>((rows + per_tile - 1) / per_tile); }

// An odd number of 64 bytes, so that eight columns' loads of 16 bytes meet no bank twice.
int stride_of(int k_tiles) { return (k_tiles | 1) * kKTileBytes; }

int most_tiles(const RowTiles& tiles, int blocks) {
  return std::min(tiles.count, (tiles.pieces() + blocks - 1) / blocks * tiles.together);
}
int passes_of(const RowTiles& tiles, int blocks) { return (most_tiles(tiles, blocks) + 1) / 2; }

// The weights have what is left: less than 0 bytes of it where there is not enough for the others.
SharedLayout lay_out(const SearchPlan& plan, const BatchPlan& batch) {
  int64_t at = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t begin = at;
    at += (bytes + 127) / 128 * 128;
    return static_cast<int>(begin);
  };
  const auto most = [&](Matrix m) { return most_tiles(plan.tiles[m], batch.blocks); };
  const int columns = batch.columns(), slot_stride = batch.slot_room() + 1;
  SharedLayout shared{};
  shared.activations = take(int64_t{columns} * plan.joiner_stride);
  for (int layer = 0; layer < std::max(plan.layers, 1); ++layer)
    shared.states[layer] = take(int64_t{batch.state_rows()} * plan.state_stride);
  shared.projection = take(int64_t{batch.slots} * plan.joiner_stride);
  const int64_t sums = int64_t{4} * kWarps * 2 * kTileRows * (columns + 1);
  const int64_t gathered =
      batch.beam > 0 ? int64_t{batch.own_columns()} * batch.entries * batch.parts_of_list() * 16 : 0;
  shared.sums = take(std::max(sums, gathered));
  const auto whole_passes = [](int tiles) { return (tiles + 1) / 2 * 2; };
  const int gates = whole_passes(most(kUpperInput)) * kTileRows;
  shared.results = take(int64_t{4} * gates * slot_stride);
  const int64_t written_slots = batch.beam > 0 ? 0 : (batch.slots + batch.blocks - 1) / batch.blocks;
  shared.scores = take(written_slots * kMostWindow * kColumnScoresBytes);
  const Matrix recurrent[2] = {kRecurrent, kUpperRecurrent};
  const int64_t halves = batch.beam > 0 ? 1 : 2;
  for (int layer = 0; layer < plan.layers; ++layer) {
    const int tiles = most(recurrent[layer]);
    shared.recurrent[layer] = take(4 * halves * whole_passes(tiles) * kTileRows * slot_stride);
    shared.cells[layer] = take(int64_t{4} * tiles * kTileUnits * batch.slot_room());
  }
  shared.output_bias = take(4 * int64_t{most(kOutput)} * kTileRows);
  shared.projection_bias = take(4 * int64_t{most(kProjection)} * kTileRows);
  shared.tiles = take(kMatrices * kBlockTilesBytes);
  shared.columns = take(int64_t{columns} * (batch.beam > 0 ? batch.list_room() * 16 : kRoundsKept * kColumnBytes));
  shared.levels = take(batch.utterances * batch.levels_bytes());
  const int of_slot = batch.beam > 0 ? kHypothesisBytes : (1 + kRoundsKept) * kSlotBytes + 8;
  shared.slots = take(int64_t{batch.slot_room()} * of_slot + kJobBytes);
  shared.weights = static_cast<int>(at);
  shared.total = static_cast<int>(plan.shared_bytes / 128 * 128);
  return shared;
}

// Rounds of a symbol. The probability that a frame of a window ends it is that of measured searches, of which 0.3 of
// the frames have a symbol, several of them more than one; durations pass over some of the others. Of a beam it is
// taken to be a half.
double rounds_of(const SearchPlan& plan, const BatchPlan& batch) {
  const double blank = batch.beam > 0 ? 0.76 : plan.durations > 0 ? 0.5 : 0.6;
  double blanks = 1;
  for (int i = 0; i < batch.window; ++i) blanks *= blank;
  return 1 / (1 - blanks);
}

// Microseconds of a round: models of times measured on one H200, with LSTMs of 640 units, a joiner of 640 and 1,025 or
// 8,193 classes. A round has a part that is always the same, parts that grow with its slots, with its columns, with
// what is published of a column and with the passes over the rows of weights that a block has, and the weights that are
// read from L2. It waits for its helpers, whose part grows with the row tiles of recurrent weights. The chosen plans
// are within 12 % of the fastest of 280 measured ones, 1 % in the mean.
double greedy_round(const SearchPlan& plan, const BatchPlan& batch) {
  const bool is_float = plan.element_bytes == 4;
  const int columns = batch.slots * batch.window;
  const auto passes = [&](Matrix m) { return passes_of(plan.tiles[m], batch.blocks); };
  const auto tiles = [&](Matrix m) { return most_tiles(plan.tiles[m], batch.blocks); };
  const int other_passes = passes(kProjection) + passes(kUpperInput),
            recurrent = tiles(kRecurrent) + tiles(kUpperRecurrent);
  const double bytes = std::max(0.0, static_cast<double>(plan.weight_bytes) / batch.blocks - batch.weight_bytes);
  if (is_float) {
    const double round = 4.6 + 0.195 * batch.slots + 0.18 * columns + 0.02 * batch.entries +
                         passes(kOutput) * (0.89 + 0.13 * columns) + 0.99 * other_passes + bytes / 75e3;
    return std::max(round, 4.4 + 2.45 * recurrent);
  }
  const double round = 3.8 + 0.11 * batch.slots + 0.1 * columns + 0.009 * batch.entries +
                       passes(kOutput) * (0.525 + 0.054 * columns) + 0.76 * other_passes + bytes / 129e3;
  return std::max(round, 4.5 + 0.535 * recurrent);
}

// Microseconds of a round of a beam search. By it the chosen plans are within 3 % of the fastest of 218 plans of beams
// of 2 to 8 that were measured in bfloat16.
double beam_round(const SearchPlan& plan, const BatchPlan& batch) {
  constexpr double kBytesOfL2 = 188e3;
  const bool is_float = plan.element_bytes == 4;
  const int columns = batch.slots * batch.window;
  const auto passes = [&](Matrix m) { return passes_of(plan.tiles[m], batch.blocks); };
  const auto tiles = [&](Matrix m) { return most_tiles(plan.tiles[m], batch.blocks); };
  const double products = passes(kOutput) * (0.38 + 0.036 * columns + 0.07 * batch.beam * batch.column_tiles) +
                          0.85 * (passes(kProjection) + passes(kUpperInput)) +
                          0.24 * (tiles(kRecurrent) + tiles(kUpperRecurrent));
  const double round = 7.6 + 0.12 * batch.slots + (0.21 + 0.013 * batch.beam) * columns + 0.015 * batch.entries +
                       (is_float ? 1.6 : 1) * products;
  return round + std::max(0.0, static_cast<double>(plan.weight_bytes) / batch.blocks - batch.weight_bytes) / kBytesOfL2;
}

// The time of a batch, in some unit.
double cost_of(const SearchPlan& plan, const BatchPlan& batch, int64_t utterances) {
  const double at_once = batch.groups * batch.utterances, times = static_cast<double>(utterances) / at_once;
  const double round = batch.beam > 0 ? beam_round(plan, batch) : greedy_round(plan, batch);
  return round * rounds_of(plan, batch) * (times <= 1 ? 1 : times + 0.2);
}

// The blocks that have a piece more of a matrix follow those that have one more of the matrix before. A layer's two
// matrices have the same blocks for the same units.
void share_out(const SearchPlan& plan, BatchPlan& batch) {
  std::copy_n(plan.tiles, kMatrices, batch.tiles);
  int next = 0;
  for (int m : {kRecurrent, kUpperRecurrent, kProjection, kOutput}) {
    batch.tiles[m].first_larger = next;
    next = (next + batch.tiles[m].pieces() % batch.blocks) % batch.blocks;
  }
  batch.tiles[kUpperInput].first_larger = batch.tiles[kUpperRecurrent].first_larger;
}

}  // namespace

bool plan_search(const prnnTransducerModel_t& model, int multiprocessors, int64_t shared_bytes, SearchPlan& plan) {
  plan = {};
  plan.element_bytes = model.dataType == PRNN_DATA_FLOAT ? 4 : 2;
  plan.durations = static_cast<int>(model.durationCount);
  plan.layers = model.predictor == PRNN_PREDICTOR_STATELESS ? 0 : static_cast<int>(model.layers);
  // Refuses models that have no room even alone. Sizes beyond may be more than the bytes of a row that an int holds.
  if (std::max(model.hiddenSize, model.joinerSize) > shared_bytes / (kSlots * plan.element_bytes)) return false;
  const auto k_tiles_of = [&](int64_t k) { return tiles_of(k * plan.element_bytes, kKTileBytes); };
  const int of_hidden = k_tiles_of(model.hiddenSize), of_joiner = k_tiles_of(model.joinerSize);
  plan.joiner_stride = stride_of(of_joiner);
  plan.state_stride = stride_of(of_hidden);
  const int unit_tiles = tiles_of(model.hiddenSize, kTileUnits);
  const int output = tiles_of(model.classes, kTileRows) + (model.durationCount > 0 ? 1 : 0);
  plan.tiles[kOutput] = {output, of_joiner, 2 * tiles_of(output, 2 * kMostPieces), 0};
  plan.tiles[kProjection] = {tiles_of(model.joinerSize, kTileRows), of_hidden, 1, 0};
  plan.tiles[kRecurrent] = {plan.layers > 0 ? unit_tiles : 0, of_hidden, 1, 0};
  plan.tiles[kUpperInput] = plan.tiles[kUpperRecurrent] = {plan.layers > 1 ? unit_tiles : 0, of_hidden, 1, 0};
  plan.multiprocessors = multiprocessors;
  plan.shared_bytes = shared_bytes;
  for (const RowTiles& tiles : plan.tiles) plan.weight_bytes += int64_t{tiles.count} * tiles.k_tiles * kTileBytes;
  return plan_batch(plan, 1).blocks > 0;
}

int slot_tiles_of(int slots) {
  const int tiles = tiles_of(slots, kTileColumns);
  return tiles == 3 ? 4 : tiles;
}

bool complete(const SearchPlan& plan, BatchPlan& batch) {
  if (batch.levels_bytes() > plan.shared_bytes) return false;
  batch.slots = batch.utterances * batch.width();
  batch.window = batch.waiting > 0 ? 1 : std::min(kMostWindow, batch.columns() / batch.slots);
  batch.duration_parts = batch.beam > 0 ? (plan.durations + 1) / 2 : 0;
  batch.entries = std::max(plan.tiles[kOutput].pieces(), batch.blocks);
  share_out(plan, batch);
  batch.shared = lay_out(plan, batch);
  batch.weight_bytes = batch.shared.total - batch.shared.weights;
  return batch.weight_bytes >= 0;
}

// It tries as numbers of blocks all that there are, the fewest that hold all weights, those with which no block has
// more pieces of the output layer than need be; greedily also three times as many blocks as pieces.
BatchPlan plan_batch(const SearchPlan& plan, int64_t batch, int beam, int64_t waiting) {
  BatchPlan best{};
  double least = std::numeric_limits<double>::infinity();
  const auto try_plan = [&](int groups, int utterances, int column_tiles, int64_t blocks) {
    if (blocks < 1 || blocks > plan.multiprocessors / groups) return 0;
    BatchPlan tried{};
    tried.groups = groups, tried.utterances = utterances, tried.column_tiles = column_tiles;
    tried.blocks = static_cast<int>(blocks), tried.beam = beam, tried.waiting = waiting;
    if (!complete(plan, tried)) return 0;
    const double cost = cost_of(plan, tried, batch);
    if (cost < least) least = cost, best = tried;
    return tried.weight_bytes;
  };
  const auto try_blocks = [&](int groups, int utterances, int column_tiles) {
    const int most = plan.multiprocessors / groups, pieces = plan.tiles[kOutput].pieces();
    const int room = try_plan(groups, utterances, column_tiles, most);
    if (room > 0) try_plan(groups, utterances, column_tiles, plan.weight_bytes / room + 1);
    for (int share = 1; share <= 4; ++share) try_plan(groups, utterances, column_tiles, (pieces + share - 1) / share);
    if (beam == 0) try_plan(groups, utterances, column_tiles, int64_t{3} * pieces);
  };
  const int width = beam * (waiting > 0 ? 2 : 1);
  const int most_at_once = beam > 0 ? kMostColumnTiles * kTileColumns / width : kSlots;
  for (int groups : {1, 2, 3, 4, 6, 8, 12, 16, 22}) {
    if (groups > batch || groups > plan.multiprocessors) break;
    int utterances = static_cast<int>(std::min<int64_t>(most_at_once, (batch + groups - 1) / groups));
    for (bool goes_on = true; goes_on && utterances > 0; utterances /= 2) {
      if (beam > 0) {
        const int least = slot_tiles_of(utterances * width), most = waiting > 0 ? least : 2 * least;
        for (int column_tiles = least; column_tiles <= std::min(most, kMostColumnTiles); column_tiles += least) {
          try_blocks(groups, utterances, column_tiles);
        }
        continue;
      }
      const int most_tiles = std::min(kMostGreedyTiles, utterances);  // more have no frames: kMostWindow of each
      for (int column_tiles = 1; column_tiles <= most_tiles; ++column_tiles)
        try_blocks(groups, utterances, column_tiles);
      goes_on = best.blocks == 0;  // fewer are for GPUs without room for as many
    }
  }
  return best;
}

}  // namespace prnn::decode_cuda
