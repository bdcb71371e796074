// The resident greedy search: groups of blocks that each hold a whole predictor and joiner search their utterances,
// several at once, in rounds. A round advances the predictor of the utterances that have emitted a symbol, scores a
// window of frames of each, and takes what it found. docs/decoder_kernel.md has the order of exchanges and why each
// array may be written again when it is.
#pragma once

#include <cmath>

#include "decode/cuda/exchange.cuh"
#include "decode/cuda/product.cuh"
#include "decode/cuda/slot.cuh"
#include "decode/cuda/summary.cuh"
#include "rnn/cuda/common/cell.cuh"

namespace prnn::decode_cuda {

template <class T, int COLUMN_TILES>
struct Search {
  static constexpr Digits kDigits = digits_of<T>();
  static constexpr int kPerWord = Element<T>::kPerWord;
  static constexpr int kColumns = COLUMN_TILES * kTileColumns;
  static constexpr int kResultsStride = kColumns + 1;  // of the output layer's, odd against bank conflicts
  static constexpr int kGatesStride = kTileColumns + 1;

  struct alignas(4 * sizeof(T)) Gates {
    T of[4];
  };

  const SearchParams& p;
  char* const memory;
  const int group, block, warp, lane;
  BlockTiles* const tiles;  // [matrix]
  Slot* slots;
  Column* columns;
  int next_utterance;  // of the first thread
  uint32_t round = 0;
  bool timed_out = false;

  __device__ __forceinline__ Search(const SearchParams& params, char* shared)
      : p(params),
        memory(shared),
        group(blockIdx.x / params.blocks),
        block(blockIdx.x % params.blocks),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        tiles(reinterpret_cast<BlockTiles*>(shared + params.shared.tiles)),
        slots(reinterpret_cast<Slot*>(shared + params.shared.slots)),
        columns(reinterpret_cast<Column*>(shared + params.shared.columns)),
        next_utterance(group) {}

  static __device__ __forceinline__ int quotient(int number, const Divisor& by) {
    return by.factor == 0 ? number : static_cast<int>(__umulhi(static_cast<unsigned>(number), by.factor));
  }
  __device__ __forceinline__ int slot_of(int column) const { return quotient(column, p.frames_of_slot); }

  __device__ __forceinline__ float* floats(int at) const { return reinterpret_cast<float*>(memory + at); }
  __device__ __forceinline__ float4* sums() const { return reinterpret_cast<float4*>(memory + p.shared.sums); }
  __device__ __forceinline__ bool is_recurrent() const { return p.layers > 0; }
  __device__ __forceinline__ int top() const { return p.layers > 1 ? 1 : 0; }
  __device__ __forceinline__ int words(int elements) const { return elements / kPerWord; }
  // Whose arrays of results this block writes.
  __device__ __forceinline__ bool writes(int slot) const { return block == slot % p.blocks; }
  __device__ __forceinline__ bool advances(int s) const {
    return slots[s].step == Step::kBegin || slots[s].step == Step::kAdvance;
  }
  __device__ __forceinline__ const BlockTiles& units_of(int layer) const {
    return tiles[layer == 0 ? kRecurrent : kUpperRecurrent];
  }
  // The slots of which something is true, a bit each; by whole warps.
  template <class Is>
  __device__ __forceinline__ unsigned slots_that(const Is& is) const {
    return __ballot_sync(kWholeWarp, lane < p.slots && is(slots[lane]));
  }

  // ---- before the first round ----

