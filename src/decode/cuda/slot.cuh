// The utterances that a group of blocks searches, and the results of their frames. Every block
// of a group has the same ones and comes to the same decisions.
#pragma once

#include "decode/cuda/windows.cuh"

namespace prnn::decode_cuda {

// The work of the predictor of a slot's utterance in a round: nothing; takes the state of a stream; reads the blank
// from a zero state; reads the symbol that was emitted.
enum class Step : int { kNone, kResume, kBegin, kAdvance };

// A predictor's state that is searched with.
struct SlotState {
  int utterance;  // -1: none
  int stream;     // where the state is in the pool
  int frame, length;
  int count;  // symbols emitted
  Step step;
  int symbol;       // the last one
  int node;         // of the bias
  int closes;       // it has no frames left, and its state is written in this round
  int has_changed;  // its predictor's state
  int context[PRNN_MAX_PREDICTOR_CONTEXT];
  double score;

  // Whether the next frames are scored with it.
  __device__ __forceinline__ bool is_live() const { return utterance >= 0 && closes == 0; }
};

// That of a greedy search: an utterance.
struct Slot : SlotState {
  using Windows = SharedWindows;
  static constexpr bool kHasParents = false;
  int in_frame;  // symbols emitted at this frame
  int begins;    // nothing has been searched; `score` is that of the frames before

  // The slot whose state it goes on from.
  __device__ __forceinline__ int parent(int own) const { return own; }
  // Calls write(stream) for the stream whose state it replaces.
  template <class Write>
  __device__ __forceinline__ void for_streams_after(const Write& write) const {
    write(stream);
  }
};
static_assert(sizeof(Slot) <= kSlotBytes);

// The symbol found in a column.
struct alignas(8) Column {
  int symbol;  // -1: a blank
  int duration;
};
static_assert(sizeof(Column) <= kColumnBytes);

// The log-probabilities of a column's symbol, and a phrase bias's gain.
struct ColumnScores {
  float log_prob, confidence, duration_log_prob, gain;
};
static_assert(sizeof(ColumnScores) <= kColumnScoresBytes);

}  // namespace prnn::decode_cuda
