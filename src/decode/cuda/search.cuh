// The resident greedy search: groups of blocks that each hold a whole predictor and joiner search their utterances,
// several at once, in rounds. A round advances the predictor of the utterances that have emitted a symbol, scores a
// window of frames of each, and takes what it found. docs/decoder_kernel.md has the order of exchanges.
#pragma once

#include "decode/cuda/group.cuh"

namespace prnn::decode_cuda {

struct Candidate;

// Where the search of an utterance goes on after a window. symbol: -1: none was found.
struct Walk {
  int frame, in_frame, symbol;
};

// Work for the helpers, which they are told in shared memory.
struct Job {
  int goes_on, multiplies;  // multiplies: there are new recurrent products
};
static_assert(sizeof(Job) <= kJobBytes);

// A slot has an utterance. Some warps are helpers: they make the recurrent products and write results while the others
// go on.
template <class T, int COLUMN_TILES>
struct Search : Group<T, SearchParams, Slot, COLUMN_TILES, 1> {
  using Base = Group<T, SearchParams, Slot, COLUMN_TILES, 1>;
  using Base::block, Base::floats, Base::gain, Base::group, Base::has_frame, Base::is_recurrent, Base::kColumns,
      Base::lane, Base::memory, Base::next_utterance, Base::p, Base::round, Base::slots, Base::slots_that, Base::sums,
      Base::tiles, Base::timed_out, Base::warp, Base::windows;

  Column* const columns;
  Slot* const before;    // [kRoundsKept][kSlots]: slots as they were before rounds
  double* const scores;  // of slots, up to the last frame that is written
  Job* const job;
  bool is_helped = false;  // helpers have been told, and not been waited for

  __device__ __forceinline__ Search(const SearchParams& params, char* shared)
      : Base(params, shared),
        columns(reinterpret_cast<Column*>(shared + params.shared.columns)),
        before(slots + kSlots),
        scores(reinterpret_cast<double*>(before + kRoundsKept * kSlots)),
        job(reinterpret_cast<Job*>(scores + kSlots)) {}

  __device__ __forceinline__ Column* columns_of(uint32_t of_round) const {
    return columns + of_round % kRoundsKept * kColumns;
  }
  __device__ __forceinline__ Slot* slots_before(uint32_t of_round) const {
    return before + of_round % kRoundsKept * kSlots;
  }
  // The windows of a round that has begun with these slots; by whole warps. They change when utterances begin or end.
  __device__ __forceinline__ void share_columns(const Slot* all) {
    const unsigned live = __ballot_sync(kWholeWarp, lane < p.slots && all[lane].is_live());
    if (live != windows.live) windows = SharedWindows(live, kColumns);
  }

  // ---- utterances ----

  // Free slots take the next utterances of the group. Returns whether a slot has one.
  __device__ __forceinline__ bool take_utterances() {
    const int free = __popc(slots_that([](const Slot& slot) { return slot.utterance < 0; }));
    const int left = (static_cast<int>(p.options.batch) - next_utterance + p.sizes.replicas - 1) / p.sizes.replicas;
    if (left > 0) {
      sync_threads();
      if (threadIdx.x == 0) begin_utterances();
      next_utterance += min(free, left) * p.sizes.replicas;
      sync_threads();
    }
    return left > 0 || free < p.slots;
  }
  __device__ __forceinline__ void begin_utterances() {
#pragma unroll 1
    for (int s = 0, n = next_utterance; s < p.slots && n < p.options.batch; ++s) {
      Slot& taken = slots[s];
      if (taken.utterance >= 0) continue;
      const int frames = static_cast<int>(p.options.maxFrames);
      taken.utterance = n;
      taken.begins = 1;
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
#pragma unroll 1
        for (int i = 0; i < p.model.context; ++i)
          taken.context[i] = has_begun ? p.state.context[taken.stream * p.model.context + i] : taken.symbol;
      }
      n += p.sizes.replicas;
    }
  }

  // Writes an utterance's results and state after its last round, by one thread.
  __device__ __forceinline__ void write_end(const Slot& slot, int frame, int count, double score) const {
    p.outputs.counts[slot.utterance] = count;
    if (p.outputs.scores != nullptr) p.outputs.scores[slot.utterance] = score;
    if (!p.has_state) return;
    p.state.ahead[slot.stream] = max(0, frame - slot.length);
    if (p.state.score != nullptr) p.state.score[slot.stream] = score;
    if (p.bias.nodes > 0) p.state.node[slot.stream] = slot.node;
    if (!is_recurrent()) {
#pragma unroll 1
      for (int i = 0; i < p.model.context; ++i) p.state.context[slot.stream * p.model.context + i] = slot.context[i];
    }
  }

  // ---- scores: search_scores.cuh ----