  __device__ __forceinline__ void load_weights() {
    if (threadIdx.x == 0) {
      const uint4* shared = reinterpret_cast<const uint4*>(memory + p.shared.weights);
      int room = p.weight_bytes / static_cast<int>(sizeof(uint4));
#pragma unroll 1
      for (int m = 0; m < kMatrices; ++m) {
        const int vecs = p.tiles[m].k_tiles * kTileVecs;
        const Share share = share_of(p.tiles[m], p.blocks, block);
        const int resident = min(share.count, room / vecs);
        tiles[m] = {share, p.tiles[m].k_tiles, resident, shared,
                    p.prepared.fragments[m] + static_cast<int64_t>(share.first) * vecs};
        shared += resident * vecs;
        room -= resident * vecs;
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int m = 0; m < kMatrices; ++m) {
      const BlockTiles& own = tiles[m];
      uint4* const to = const_cast<uint4*>(own.shared);
      for (int i = threadIdx.x; i < own.resident * own.k_tiles * kTileVecs; i += kThreads) to[i] = own.global[i];
    }
  }

  __device__ __forceinline__ void begin() {
    // Columns beyond the sizes of the layers stay zero, and what is multiplied without being used is a number.
    for (int i = p.shared.activations + 4 * threadIdx.x; i < p.shared.sums; i += 4 * kThreads)
      *reinterpret_cast<uint32_t*>(memory + i) = 0;
#pragma unroll 1
    for (int layer = 0; layer < p.layers; ++layer) {
      const int units = units_of(layer).share.count * kTileUnits;
      for (int i = threadIdx.x; i < units * kSlots; i += kThreads) floats(p.shared.cells[layer])[i] = 0;
    }
    const Share output = tiles[kOutput].share;
    for (int i = threadIdx.x; i < output.count * kTileRows; i += kThreads)
      floats(p.shared.output_bias)[i] = p.prepared.output_bias[output.first * kTileRows + i];
    if (threadIdx.x < kSlots) {
      slots[threadIdx.x] = {};
      slots[threadIdx.x].utterance = -1;
    }
    __syncthreads();
  }

  // ---- utterances ----

  // By the first thread: free slots take the next utterances of the group.
  __device__ __forceinline__ void take_utterances() {
    for (int s = 0; s < p.slots && next_utterance < p.options.batch; ++s) {
      Slot& taken = slots[s];
      if (taken.utterance >= 0) continue;
      const int n = next_utterance;
      next_utterance += p.sizes.replicas;
      const int frames = static_cast<int>(p.options.maxFrames);
      taken.utterance = n;
      taken.stream = p.has_state && p.state.slots != nullptr ? p.state.slots[n] : n;
      taken.length = p.inputs.lengths != nullptr ? max(0, min(p.inputs.lengths[n], frames)) : frames;
      const int ahead = p.has_state ? p.state.ahead[taken.stream] : -1;
      const bool has_begun = ahead >= 0;
      taken.frame = has_begun ? ahead : 0;
      taken.closes = taken.frame >= taken.length;
      taken.step = has_begun ? (taken.closes ? Step::kNone : Step::kResume) : Step::kBegin;
      taken.has_changed = !has_begun;
      taken.in_frame = taken.count = taken.node = 0;
      taken.score = has_begun && p.state.score != nullptr ? p.state.score[taken.stream] : 0;
      taken.symbol = static_cast<int>(p.model.blank);
      if (has_begun && p.bias.nodes > 0) taken.node = p.state.node[taken.stream];
      if (!is_recurrent()) {
        for (int i = 0; i < p.model.context; ++i)
          taken.context[i] = has_begun ? p.state.context[taken.stream * p.model.context + i] : taken.symbol;
      }
    }
  }

  __device__ __forceinline__ bool is_live(int s) const { return slots[s].utterance >= 0 && !slots[s].closes; }

  // Writes the states of utterances that end, each block its own units.
  __device__ __forceinline__ void write_states() {
#pragma unroll 1
    for (int layer = 0; layer < p.layers; ++layer) {
      const Share own = units_of(layer).share;
      for (int i = threadIdx.x; i < own.count * kTileUnits * p.slots; i += kThreads) {
        const int s = i % p.slots, own_unit = i / p.slots, unit = own.first * kTileUnits + own_unit;
        if (!slots[s].closes || !slots[s].has_changed || unit >= p.model.hiddenSize) continue;
        const int64_t at = (static_cast<int64_t>(slots[s].stream) * p.layers + layer) * p.model.hiddenSize + unit;
        static_cast<T*>(p.state.h)[at] = reinterpret_cast<const T*>(state_row(layer, s))[unit];
        if (p.model.predictor == PRNN_PREDICTOR_LSTM)
          static_cast<float*>(p.state.c)[at] = floats(p.shared.cells[layer])[own_unit * kSlots + s];
      }
    }
  }

  // The rest of it, and what was found; by one thread.
  __device__ __forceinline__ void write_end(const Slot& slot) const {
    p.outputs.counts[slot.utterance] = slot.count;
    if (p.outputs.scores != nullptr) p.outputs.scores[slot.utterance] = slot.score;
    if (!p.has_state) return;
    p.state.ahead[slot.stream] = max(0, slot.frame - slot.length);
    if (p.state.score != nullptr) p.state.score[slot.stream] = slot.score;
    if (p.bias.nodes > 0) p.state.node[slot.stream] = slot.node;
    if (!is_recurrent()) {
      for (int i = 0; i < p.model.context; ++i) p.state.context[slot.stream * p.model.context + i] = slot.context[i];
    }
  }

  // ---- the predictor: search_predictor.cuh ----

  __device__ __forceinline__ char* state_row(int layer, int s) const {
    return memory + p.shared.states[layer] + s * p.state_stride;
  }

  template <prnnRNNMode_t MODE>
  __device__ __forceinline__ void step_cells(int layer);
  __device__ __forceinline__ void publish_elements(TaggedWord* rows, int row_words, int s, int element, float value,
                                                   bool valid) const;
  __device__ __forceinline__ bool gather_rows(const TaggedWord* rows, const Divisor& pieces, char* to, int stride,
                                              unsigned wanted);
  __device__ __forceinline__ bool step_layer(int layer, unsigned advancing);
  __device__ __forceinline__ void resume_states();
  __device__ __forceinline__ void sum_embeddings();
  __device__ __forceinline__ void multiply_states(int matrix, int layer, int results);
  __device__ __forceinline__ bool step_predictors();
  __device__ __forceinline__ void publish_projections(TaggedWord* published, int row_words, unsigned projected) const;

  // ---- scores: search_scores.cuh ----

  __device__ __forceinline__ char* column_row(int column) const {
    return memory + p.shared.activations + column * p.joiner_stride;
  }

  __device__ __forceinline__ ColumnPart* parts_of_round() const {
    return p.parts + (static_cast<int64_t>(group) * 2 + round % 2) * kColumns * (p.entries + 2);
  }

  __device__ __forceinline__ uint32_t place_and_round(int place) const {
    return static_cast<uint32_t>(place) << 16 | (round & 0xFFFF);
  }

  __device__ __forceinline__ bool has_frame(int column) const {
    const int s = slot_of(column);
    return s < p.slots && is_live(s) && slots[s].frame + column - s * p.window < slots[s].length;
  }

  __device__ __forceinline__ void copy_frames();
  template <bool RELU>
  static __device__ __forceinline__ uint32_t activate_word(uint32_t frame, uint32_t projection);
  template <bool RELU>
  __device__ __forceinline__ void activate_with();
  __device__ __forceinline__ void activate_columns();
  __device__ __forceinline__ void publish_duration(ColumnPart* parts, float logit, int place) const;
  __device__ __forceinline__ void score_columns();
  __device__ __forceinline__ float gain(int column, int row) const;
  __device__ __forceinline__ bool gather_parts();
  __device__ __forceinline__ void read_columns();

  // ---- rounds ----

  // Goes through the window's frames up to a symbol; warp s for slot s.
  __device__ __forceinline__ void take_frames() {
    if (warp >= p.slots || lane != 0 || slots[warp].utterance < 0) return;
    Slot& slot = slots[warp];
    slot.step = Step::kNone;
    if (!slot.closes) {
      int at = 0, frame = slot.frame, in_frame = slot.in_frame;
      const int length = slot.length;
      double score = slot.score;
      bool emits = false;
      while (!emits && at < p.window && frame < length) {
        const Column column = columns[warp * p.window + at];
        score += static_cast<double>(column.log_prob) + static_cast<double>(column.duration_log_prob);
        int duration = column.duration;
        if (column.symbol >= 0) {
          emits = true;
          ++in_frame;
          if (in_frame >= p.options.maxSymbols) duration = max(1, duration);
          score += static_cast<double>(column.gain);
          emit(slot, column, frame, duration);
        }
        if (duration > 0) in_frame = 0;
        frame += duration;
        at += duration;
      }
      slot.frame = frame;
      slot.in_frame = in_frame;
      slot.score = score;
      const bool ends = frame >= length;
      slot.closes = ends && p.has_state;
      if (emits && (!ends || p.has_state)) slot.step = Step::kAdvance;
      if (emits) slot.has_changed = 1;
      if (!ends || p.has_state) return;
    }
    if (writes(warp)) write_end(slot);
    slot.utterance = -1;
    slot.closes = 0;
  }

  __device__ __forceinline__ void emit(Slot& slot, const Column& column, int frame, int duration) const {
    if (writes(warp)) {
      const int64_t at = slot.utterance * p.options.maxFrames * p.options.maxSymbols + slot.count;
      p.outputs.symbols[at] = column.symbol;
      if (p.outputs.frames != nullptr) p.outputs.frames[at] = frame;
      if (p.outputs.durations != nullptr) p.outputs.durations[at] = duration;
      if (p.outputs.logProbs != nullptr) static_cast<float*>(p.outputs.logProbs)[at] = column.log_prob;
      if (p.outputs.confidences != nullptr) static_cast<float*>(p.outputs.confidences)[at] = column.confidence;
    }
    ++slot.count;
    slot.symbol = column.symbol;
    if (p.bias.nodes > 0) slot.node = p.bias.next[slot.node * p.model.classes + column.symbol];
    if (!is_recurrent()) {
      for (int i = 0; i + 1 < p.model.context; ++i) slot.context[i] = slot.context[i + 1];
      slot.context[p.model.context - 1] = column.symbol;
    }
  }

  __device__ __forceinline__ void run() {
    load_weights();
    begin();
    for (;;) {
      if (threadIdx.x == 0) take_utterances();
      __syncthreads();
      if (slots_that([](const Slot& slot) { return slot.utterance >= 0; }) == 0) return;
      ++round;
      copy_frames();
      const bool steps = slots_that([](const Slot& slot) { return slot.step != Step::kNone; }) != 0;
      if (steps && !step_predictors()) return;
      asm volatile("cp.async.wait_all;" ::: "memory");
      __syncthreads();
      activate_columns();
      score_columns();
      if (!gather_parts()) return;
      if (p.has_state) write_states();
      read_columns();
      __syncthreads();
      take_frames();
      __syncthreads();
    }
  }
};

template <class T, int COLUMN_TILES>
__global__ void __launch_bounds__(kThreads, 1) search_kernel(const __grid_constant__ SearchParams params) {
  extern __shared__ __align__(128) char memory[];
  Search<T, COLUMN_TILES>(params, memory).run();
}

}  // namespace prnn::decode_cuda

#include "decode/cuda/search_predictor.cuh"
#include "decode/cuda/search_scores.cuh"
