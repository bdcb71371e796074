// The resident greedy search: groups of blocks that each hold a whole predictor and joiner search their utterances,
// several at once, in rounds. A round advances the predictor of the utterances that have emitted a symbol, scores a
// window of frames of each, and takes what it found. docs/decoder_kernel.md has the order of exchanges.
#pragma once

#include "decode/cuda/group.cuh"

namespace prnn::decode_cuda {

// A slot has an utterance.
template <class T, int COLUMN_TILES>
struct Search : Group<T, SearchParams, Slot, COLUMN_TILES, 1> {
  using Base = Group<T, SearchParams, Slot, COLUMN_TILES, 1>;
  using Base::block, Base::floats, Base::gain, Base::group, Base::has_frame, Base::is_recurrent, Base::kColumns,
      Base::kResultsStride, Base::lane, Base::memory, Base::next_utterance, Base::p, Base::quotient, Base::round,
      Base::slot_of, Base::slots, Base::slots_that, Base::sums, Base::tiles, Base::timed_out, Base::warp, Base::writes;

  Column* const columns;

  __device__ __forceinline__ Search(const SearchParams& params, char* shared)
      : Base(params, shared), columns(reinterpret_cast<Column*>(shared + params.shared.columns)) {}

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

  // ---- scores: search_scores.cuh ----

  __device__ __forceinline__ ColumnPart* parts_of_round() const {
    return p.parts + (static_cast<int64_t>(group) * 2 + round % 2) * kColumns * (p.entries + 2);
  }

  __device__ __forceinline__ uint32_t place_and_round(int place) const {
    return static_cast<uint32_t>(place) << 16 | (round & 0xFFFF);
  }

  __device__ __forceinline__ void publish_duration(ColumnPart* parts, float logit, int place) const;
  __device__ __forceinline__ void score_columns();
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
    this->load_weights();
    this->begin();
    for (;;) {
      if (threadIdx.x == 0) take_utterances();
      __syncthreads();
      if (slots_that([](const Slot& slot) { return slot.utterance >= 0; }) == 0) return;
      if (!this->make_columns()) return;
      score_columns();
      if (!gather_parts()) return;
      if (p.has_state) this->write_states();
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

#include "decode/cuda/search_scores.cuh"
