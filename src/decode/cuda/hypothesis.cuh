// The hypotheses of a beam search, as a group of blocks knows them.
#pragma once

#include "decode/cuda/slot.cuh"

namespace prnn::decode_cuda {

// A mask of the lowest `count` bits.
__device__ __forceinline__ unsigned all_of(int count) { return 0xFFFFFFFFu >> (32 - count); }

// A hypothesis of an utterance. The K slots of an utterance lie one after the other; those without a hypothesis have no
// utterance. Places in these K are `partner` and the bits of `pairs`. In a search by levels an utterance has 2 K slots,
// and they are predictor states alone: the paths that go on from them are kept beside (level.cuh).
struct Hypothesis : SlotState {
  using Windows = EqualWindows;
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
  int waits;       // by levels: it is not scored in this round
  unsigned ranks;  // when it closes: of the hypotheses whose state it is

  __device__ __forceinline__ int parent(int) const { return parent_slot; }
  __device__ __forceinline__ bool is_live() const { return SlotState::is_live() && waits == 0; }
  template <class Write>
  __device__ __forceinline__ void for_streams_after(const Write& write) const {
    for (unsigned left = ranks; left != 0; left &= left - 1) write(pool + __ffs(static_cast<int>(left)) - 1);
  }
};
static_assert(sizeof(Hypothesis) <= kHypothesisBytes);

// By levels: a hypothesis of a level, or one that has left the frame or waits for a later one.
struct Path {
  double score, largest;  // largest: while hypotheses are made one, the score of the most probable of them
  uint64_t hash;
  int history, count, origin, ahead;  // as Results has them
  int slot;                           // of the utterance: its predictor's state; -1: dropped
  int symbol;                         // which that state is still to read; -1: none
  int rank;                           // 0: the most probable of those that wait
};
static_assert(sizeof(Path) <= kPathBytes);

// An utterance that is searched by levels. Behind it lie the K paths of the level, K for the next ones, and those that
// wait.
struct Levels {
  int utterance;  // -1: none
  int pool;       // its first place in the pool of states
  int frame, length;
  int depth;  // the level's number in its frame, from 0 on
  int level_count, waiting_count, symbol_count;
  int closes;            // no frames are left, and states are written in this round
  int is_dead;           // no hypothesis is left: the level has the last one
  double bar;            // the score of the K-th that waits
  Path best;             // of the frame's beginning
  int order[kMostBeam];  // which of those that wait have the first ranks
};
static_assert(sizeof(Levels) <= kLevelsBytes && sizeof(Levels) % alignof(Path) == 0);

// Results of a hypothesis, as they are written.
struct Results {
  double score;
  int utterance, pool, rank, history, count, origin;
  int ahead;  // of the frames that come next it passes over so many
};

// The state that an utterance begins with. exists, score and rank are those of the lane's hypothesis.
struct Beginning {
  int pool, length;
  bool resumes, is_dead;  // it goes on from its state, in which there is a hypothesis; there is none
  bool exists;
  double score;
  int rank;
};

// A way on from a hypothesis.
struct Way {
  double score;
  int from;     // the hypothesis' place
  int symbol;   // -1: the blank
  float value;  // of a symbol: its logit and gain
  int duration;
};

}  // namespace prnn::decode_cuda
