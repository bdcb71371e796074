// Plans of the transducer search, checked for a model on every GPU of the table that has the search. Prints one line a
// GPU; ends with status 1 at the first plan that is wrong.
//
//     decode_plan type=bfloat16 predictor=lstm layers=1 hidden=640 joiner=640 classes=1025 durations=0
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "core/gpu_table.h"
#include "decode/cuda/params.h"

namespace prnn::decode_cuda {
namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::printf("%s\n", what);
  std::exit(1);
}

// Each row tile of a matrix is one block's.
void check_shares(const BatchPlan& plan) {
  for (const RowTiles& tiles : plan.tiles) {
    std::vector<int> owners(static_cast<size_t>(tiles.count), 0);
    for (int block = 0; block < plan.blocks; ++block) {
      const Share share = share_of(tiles, plan.blocks, block);
      require(share.first >= 0 && share.count >= 0 && share.first + share.count <= tiles.count, "a share is outside");
      for (int i = 0; i < share.count; ++i) ++owners[static_cast<size_t>(share.first + i)];
    }
    for (int count : owners) require(count == 1, "a row tile is not one block's");
  }
  for (int block = 0; block < plan.blocks; ++block) {
    const Share input = share_of(plan.tiles[kUpperInput], plan.blocks, block),
                recurrent = share_of(plan.tiles[kUpperRecurrent], plan.blocks, block);
    require(input.first == recurrent.first && input.count == recurrent.count, "the upper layer's matrices differ");
  }
}

// The arrays lie one after the other, hold what the kernel writes to them, and end where the weights begin.
void check_layout(const prnnTransducerModel_t& model, const SearchPlan& plan, const BatchPlan& batch) {
  const SharedLayout& s = batch.shared;
  const int columns = batch.column_tiles * kTileColumns,
            slot_room = kTileColumns * (batch.beam > 0 ? slot_tiles_of(batch.slots) : 1);
  std::map<int64_t, int64_t> arrays;  // bytes, by where they begin
  const auto add = [&](int at, int64_t bytes) {
    require(at % 128 == 0, "an array is not aligned");
    if (bytes > 0) require(arrays.emplace(at, bytes).second, "two arrays begin at one place");
  };
  const auto tiles_of_block = [&](Matrix m) {
    int64_t most = 0;
    for (int block = 0; block < batch.blocks; ++block)
      most = std::max<int64_t>(most, share_of(batch.tiles[m], batch.blocks, block).count);
    return most;
  };
  const auto passes = [&](Matrix m) { return (tiles_of_block(m) + 1) / 2 * 2 * kTileRows; };  // rows
  add(s.activations, int64_t{columns} * plan.joiner_stride);
  for (int layer = 0; layer < std::max(plan.layers, 1); ++layer)
    add(s.states[layer], int64_t{slot_room > kTileColumns ? slot_room : batch.slots} * plan.state_stride);
  add(s.projection, int64_t{batch.slots} * plan.joiner_stride);
  const int64_t list = (batch.beam + 1) / 2 + 1, own_columns = (columns + batch.blocks - 1) / batch.blocks;
  const int64_t parts =
      batch.beam > 0 ? own_columns * batch.entries * list * static_cast<int64_t>(sizeof(ListPart)) : 0;
  add(s.sums, std::max<int64_t>(int64_t{4} * kWarps * 2 * kTileRows * (columns + 1), parts));
  add(s.results, 4 * passes(kUpperInput) * (slot_room + 1));
  const int64_t written = batch.beam > 0 ? 0 : (batch.slots + batch.blocks - 1) / batch.blocks;
  add(s.scores, written * kMostWindow * kColumnScoresBytes);
  for (int layer = 0; layer < plan.layers; ++layer) {
    const Matrix recurrent = layer == 0 ? kRecurrent : kUpperRecurrent;
    add(s.recurrent[layer], (batch.beam > 0 ? 4 : 8) * passes(recurrent) * (slot_room + 1));
    add(s.cells[layer], 4 * tiles_of_block(recurrent) * kTileUnits * slot_room);
  }
  add(s.output_bias, 4 * tiles_of_block(kOutput) * kTileRows);
  add(s.projection_bias, 4 * tiles_of_block(kProjection) * kTileRows);
  add(s.tiles, int64_t{kMatrices} * kBlockTilesBytes);
  const int64_t merged = list + (model.durationCount + 1) / 2;
  add(s.columns, columns * (batch.beam > 0 ? merged * static_cast<int64_t>(sizeof(ListPart))
                                           : int64_t{kRoundsKept * kColumnBytes}));
  if (batch.waiting > 0)
    add(s.levels, batch.utterances * (kLevelsBytes + (2 * batch.beam + batch.waiting) * int64_t{kPathBytes}));
  add(s.slots,
      int64_t{slot_room} * (batch.beam > 0 ? kHypothesisBytes : (1 + kRoundsKept) * kSlotBytes + 8) + kJobBytes);
  int64_t end = 0;
  for (const auto& [at, bytes] : arrays) {
    require(at >= end, "two arrays overlap");
    end = at + bytes;
  }
  require(end <= s.weights && s.weights <= s.total && s.total <= plan.shared_bytes, "the arrays find no room");
  require(batch.weight_bytes == s.total - s.weights, "the room for weights is another one");
  require(plan.joiner_stride >= model.joinerSize * plan.element_bytes, "a row of activations is too short");
  require(plan.state_stride >= model.hiddenSize * plan.element_bytes, "a row of states is too short");
  // A warp's loads of 16 bytes of eight rows meet each bank once.
  require(plan.joiner_stride / 64 % 2 == 1 && plan.state_stride / 64 % 2 == 1, "rows meet in the same banks");
  // The kernel divides pieces by numbers that are right for dividends below 2^16.
  constexpr int64_t kDividends = 1 << 16;
  const int64_t joiner = int64_t{plan.tiles[kOutput].k_tiles} * kKTileBytes;
  require(columns * joiner / 16 < kDividends && int64_t{slot_room} * plan.state_stride / 8 < kDividends &&
              parts < kDividends && columns * merged < kDividends,
          "an index of pieces has more than 16 bits");
}

