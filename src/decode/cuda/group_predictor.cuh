// A round's step of the predictor: the states of layers, their exchange, and the projection.
#pragma once

#include "decode/cuda/group.cuh"

namespace prnn::decode_cuda {

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
#pragma unroll 1
  for (int i = threadIdx.x; i < own.count * kTileUnits * kTileColumns; i += kThreads) {  // whole warps
    const int own_unit = i / kTileColumns, unit = own.first * kTileUnits + own_unit;
    bool steps[SLOT_TILES];
    UnitForward results[SLOT_TILES];
#pragma unroll
    for (int r = 0; r < SLOT_TILES; ++r) {
      const int s = r * kTileColumns + i % kTileColumns;
      steps[r] = s < p.slots && advances(s);
      results[r] = {};
      if (!steps[r] || unit >= p.model.hiddenSize) continue;
      const bool begins = slots[s].step == Step::kBegin;
      const int from = slots[s].parent(s);
      const Gates of_symbol =
          static_cast<const Gates*>(p.prepared.table)[static_cast<int64_t>(slots[s].symbol) * p.units + unit];
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
      const int s = r * kTileColumns + i % kTileColumns;
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
  gather(
      p.slots * static_cast<int>(pieces.divisor),
      [&](int i) -> const void* { return (wanted >> quotient(i, pieces) & 1) != 0 ? rows + 2 * i : nullptr; },
      [](const void* from) { return load_tagged(from); },
      [&](const TwoLongs& v) {
        return static_cast<uint32_t>(v.first >> 32) == round && static_cast<uint32_t>(v.second >> 32) == round;
      },
      [&](int i, const TwoLongs& v) {
        const int row = quotient(i, pieces), piece = i - row * static_cast<int>(pieces.divisor);
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

// The product of a matrix and the states of a layer, into `results`.
template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::multiply_states(int matrix, int layer,
                                                                                                  float* results) {
  multiply_rows<T, SLOT_TILES, kLoadsAhead>(
      tiles[matrix], ahead, shared_address(memory + p.shared.states[layer]), last_slot(), p.state_stride, SLOT_TILES,
      sums(), [&](int tile, int rows, const PassSums<SLOT_TILES>& of_pass) {
        add_up(of_pass, rows, results + tile * kTileRows * kGatesStride, kGatesStride);
      });
}

// The recurrent products with the present h, for the next symbol, by some warps of the block.
template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::multiply_recurrent(int layer,
                                                                                                     int own_warp,
                                                                                                     int warps) {
  const int matrix = layer == 0 ? kRecurrent : kUpperRecurrent;
  float* const results = floats(p.shared.recurrent[layer]);
  if constexpr (kHalves == 2) {
    multiply_halves<T>(tiles[matrix], shared_address(memory + p.shared.states[layer]), last_slot(), p.state_stride,
                       results, kGatesStride, own_warp, warps);
  } else if constexpr (SLOT_TILES <= 2) {  // more leave too few registers
    multiply_rows_apart<T, SLOT_TILES>(tiles[matrix], shared_address(memory + p.shared.states[layer]), last_slot(),
                                       p.state_stride, results, kGatesStride, own_warp, warps);
  } else {
    sync_threads();
    multiply_states(matrix, layer, results);
  }
}

// One round's steps of the predictors, up to their projections in shared memory, and the copies of frames.
// meanwhile(whether there are new recurrent products): once, while the projections are on their way, if there are some.
template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
template <class Meanwhile>
__device__ __forceinline__ bool Group<T, PARAMS, SLOT, COLUMN_TILES, SLOT_TILES>::step_predictors(
    const Meanwhile& meanwhile) {
  const unsigned stepping = slots_that([](const SLOT& slot) { return slot.step != Step::kNone; });
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
  multiply_rows<T, SLOT_TILES, kLoadsAhead>(
      tiles[kProjection], ahead, shared_address(memory + p.shared.states[top()]), last_slot(), p.state_stride,
      SLOT_TILES, sums(), [&](int tile, int rows, const PassSums<SLOT_TILES>& of_pass) {
        const int row = (own.first + tile) * kTileRows + lane;
        const bool is_row = lane < rows;
        const float bias = is_row ? p.prepared.projection_bias[row] : 0;
#pragma unroll
        for (int s = warp; s < kSlotRoom; s += kWarps) {
          if ((projected >> s & 1) == 0) continue;
          const float value = of_pass(lane, s) + bias;
          const float next = kPerWord == 2 ? __shfl_down_sync(kWholeWarp, value, 1) : 0;
          publish_tagged(is_row && row % kPerWord == 0, published + s * row_words + row / kPerWord,
                         Element<T>::pack(value, next), round);
        }
      });
}

}  // namespace prnn::decode_cuda
