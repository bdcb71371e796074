// What a group of blocks knows of the utterances that it searches, and what it has found of their frames.
#pragma once

#include "decode/cuda/search_plan.h"

namespace prnn::decode_cuda {

// What the predictor of a slot's utterance does in a round: nothing; reads the blank from a zero state; takes the state
// of a stream; reads the symbol that was emitted.
enum class Step : int { kNone, kBegin, kResume, kAdvance };

// An utterance that is being searched. Every block of a group has the same ones and comes to the same decisions.
struct Slot {
  int utterance;  // -1: none
  int stream;     // its state's slot in the pool
  int frame, length;
  int in_frame;  // symbols emitted at this frame
  int count;     // symbols emitted
  Step step;
  int symbol;       // the last one
  int node;         // of the bias
  int closes;       // it has no frames left, and its state is written in this round
  int has_changed;  // its predictor's state
  int context[PRNN_MAX_PREDICTOR_CONTEXT];
  double score;
};
static_assert(sizeof(Slot) <= kSlotBytes);

// What a frame of an utterance says.
struct alignas(16) Column {
  int symbol;  // -1: a blank
  int duration;
  float log_prob, confidence, duration_log_prob, gain;
};
static_assert(sizeof(Column) <= kColumnBytes);

}  // namespace prnn::decode_cuda