// most_symbols: in a frame, by levels; 0: not by levels.
void check_beams(const prnnTransducerModel_t& model, const SearchPlan& plan, int64_t n, int beam, int most_symbols) {
  const int64_t waiting = most_symbols > 0 ? beam * (most_symbols + 1) : 0;
  const BatchPlan batch = plan_batch(plan, n, beam, waiting);
  if (batch.blocks == 0) return;  // no room
  require(batch.groups >= 1 && batch.groups <= n, "a group has no utterance");
  require(batch.blocks * batch.groups <= plan.multiprocessors, "more blocks than multiprocessors");
  const int width = beam * (waiting > 0 ? 2 : 1);
  require(batch.utterances >= 1 && batch.slots == batch.utterances * width, "slots");
  require(waiting == 0 || (batch.window == 1 && batch.column_tiles == batch.slot_tiles()), "columns of a level");
  require(batch.window >= 1 && batch.window <= kMostWindow, "frames of a window");
  require(batch.slots * batch.window <= batch.column_tiles * kTileColumns, "frames have no column");
  const int slot_tiles = batch.slot_tiles();
  require(slot_tiles == 1 || slot_tiles == 2 || slot_tiles == 4, "slot tiles");
  require(batch.column_tiles == slot_tiles || (batch.column_tiles == 2 * slot_tiles && slot_tiles < 4), "column tiles");
  require(batch.entries <= 8 * 32, "a lane has more pieces than it counts");
  check_shares(batch);
  check_layout(model, plan, batch);
}

void check_batches(const prnnTransducerModel_t& model, const SearchPlan& plan) {
  for (int64_t n : {1, 2, 3, 7, 8, 16, 17, 24, 25, 128, 1024}) {
    const BatchPlan batch = plan_batch(plan, n);
    require(batch.blocks >= 1 && batch.groups >= 1 && batch.groups <= n, "a group has no utterance");
    require(batch.blocks * batch.groups <= plan.multiprocessors, "more blocks than multiprocessors");
    require(batch.slots >= 1 && batch.slots <= kSlots, "slots");
    require(batch.window >= 1 && batch.window <= kMostWindow, "frames of a window");
    require(batch.slots * batch.window <= batch.column_tiles * kTileColumns, "frames have no column");
    require(batch.column_tiles >= 1 && batch.column_tiles <= kMostGreedyTiles, "column tiles");
    check_shares(batch);
    check_layout(model, plan, batch);
    for (int beam = 1; beam <= kMostBeam; ++beam) {
      if (model.durationCount == 0) check_beams(model, plan, n, beam, 0);
      for (int most_symbols : {1, 8}) check_beams(model, plan, n, beam, most_symbols);
    }
  }
}

int run(const prnnTransducerModel_t& model) {
  for (int i = 0; i < gpu_row_count(); ++i) {
    const GpuRow* const row = gpu_row(i);
    if (row->arch < 80) continue;
    SearchPlan plan;
    if (!plan_search(model, row->multiprocessors, row->shared_bytes, plan)) {
      std::printf("%s: no room\n", row->name);
      continue;
    }
    check_batches(model, plan);
    std::printf("%s:", row->name);
    for (int64_t n : {1, 16, 128}) {
      const BatchPlan batch = plan_batch(plan, n);
      std::printf("%s %d x %d blocks, %d slots of %d frames", n > 1 ? "," : "", batch.groups, batch.blocks, batch.slots,
                  batch.window);
    }
    for (int beam : {4, 16}) {
      std::printf("; beam %d:", beam);
      for (int64_t n : {1, 16, 128}) {
        const BatchPlan batch = plan_batch(plan, n, beam);
        std::printf("%s %d x %d blocks, %d utterances, %d frames", n > 1 ? "," : "", batch.groups, batch.blocks,
                    batch.utterances, batch.window);
      }
    }
    std::printf("\n");
  }
  return 0;
}

}  // namespace
}  // namespace prnn::decode_cuda

int main(int count, char** words) {
  prnnTransducerModel_t model{};
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i], name = word.substr(0, word.find('=')), value = word.substr(name.size() + 1);
    if (name == "type") model.dataType = value == "float32" ? PRNN_DATA_FLOAT : PRNN_DATA_BFLOAT16;
    if (name == "predictor")
      model.predictor = value == "lstm"  ? PRNN_PREDICTOR_LSTM
                        : value == "gru" ? PRNN_PREDICTOR_GRU
                                         : PRNN_PREDICTOR_STATELESS;
    if (name == "layers") model.layers = std::stoll(value);
    if (name == "hidden") model.hiddenSize = std::stoll(value);
    if (name == "joiner") model.joinerSize = std::stoll(value);
    if (name == "classes") model.classes = std::stoll(value);
    if (name == "durations") model.durationCount = std::stoll(value);
  }
  return prnn::decode_cuda::run(model);
}
