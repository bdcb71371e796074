// A round's step of the predictor: the states of layers, their exchange, and the projection.
#pragma once

#include "decode/cuda/group.cuh"

namespace prnn::decode_cuda {

// Which slots step. A beam search, of whose slots few do, puts them side by side for the products: lane i has the i-th
// of them, or the last.
template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::list_stepping() {
  stepping = slots_that([](const SLOT& slot) { return slot.step != Step::kNone; });
  stepping_count = SLOT::kHasParents ? __popc(stepping) : p.slots;
  if (!SLOT::kHasParents) return;
  unsigned left = stepping;
#pragma unroll 1
  for (int i = 0; i < lane && (left & (left - 1)) != 0; ++i) left &= left - 1;
  stepping_of_lane = left != 0 ? __ffs(static_cast<int>(left)) - 1 : 0;
}

// Units of a layer that this block has, of the slots whose predictors read a symbol. The upper layer's input products
// are in `results`. The same lanes have all slots of a unit: a slot may go on from the state of another one, which goes
// on itself.
template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
template <prnnRNNMode_t MODE>
__device__ __forceinline__ void Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::step_cells(int layer) {
  const Share own = units_of(layer).share;
  const float* const recurrent = floats(p.shared.recurrent[layer]);
  const float* const inputs = floats(p.shared.results);
  float* const cells = floats(p.shared.cells[layer]);
  TaggedWord* const published = p.states[layer] + static_cast<int64_t>(group) * p.slots * words(p.units);
  int own_slots[SLOT_TILES];
#pragma unroll
  for (int r = 0; r < SLOT_TILES; ++r) own_slots[r] = stepping_slot(r * kTileColumns + lane % kTileColumns);
#pragma unroll 1
  for (int i = threadIdx.x; i < own.count * kTileUnits * kTileColumns; i += kThreads) {  // whole warps
    const int own_unit = i / kTileColumns, unit = own.first * kTileUnits + own_unit;
    bool steps[SLOT_TILES];
    UnitForward results[SLOT_TILES];
#pragma unroll
    for (int r = 0; r < SLOT_TILES; ++r) {
      const int s = own_slots[r];
      steps[r] = r * kTileColumns + i % kTileColumns < stepping_count && advances(s);
      results[r] = {};
      if (!steps[r] || unit >= p.model.hiddenSize) continue;
      Gates of_symbol{};
      if (layer == 0)
        of_symbol = static_cast<const Gates*>(p.prepared.table)[static_cast<int64_t>(slots[s].symbol) * p.units + unit];
      const bool begins = slots[s].step == Step::kBegin;
      const int from = slots[s].parent(s);
      float gate[4];
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        const int row = own_unit * 4 + g;
        const float input = layer == 0 ? Element<T>::to_float(of_symbol.of[g])
                                       : inputs[row * kGatesStride + s] + p.prepared.upper_bias[unit * 4 + g];
        float product = recurrent[row * kHalves * kGatesStride + from];
        if (kHalves == 2) product += recurrent[(row * kHalves + 1) * kGatesStride + from];
        const float sum = input + (begins ? 0 : product);
        gate[g] = Cell<MODE>::template activate<kDigits>(sum, g, 0);
      }
      float before = 0;
      if (!begins) {
        before = Cell<MODE>::kHasCellState
                     ? cells[own_unit * kSlotRoom + from]
                     : Element<T>::to_float(reinterpret_cast<const T*>(state_row(layer, from))[unit]);
      }
      results[r] = Cell<MODE>::template forward<kDigits>(gate, before);
    }
    if (SLOT::kHasParents) __syncwarp();
#pragma unroll
    for (int r = 0; r < SLOT_TILES; ++r) {
      const int s = own_slots[r];
      if (Cell<MODE>::kHasCellState && steps[r] && unit < p.model.hiddenSize)
        cells[own_unit * kSlotRoom + s] = results[r].carried;
      publish_elements(published, words(p.units), s, unit, results[r].h, steps[r]);
    }
  }
}

// Elements of a slot's row, of which lane + kTileColumns has the next one.
template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::publish_elements(
    TaggedWord* rows, int row_words, int s, int element, float value, bool valid) const {
  const float next = kPerWord == 2 ? __shfl_down_sync(kWholeWarp, value, kTileColumns) : 0;
  publish_tagged(valid && element % kPerWord == 0, rows + s * row_words + element / kPerWord,
                 Element<T>::pack(value, next), round);
}