  __device__ __forceinline__ int64_t row_of(int column, uint32_t of_round) const {
    return (static_cast<int64_t>(group) * kPlaces + of_round % kPlaces) * kColumns + column;
  }
  __device__ __forceinline__ TaggedWord* keys_of(int column, uint32_t of_round) const {
    return p.keys + row_of(column, of_round) * p.keys_of_column;
  }
  __device__ __forceinline__ ListPart* parts_of(int column, uint32_t of_round) const {
    return p.parts + row_of(column, of_round) * (p.entries + 1);
  }

  __device__ __forceinline__ void publish_keys(Candidate (&candidates)[COLUMN_TILES], int entry) const;
  __device__ __forceinline__ void publish_sums(const Candidate (&candidates)[COLUMN_TILES],
                                               LogSum (&log_sums)[COLUMN_TILES], int entry) const;
  __device__ __forceinline__ void score_columns();
  __device__ __forceinline__ bool read_keys();
  __device__ __forceinline__ ColumnScores score_of(int column, const Column& found, int node, uint32_t of_round);

  // ---- rounds ----

  // Goes through the window's frames up to a symbol, of which the lanes of a warp have one each.
  // visit(frame of the window, frame, symbol or -1, duration): of each.
  template <class Visit>
  __device__ __forceinline__ Walk walk(const Slot& slot, const Column& own, const Visit& visit) const {
    const unsigned stops = __ballot_sync(kWholeWarp, own.symbol >= 0 || own.duration != 1);
    Walk walk = {slot.frame, slot.in_frame, -1};
    int at = 0;
#pragma unroll 1
    while (walk.symbol < 0 && at < windows.window && walk.frame < slot.length) {
      const unsigned later_stops = stops >> at;
      const int left = min(windows.window - at, slot.length - walk.frame),
                blanks = later_stops != 0 ? min(__ffs(static_cast<int>(later_stops)) - 1, left) : left;
      if (blanks > 0) {
#pragma unroll 1
        for (int i = 0; i < blanks; ++i) visit(at++, walk.frame++, -1, 1);
        walk.in_frame = 0;
        continue;
      }
      const int symbol = __shfl_sync(kWholeWarp, own.symbol, at);
      int duration = __shfl_sync(kWholeWarp, own.duration, at);
      if (symbol >= 0) {
        walk.symbol = symbol;
        ++walk.in_frame;
        if (walk.in_frame >= p.options.maxSymbols) duration = max(1, duration);
      }
      if (duration > 0) walk.in_frame = 0;
      visit(at, walk.frame, symbol, duration);
      walk.frame += duration;
      at += duration;
    }
    return walk;
  }
  __device__ __forceinline__ Column column_of_lane(int s, const Column* found) const {
    return lane < windows.window ? found[windows.first_column(s) + lane] : Column{-1, 1};
  }

  // Warp s for slot s: where the search goes on. What has been found is written later: write_round(). Returns to one
  // lane whether the slot has become free.
  __device__ __forceinline__ bool take_frames() {
    const int s = warp;
    if (s >= p.slots) return false;
    Slot& slot = slots[s];
    Slot& was = slots_before(round)[s];
#pragma unroll 1
    for (int i = lane; i < static_cast<int>(sizeof(Slot) / sizeof(int)); i += 32)
      reinterpret_cast<int*>(&was)[i] = reinterpret_cast<const int*>(&slot)[i];
    __syncwarp();
    if (was.utterance < 0) return false;
    const bool closed = was.closes != 0;
    Walk found = {was.frame, was.in_frame, -1};
    if (!closed) found = walk(was, column_of_lane(s, columns_of(round)), [](int, int, int, int) {});
    if (lane != 0) return false;
    const bool ends = closed || found.frame >= was.length;
    slot.begins = 0;
    slot.frame = found.frame;
    slot.in_frame = found.in_frame;
    slot.step = found.symbol >= 0 && (!ends || p.has_state) ? Step::kAdvance : Step::kNone;
    slot.closes = !closed && ends && p.has_state;
    const bool is_free = closed || (ends && !p.has_state);
    if (is_free) slot.utterance = -1;
    if (found.symbol < 0) return is_free;
    ++slot.count;
    slot.has_changed = 1;
    slot.symbol = found.symbol;
    if (p.bias.nodes > 0) slot.node = p.bias.next[was.node * p.model.classes + found.symbol];
    if (!is_recurrent()) {
#pragma unroll 1
      for (int i = 0; i + 1 < p.model.context; ++i) slot.context[i] = was.context[i + 1];
      slot.context[p.model.context - 1] = found.symbol;
    }
    return is_free;
  }

  // ---- results, by helpers ----

