// The hypotheses of a beam search, as a group of blocks knows them.
#pragma once

#include "decode/cuda/slot.cuh"

namespace prnn::decode_cuda {

// A hypothesis of an utterance. The K slots of an utterance lie one after the other; those without a hypothesis have no
// utterance. Places in these K are `partner` and the bits of `pairs`.
struct Hypothesis : SlotState {
  static constexpr bool kHasParents = true;
  int pool;         // the utterance's first place in the pool of states
  uint64_t hash;    // as prnnTransducerBeamState_t has it
  int rank;         // 0: the most probable
  int origin;       // the hypothesis of the state before the call
  int history;      // the entry of its last symbol of the call; -1: none
  int parent_slot;  // whose state its predictor goes on from
  int partner;      // which spells the same with pair_symbol; -1: none
  int pair_symbol;
  unsigned pairs;  // whose partner it is
  int is_dead;     // it stands for the last ones, of which nothing has gone on

  __device__ __forceinline__ int parent(int) const { return parent_slot; }
  __device__ __forceinline__ int stream_after() const { return pool + rank; }
};
static_assert(sizeof(Hypothesis) <= kHypothesisBytes);

// A way on from a hypothesis.
struct Way {
  double score;
  int from;     // the hypothesis' place
  int symbol;   // -1: the blank
  float value;  // of a symbol: its logit and gain
};

}  // namespace prnn::decode_cuda