// Waits for the rows of these slots into shared memory. False: give up.
template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ bool Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::gather_rows(const TaggedWord* rows,
                                                                                              const Divisor& pieces,
                                                                                              char* to, int stride,
                                                                                              unsigned wanted) {
  const int in_row = static_cast<int>(pieces.divisor);
  unsigned left = wanted;
  int turn = 0;
  gather(
      __popc(wanted) * in_row,
      [&](int i) {
        const int its_turn = quotient(i, pieces);
#pragma unroll 1
        for (; turn < its_turn; ++turn) left &= left - 1;
        return (__ffs(static_cast<int>(left)) - 1 - its_turn) * in_row + i;
      },
      [&](int index) { return load_tagged(rows + 2 * index); },
      [&](const TwoLongs& v) {
        return static_cast<uint32_t>(v.first >> 32) == round && static_cast<uint32_t>(v.second >> 32) == round;
      },
      [&](int index, const TwoLongs& v) {
        const int row = quotient(index, pieces), piece = index - row * in_row;
        *reinterpret_cast<uint2*>(to + row * stride + piece * 8) = {static_cast<uint32_t>(v.first),
                                                                    static_cast<uint32_t>(v.second)};
      },
      p.timed_out, timed_out);
  return !sync_threads_or(timed_out);
}

template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::step_cells_of(int layer) {
  if (p.model.predictor == PRNN_PREDICTOR_LSTM) {
    step_cells<PRNN_LSTM>(layer);
  } else {
    step_cells<PRNN_GRU>(layer);
  }
}

template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ bool Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::gather_states(int layer,
                                                                                                unsigned advancing) {
  return gather_rows(p.states[layer] + static_cast<int64_t>(group) * p.slots * words(p.units), p.state_pieces,
                     memory + p.shared.states[layer], p.state_stride, advancing);
}

// States of streams that go on: h of all units, c of the own ones.
template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::resume_states() {
  const int hidden = static_cast<int>(p.model.hiddenSize);
#pragma unroll 1
  for (int s = warp; s < p.slots; s += kWarps) {
    if (slots[s].step != Step::kResume) continue;
#pragma unroll 1
    for (int layer = 0; layer < p.layers; ++layer) {
      const int64_t row = (static_cast<int64_t>(slots[s].stream) * p.layers + layer) * hidden;
#pragma unroll 1
      for (int i = lane; i < hidden; i += 32)
        reinterpret_cast<T*>(state_row(layer, s))[i] = static_cast<const T*>(p.state.h)[row + i];
      if (p.model.predictor != PRNN_PREDICTOR_LSTM) continue;
      const Share own = units_of(layer).share;
#pragma unroll 1
      for (int i = lane; i < own.count * kTileUnits; i += 32) {
        const int unit = own.first * kTileUnits + i;
        if (unit < hidden)
          floats(p.shared.cells[layer])[i * kSlotRoom + s] = static_cast<const float*>(p.state.c)[row + unit];
      }
    }
  }
}

// The output of a stateless predictor, by every block for itself.
template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::sum_embeddings() {
  const int hidden = static_cast<int>(p.model.hiddenSize), context = static_cast<int>(p.model.context);
#pragma unroll 1
  for (int i = threadIdx.x; i < p.slots * hidden; i += kThreads) {
    const int s = i / hidden, element = i % hidden;
    if (slots[s].step == Step::kNone) continue;
    float sum = 0;
#pragma unroll 1
    for (int k = 0; k < context; ++k) {
      const int64_t row = k * p.model.classes + slots[s].context[k];
      sum += Element<T>::to_float(static_cast<const T*>(p.prepared.embedding)[row * hidden + element]);
    }
    if (p.model.predictorRelu != 0 && sum < 0) sum = 0;
    reinterpret_cast<T*>(state_row(0, s))[element] = Element<T>::from_float(sum);
  }
  sync_threads();
}

// The states of a layer as columns of a product: those of all slots, or a beam's that step.
template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ LaneColumns<SLOT_TILES> Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::columns_of_states(
    int layer) const {
  return {memory + p.shared.states[layer], p.state_stride,
          [&](int i) { return SLOT::kHasParents ? stepping_slot(i) : min(i, p.slots - 1); }};
}

