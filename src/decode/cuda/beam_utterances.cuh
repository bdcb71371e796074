// How utterances begin and end in a beam search, by a warp.
#pragma once

#include "decode/cuda/beam.cuh"

namespace prnn::decode_cuda {

// That of a lane's score among those of the first K lanes, the highest first.
template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ int BeamSearch<T, COLUMN_TILES, SLOT_TILES>::rank_of(double score) const {
  int rank = 0;
  for (int i = 0; i < beam; ++i) {
    const double other = __shfl_sync(kWholeWarp, score, i);
    rank += other > score || (other == score && i < lane);
  }
  return rank;
}

// Puts the hypotheses with which the n-th of the batch begins into its slots, by their ranks. Without a hypothesis in
// its state, one stands for all that there were.
template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ Beginning BeamSearch<T, COLUMN_TILES, SLOT_TILES>::begin_hypotheses(Hypothesis* own,
                                                                                               int n) const {
  const int frames = static_cast<int>(p.options.maxFrames);
  Beginning begun;
  begun.pool = (p.has_state && p.state.slots != nullptr ? p.state.slots[n] : n) * beam;
  begun.length = p.inputs.lengths != nullptr ? max(0, min(p.inputs.lengths[n], frames)) : frames;
  begun.resumes = p.has_state && p.state.ahead[begun.pool] >= 0;
  begun.score = lane == 0 ? 0 : kNoScore;
  if (begun.resumes) begun.score = lane < beam ? p.state.score[begun.pool + lane] : kNoScore;
  begun.exists = begun.score > kNoScore;
  begun.is_dead = __ballot_sync(kWholeWarp, begun.exists) == 0;
  if (begun.is_dead) {
    begun.resumes = false;
    begun.exists = lane == 0;
    begun.score = kNoScore;
  }
  begun.rank = rank_of(begun.score);
  if (lane < p.width) {
    own[lane].utterance = -1;
    own[lane].step = Step::kNone;
  }
  __syncwarp();
  if (!begun.exists) return begun;
  Hypothesis& h = own[begun.rank];
  h = {};
  h.utterance = n;
  h.pool = begun.pool;
  h.stream = begun.pool + lane;
  h.partner = -1;
  h.symbol = static_cast<int>(p.model.blank);
  h.step = begun.is_dead ? Step::kNone : begun.resumes ? Step::kResume : Step::kBegin;
  if (begun.resumes && p.bias.nodes > 0) h.node = p.state.node[h.stream];
  if (!is_recurrent()) {
    for (int i = 0; i < p.model.context; ++i)
      h.context[i] = begun.resumes ? p.state.context[h.stream * p.model.context + i] : h.symbol;
  }
  return begun;
}

// The n-th of the batch.
template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void BeamSearch<T, COLUMN_TILES, SLOT_TILES>::begin_utterance(Hypothesis* own, int n) {
  const Beginning begun = begin_hypotheses(own, n);
  if (begun.exists) {
    Hypothesis& h = own[begun.rank];
    h.rank = begun.rank;
    h.ranks = 1u << begun.rank;
    h.history = -1;
    h.score = begun.score;
    h.length = begun.length;
    h.is_dead = begun.is_dead;
    h.closes = begun.length == 0 || begun.is_dead;
    h.has_changed = !begun.is_dead;
    if (begun.resumes) {
      h.origin = lane;
      h.hash = p.state.hash[h.stream];
    }
  }
  __syncwarp();
  find_pairs(own);
}

// By the first warp: places without an utterance take the next ones of the group, by begin(place, utterance).
template <class T, int COLUMN_TILES, int SLOT_TILES>
template <class Begin>
__device__ __forceinline__ void BeamSearch<T, COLUMN_TILES, SLOT_TILES>::take_utterances(const Begin& begin) {
  if (next_utterance >= p.options.batch) return;
  const unsigned used = slots_that([](const Hypothesis& h) { return h.utterance >= 0; });
  __syncwarp();  // all lanes have read the slots, which are written now
  for (int place = 0; place < p.utterances && next_utterance < p.options.batch; ++place) {
    if ((used >> place * p.width & all_of(p.width)) != 0) continue;
    begin(place, next_utterance);
    next_utterance += p.sizes.replicas;
  }
}

// Writes the results of a hypothesis, and of its state the score and the frames that it passes over.
template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void BeamSearch<T, COLUMN_TILES, SLOT_TILES>::write_results(const Results& h,
                                                                                       int place) const {
  const int64_t row = static_cast<int64_t>(h.utterance) * beam + h.rank;
  p.outputs.counts[row] = h.count;
  p.outputs.scores[row] = h.score;
  if (p.outputs.origins != nullptr) p.outputs.origins[row] = h.origin;
  const HistoryEntry* const history = history_of(place);
  int64_t at = row * p.options.maxFrames * p.options.maxSymbols + h.count;
  for (int i = h.history; i >= 0; i = history[i].before) {
    const HistoryEntry entry = history[i];
    p.outputs.symbols[--at] = entry.symbol;
    if (p.outputs.frames != nullptr) p.outputs.frames[at] = entry.frame;
    if (p.outputs.confidences != nullptr) static_cast<float*>(p.outputs.confidences)[at] = entry.confidence;
  }
  if (!p.has_state) return;
  const int stream = h.pool + h.rank;
  p.state.score[stream] = h.score;
  p.state.ahead[stream] = h.ahead;
}

// Writes the rest of a stream's state but for its layers.
template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void BeamSearch<T, COLUMN_TILES, SLOT_TILES>::write_stream(int stream, uint64_t hash,
                                                                                      const Hypothesis& h) const {
  p.state.hash[stream] = hash;
  if (p.bias.nodes > 0) p.state.node[stream] = h.node;
  if (!is_recurrent()) {
    for (int i = 0; i < p.model.context; ++i) p.state.context[stream * p.model.context + i] = h.context[i];
  }
}

// Writes that an utterance has no hypotheses behind its first `count`.
template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void BeamSearch<T, COLUMN_TILES, SLOT_TILES>::write_missing(int utterance, int pool,
                                                                                       int count) const {
  if (lane >= beam || lane < count) return;
  const int64_t row = static_cast<int64_t>(utterance) * beam + lane;
  p.outputs.counts[row] = 0;
  p.outputs.scores[row] = kNoScore;
  if (p.outputs.origins != nullptr) p.outputs.origins[row] = 0;
  if (p.has_state) {
    p.state.score[pool + lane] = kNoScore;
    p.state.ahead[pool + lane] = 0;
  }
}

template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void BeamSearch<T, COLUMN_TILES, SLOT_TILES>::end_utterance(Hypothesis* own, int place) {
  const bool exists = lane < beam && own[lane].utterance >= 0;
  const unsigned present = __ballot_sync(kWholeWarp, exists);
  const Hypothesis& any = own[__ffs(static_cast<int>(present)) - 1];
  const int utterance = any.utterance, pool = any.pool;
  if (writes(place)) {
    if (exists) {
      const Hypothesis& h = own[lane];
      write_results({h.score, utterance, pool, h.rank, h.history, h.count, h.origin, 0}, place);
      if (p.has_state && h.is_dead == 0) write_stream(pool + h.rank, h.hash, h);
    }
    write_missing(utterance, pool, __popc(present));
  }
  __syncwarp();
  if (lane >= beam) return;
  own[lane].utterance = -1;
  own[lane].closes = 0;
  own[lane].step = Step::kNone;
}

}  // namespace prnn::decode_cuda