  __device__ __forceinline__ ColumnScores* scores_of(int place) const {
    return reinterpret_cast<ColumnScores*>(memory + p.shared.scores) + place * kMostWindow;
  }
  // The scores of the frames that a round has passed over in the block's slot at a place among its own, a warp a frame.
  __device__ __forceinline__ void score_slot(uint32_t of_round, int place, int helper) {
    const Slot* const all = slots_before(of_round);
    const int s = block + place * p.blocks;
    share_columns(all);
    if (!all[s].is_live()) return;
    const Column* const found = columns_of(of_round);
    const int node = all[s].node, first_column = windows.first_column(s);
    walk(all[s], column_of_lane(s, found), [&](int at, int, int, int) {
      if (at % kHelpers != helper) return;
      const ColumnScores its = score_of(first_column + at, found[first_column + at], node, of_round);
      if (lane == 0) scores_of(place)[at] = its;
    });
  }
  // Writes what has been found, by a warp.
  __device__ __forceinline__ void write_slot(uint32_t of_round, int place) {
    const Slot* const all = slots_before(of_round);
    const int s = block + place * p.blocks;
    share_columns(all);
    const Slot& was = all[s];
    if (was.utterance < 0) return;
    double score = was.begins != 0 ? was.score : scores[s];
    int count = was.count, frame = was.frame;
    if (was.closes == 0) {
      const Column own = column_of_lane(s, columns_of(of_round));
      frame = walk(was, own, [&](int at, int its_frame, int symbol, int duration) {
                const ColumnScores its = scores_of(place)[at];
                score += static_cast<double>(its.log_prob) + static_cast<double>(its.duration_log_prob);
                if (symbol < 0) return;
                score += static_cast<double>(its.gain);
                if (lane == 0) emit(was, symbol, its_frame, duration, its);
                ++count;
              }).frame;
    }
    __syncwarp();
    if (lane != 0) return;
    if (was.closes != 0 || (frame >= was.length && !p.has_state)) write_end(was, frame, count, score);
    scores[s] = score;
  }

  __device__ __forceinline__ void emit(const Slot& slot, int symbol, int frame, int duration,
                                       const ColumnScores& its) const {
    const int64_t at = slot.utterance * p.options.maxFrames * p.options.maxSymbols + slot.count;
    p.outputs.symbols[at] = symbol;
    if (p.outputs.frames != nullptr) p.outputs.frames[at] = frame;
    if (p.outputs.durations != nullptr) p.outputs.durations[at] = duration;
    if (p.outputs.logProbs != nullptr) static_cast<float*>(p.outputs.logProbs)[at] = its.log_prob;
    if (p.outputs.confidences != nullptr) static_cast<float*>(p.outputs.confidences)[at] = its.confidence;
  }

  // ---- helpers ----

  __device__ __forceinline__ void tell_helpers(Job told) {
    if (threadIdx.x == 0) *job = told;
    arrive_at(kTold);
    is_helped = true;
  }
  __device__ __forceinline__ void wait_for_helpers() {
    if (is_helped) wait_at(kHelped);
    is_helped = false;
  }

  // A helper's part of the rounds: the recurrent products for the next symbol, which the next round waits for, and then
  // the results of the round before, which the round after that one waits for.
  __device__ __forceinline__ void help() {
    const int helper = warp - kWarps, own_slots = (p.slots - block + p.blocks - 1) / p.blocks;  // none: at most 0
    for (;;) {
      wait_at(kTold);
      if (job->goes_on == 0) return;
      ++round;
#pragma unroll 1
      for (int layer = 0; job->multiplies != 0 && layer < p.layers; ++layer)
        this->multiply_recurrent(layer, helper, kHelpers);
      arrive_at(kHelped);
#pragma unroll 1
      for (int place = 0; place < own_slots; ++place) score_slot(round - 1, place, helper);
      if (own_slots > 0) sync_helpers();
#pragma unroll 1
      for (int place = kHelpers - 1 - helper; place < own_slots; place += kHelpers) write_slot(round - 1, place);
    }
  }

  __device__ __forceinline__ bool go_round(bool goes_on) {
    if (!this->make_columns([&](bool has_stepped) { tell_helpers({1, has_stepped ? 1 : 0}); }) || !goes_on)
      return false;
    score_columns();
    if (!read_keys()) return false;
    if (p.has_state) {
      this->write_states();
      sync_threads();
    }
    return true;
  }
  __device__ __forceinline__ void run() {
    this->load_weights();
    if (threadIdx.x < kRoundsKept * kSlots) before[threadIdx.x].utterance = -1;
    this->begin();
    bool may_take = true, goes_on = true;  // may_take: a slot may be free
    for (;;) {
      if (may_take) goes_on = take_utterances();
      share_columns(slots);
      wait_for_helpers();
      if (!go_round(goes_on)) break;
      may_take = sync_threads_or(take_frames());
    }
    wait_for_helpers();
    tell_helpers({0, 0});
  }
};

template <class T, int COLUMN_TILES>
__global__ void __launch_bounds__(kThreads + kHelperThreads, 1)
    search_kernel(const __grid_constant__ SearchParams params) {
  extern __shared__ __align__(128) char memory[];
  Search<T, COLUMN_TILES> search(params, memory);
  if (threadIdx.x < kThreads) {
    search.run();
  } else {
    search.help();
  }
}

}  // namespace prnn::decode_cuda

#include "decode/cuda/search_scores.cuh"
