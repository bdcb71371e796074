// One call of the search: its prepared model and workspace cut into arrays. Made with NULL pointers it only counts.
#pragma once

#include <algorithm>

#include "core/cuda/arena.h"
#include "decode/cuda/params.h"
#include "decode/decode.h"

namespace prnn::decode_cuda {

inline Prepared cut_prepared(const TransducerModel& model, const SearchPlan& plan, Arena& arena) {
  Prepared prepared{};
  for (int m = 0; m < kMatrices; ++m) {
    const int64_t vecs = int64_t{plan.tiles[m].count} * plan.tiles[m].k_tiles * kTileRows * kKTileBytes / 16;
    prepared.fragments[m] = arena.take<uint4>(vecs);
  }
  const int64_t units = int64_t{plan.tiles[kRecurrent].count} * kTileUnits;
  if (plan.layers == 0) {
    prepared.embedding = arena.take<char>(model.context * model.classes * model.hiddenSize * plan.element_bytes);
  } else {
    prepared.table = arena.take<char>(model.classes * units * 4 * plan.element_bytes);
  }
  if (plan.layers > 1) prepared.upper_bias = arena.take<float>(units * 4);
  prepared.projection_bias = arena.take<float>(plan.tiles[kProjection].count * kTileRows);
  prepared.output_bias = arena.take<float>(plan.tiles[kOutput].count * kTileRows);
  return prepared;
}

// Cuts what blocks exchange, all of which is zero before the search.
inline void cut_exchange(const SearchPlan& plan, const BatchPlan& batch, Arena& arena, SearchParams& params) {
  const int64_t slots = int64_t{batch.groups} * batch.slots;
  const int units = plan.tiles[kRecurrent].count * kTileUnits;
  for (int layer = 0; layer < plan.layers; ++layer)
    params.states[layer] = arena.take<TaggedWord>(slots * words_of(units, plan.element_bytes));
  const int joiner = plan.tiles[kProjection].count * kTileRows;
  params.projection = arena.take<TaggedWord>(slots * words_of(joiner, plan.element_bytes));
  const int64_t columns = int64_t{batch.column_tiles} * kTileColumns;
  params.parts = arena.take<ColumnPart>(batch.groups * 2 * columns * (batch.entries + 2));
}

// All but the arrays of the exchange and the flag of a search that gives up.
inline SearchParams params_of(const TransducerModel& model, const SearchPlan& plan, const BatchPlan& batch,
                              const TransducerSearchArgs& args) {
  SearchParams params{};
  params.model = model;
  Arena prepared(const_cast<void*>(args.prepared));
  params.prepared = cut_prepared(model, plan, prepared);
  params.options = args.options;
  params.inputs = args.inputs;
  if (args.inputs.bias != nullptr) params.bias = *args.inputs.bias;
  params.has_state = args.state != nullptr;
  if (params.has_state) params.state = *args.state;
  params.outputs = args.outputs;
  for (int m = 0; m < kMatrices; ++m) params.tiles[m] = batch.tiles[m];
  params.shared = batch.shared;
  params.weight_bytes = batch.weight_bytes;
  params.joiner_stride = plan.joiner_stride;
  params.state_stride = plan.state_stride;
  params.blocks = batch.blocks;
  params.entries = batch.entries;
  params.sizes = {batch.groups, 1};
  params.slots = batch.slots;
  params.window = batch.window;
  params.class_tiles = plan.class_tiles(model.classes);
  params.layers = plan.layers;
  params.units = plan.tiles[kRecurrent].count * kTileUnits;
  params.state_pieces = Divisor(std::max(1, words_of(params.units, plan.element_bytes) / 2));
  params.projection_pieces = Divisor(words_of(plan.tiles[kProjection].count * kTileRows, plan.element_bytes) / 2);
  params.activation_pieces = Divisor(plan.tiles[kOutput].k_tiles * kKTileBytes / 16);
  params.parts_of_column = Divisor(batch.entries + (model.durationCount > 0 ? 2 : 1));
  params.frames_of_slot = Divisor(batch.window);
  params.copies_frames =
      (model.joinerSize * plan.element_bytes | reinterpret_cast<uintptr_t>(args.inputs.frames)) % 16 == 0;
  return params;
}

// Calls function(T()) with the model's type.
template <class Function>
auto with_type(prnnDataType_t type, Function&& function) {
  if (type == PRNN_DATA_HALF) return function(__half());
  return type == PRNN_DATA_BFLOAT16 ? function(__nv_bfloat16()) : function(float());
}

}  // namespace prnn::decode_cuda
