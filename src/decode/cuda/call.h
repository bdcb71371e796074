// One call of a search: its prepared model and workspace cut into arrays. Made with NULL pointers it only counts.
#pragma once

#include <algorithm>
#include <type_traits>

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
    prepared.table_weights = arena.take<char>(units * 4 * model.embeddingSize * plan.element_bytes);
  }
  if (plan.layers > 1) prepared.upper_bias = arena.take<float>(units * 4);
  prepared.projection_bias = arena.take<float>(plan.tiles[kProjection].count * kTileRows);
  prepared.output_bias = arena.take<float>(plan.tiles[kOutput].count * kTileRows);
  return prepared;
}

template <class PARAMS>
void cut_rows(const SearchPlan& plan, const BatchPlan& batch, Arena& arena, PARAMS& params) {
  const int64_t slots = int64_t{batch.groups} * batch.slots;
  const int units = plan.tiles[kRecurrent].count * kTileUnits;
  for (int layer = 0; layer < plan.layers; ++layer)
    params.states[layer] = arena.take<TaggedWord>(slots * words_of(units, plan.element_bytes));
  const int joiner = plan.tiles[kProjection].count * kTileRows;
  params.projection = arena.take<TaggedWord>(slots * words_of(joiner, plan.element_bytes));
}

// Cuts what blocks exchange, all of which is zero before the search.
inline void cut_exchange(const SearchPlan& plan, const BatchPlan& batch, Arena& arena, SearchParams& params) {
  cut_rows(plan, batch, arena, params);
  const int64_t columns = int64_t{batch.groups} * kPlaces * batch.columns();
  params.keys_of_column = (batch.entries + 3) / 2 * 2;  // a word for the blank and one for the duration
  params.keys = arena.take<TaggedWord>(columns * params.keys_of_column);
  params.parts = arena.take<ListPart>(columns * (batch.entries + 1));
}
inline void cut_exchange(const SearchPlan& plan, const BatchPlan& batch, Arena& arena, BeamParams& params) {
  cut_rows(plan, batch, arena, params);
  const int64_t columns = int64_t{batch.groups} * 2 * batch.columns();
  params.parts = arena.take<ListPart>(columns * batch.parts_of_list() * batch.entries);
  params.lists = arena.take<ListPart>(columns * batch.list_room());
}

// Whether a frame may take several rounds, or end at a later one.
inline bool is_by_levels(const TransducerModel& model, const prnnTransducerBeamOptions_t& options) {
  return options.mode == PRNN_BEAM_STANDARD || model.durationCount > 0;
}

// Most symbols of an utterance's hypotheses, those included that are dropped later. By levels, K go on to the next
// level and with durations K to later frames.
inline int64_t history_room(const TransducerModel& model, const prnnTransducerBeamOptions_t& options) {
  return options.beam * most_symbols(options) * (model.durationCount > 0 ? 2 : 1);
}

// Cuts the rest of a beam search's workspace.
inline void cut_history(const TransducerModel& model, const prnnTransducerBeamOptions_t& options,
                        const BatchPlan& batch, Arena& arena, BeamParams& params) {
  params.history_room = history_room(model, options);
  params.history = arena.take<HistoryEntry>(int64_t{batch.groups} * batch.utterances * params.history_room);
}

// All but the arrays of the workspace and the flag of a search that gives up.
template <class PARAMS, class ARGS>
PARAMS params_of(const TransducerModel& model, const SearchPlan& plan, const BatchPlan& batch, const ARGS& args) {
  PARAMS params{};
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
  params.parts_of_column = Divisor(batch.beam > 0 ? batch.entries * batch.parts_of_list() : 1);
  params.frames_of_slot = Divisor(batch.window);
  params.copies_frames =
      (model.joinerSize * plan.element_bytes | reinterpret_cast<uintptr_t>(args.inputs.frames)) % 16 == 0;
  if constexpr (std::is_same_v<PARAMS, BeamParams>) {
    params.utterances = batch.utterances;
    params.width = batch.width();
    params.list_parts = batch.list_parts();
    params.list_room = batch.list_room();
    params.hypotheses = Divisor(batch.beam);
    params.parts_of_list = Divisor(batch.list_room());
    params.waiting = static_cast<int>(batch.waiting);
  }
  return params;
}

// Calls function(T()) with the model's type.
template <class Function>
auto with_type(prnnDataType_t type, Function&& function) {
  if (type == PRNN_DATA_HALF) return function(__half());
  return type == PRNN_DATA_BFLOAT16 ? function(__nv_bfloat16()) : function(float());
}

}  // namespace prnn::decode_cuda