// The product of a matrix and the states of a layer, into `results`.
template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::multiply_states(int matrix, int layer,
                                                                                                  float* results) {
  const int to = column_of_product(lane % kSlotRoom);
  multiply_rows<T, SLOT_TILES>(tiles[matrix], ahead, columns_of_states(layer), used_slot_tiles(), sums(),
                               [&](int tile, int rows, const PassSums<SLOT_TILES>& of_pass) {
                                 add_up(of_pass, rows, results + tile * kTileRows * kGatesStride, kGatesStride, to);
                               });
}

// The recurrent products with the present h, for the next symbol, by some warps of the block, in a beam search by all.
template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::multiply_recurrent(int layer,
                                                                                                     int own_warp,
                                                                                                     int warps) {
  const int matrix = layer == 0 ? kRecurrent : kUpperRecurrent;
  float* const results = floats(p.shared.recurrent[layer]);
  const LaneColumns<SLOT_TILES> columns = columns_of_states(layer);
  if constexpr (kHalves == 2) {
    multiply_halves<T>(tiles[matrix], columns.own[0], results, kGatesStride, own_warp, warps);
  } else {
#pragma unroll
    for (int c = 0; c < SLOT_TILES; ++c) {
      if (c >= used_slot_tiles()) break;
      multiply_rows_apart<T>(tiles[matrix], columns.own[c], results, kGatesStride,
                             [&](int i) { return column_of_product(c * kTileColumns + i); });
    }
  }
}

// One round's steps of the predictors, up to their projections in shared memory, and the copies of frames.
// meanwhile(whether there are new recurrent products): once, while the projections are on their way, if there are some.
template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
template <class Meanwhile>
__device__ __forceinline__ bool Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::step_predictors(
    const Meanwhile& meanwhile) {
  list_stepping();
  const unsigned advancing = slots_that([](const SLOT& slot) { return slot.step > Step::kResume; });
  const unsigned projected = slots_that([](const SLOT& slot) { return slot.step != Step::kNone && slot.closes == 0; });
  const bool steps_cells = stepping != 0 && is_recurrent();
  if (steps_cells && stepping != advancing) resume_states();
#pragma unroll 1
  for (int layer = 0; layer == 0 || (steps_cells && layer < p.layers); ++layer) {
    if (layer > 0) {
      multiply_states(kUpperInput, 0, floats(p.shared.results));
      sync_threads();
    }
    if (steps_cells) step_cells_of(layer);
    if (layer == 0) copy_frames();
    if (stepping != 0) load_ahead(layer + 1 < p.layers ? kUpperInput : kProjection);
    if (steps_cells && !gather_states(layer, advancing)) return false;
  }
  if (stepping != 0 && !is_recurrent()) sum_embeddings();
  const int row_words = words(p.tiles[kProjection].count * kTileRows);
  TaggedWord* const published = p.projection + static_cast<int64_t>(group) * p.slots * row_words;
  if (stepping != 0) project(published, row_words, projected);
  meanwhile(steps_cells);
  load_ahead(kOutput);
  wait_for_copies();
  return gather_rows(published, p.projection_pieces, memory + p.shared.projection, p.joiner_stride, projected);
}

// The own rows of the projection, published.
template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::project(TaggedWord* published,
                                                                                          int row_words,
                                                                                          unsigned projected) {
  const Share own = tiles[kProjection].share;
  multiply_rows<T, SLOT_TILES>(
      tiles[kProjection], ahead, columns_of_states(top()), used_slot_tiles(), sums(),
      [&](int tile, int rows, const PassSums<SLOT_TILES>& of_pass) {
        const int row = (own.first + tile) * kTileRows + lane;
        const bool is_row = lane < rows;
        const float bias = floats(p.shared.projection_bias)[tile * kTileRows + (is_row ? lane : 0)];
#pragma unroll
        for (int i = warp; i < kSlotRoom; i += kWarps) {
          const int s = column_of_product(i);
          if (s < 0 || (projected >> s & 1) == 0) continue;
          const float value = of_pass(lane, i) + bias;
          const float next = kPerWord == 2 ? __shfl_down_sync(kWholeWarp, value, 1) : 0;
          publish_tagged(is_row && row % kPerWord == 0, published + s * row_words + row / kPerWord,
                         Element<T>::pack(value, next), round);
        }
      });
}

}  // namespace prnn::decode_cuda
