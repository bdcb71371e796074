// The resident beam search by levels: time-synchronous search with several symbols a frame, and that of models with
// durations, as take_standard() and take_durations() of cpu/beam.cc. A round scores a level of an utterance's frame.
// Its hypotheses leave the frame and wait, or are the next level. Slots are predictor states: those of a level, and of
// the first K that wait; paths that go on from one state share its slot, so that nothing is copied.
#pragma once

#include "decode/cuda/beam.cuh"

namespace prnn::decode_cuda {

template <class T, int TILES>
struct LevelBeamSearch : BeamSearch<T, TILES, TILES> {
  using Base = BeamSearch<T, TILES, TILES>;
  using Base::beam, Base::gain_of_slot, Base::history_of, Base::is_recurrent, Base::lane, Base::lists, Base::memory,
      Base::p, Base::slots, Base::slots_that, Base::warp, Base::writes;

  // Which ways on from a level are chosen: those of the next level, with symbols of duration 0; those that leave the
  // frame; those that leave it where there is no next level, symbols of duration 0 among them.
  enum class Ways { kStay, kLeave, kLeaveLast };

  __device__ __forceinline__ LevelBeamSearch(const BeamParams& params, char* shared) : Base(params, shared) {}

  __device__ __forceinline__ Levels& levels_of(int place) const {
    const int bytes = kLevelsBytes + (2 * beam + p.waiting) * kPathBytes;
    return *reinterpret_cast<Levels*>(memory + p.shared.levels + place * bytes);
  }
  static __device__ __forceinline__ Path* paths_of(Levels& u) {
    return reinterpret_cast<Path*>(reinterpret_cast<char*>(&u) + kLevelsBytes);
  }
  // K paths each, and those that wait.
  __device__ __forceinline__ Path* level_of(Levels& u) const { return paths_of(u); }
  __device__ __forceinline__ Path* next_of(Levels& u) const { return paths_of(u) + beam; }
  __device__ __forceinline__ Path* waiting_of(Levels& u) const { return paths_of(u) + 2 * beam; }
  __device__ __forceinline__ bool has_durations() const { return p.model.durationCount > 0; }

  // ---- utterances ----

  __device__ __forceinline__ void begin_levels();
  __device__ __forceinline__ void begin_utterance(int place, int n);
  __device__ __forceinline__ void begin_frame(Levels& u) const;
  __device__ __forceinline__ void end_frame(Levels& u) const;
  __device__ __forceinline__ void give_slots(Levels& u, int place) const;
  __device__ __forceinline__ void mark_slots(Levels& u, int place) const;
  __device__ __forceinline__ void end_utterance(Levels& u, int place) const;

  // ---- ways on: beam_level_ways.cuh ----

  __device__ __forceinline__ int choose_ways(Levels& u, int place, Ways kind, double bar, Way& chosen) const;
  __device__ __forceinline__ void follow_ways(Levels& u, int place, int count, const Way& way, bool leaves) const;
  __device__ __forceinline__ void add_to_waiting(Levels& u, int count) const;
  __device__ __forceinline__ void rank_waiting(Levels& u) const;
  __device__ __forceinline__ bool take_level(Levels& u, int place) const;
  __device__ __forceinline__ void take(int place);

  __device__ __forceinline__ void run() {
    this->load_weights();
    this->begin();
    begin_levels();
    for (;;) {
      if (warp == 0) this->take_utterances([&](int place, int n) { begin_utterance(place, n); });
      sync_threads();
      if (slots_that([](const Hypothesis& h) { return h.utterance >= 0; }) == 0) return;
      if (!this->make_scored_columns() || !this->find_lists()) return;
      for (int place = warp; place < p.utterances; place += kWarps) take(place);
      sync_threads();
    }
  }
};

template <class T, int TILES>
__global__ void __launch_bounds__(kThreads, 1) level_beam_kernel(const __grid_constant__ BeamParams params) {
  extern __shared__ __align__(128) char memory[];
  LevelBeamSearch<T, TILES>(params, memory).run();
}

template <class T, int TILES>
__device__ __forceinline__ void LevelBeamSearch<T, TILES>::begin_levels() {
  if (threadIdx.x < p.utterances) levels_of(threadIdx.x).utterance = -1;
  if (threadIdx.x < Base::kSlotRoom) slots[threadIdx.x].partner = -1;
  sync_threads();
}

// By a warp: the n-th utterance of the batch.
template <class T, int TILES>
__device__ __forceinline__ void LevelBeamSearch<T, TILES>::begin_utterance(int place, int n) {
  Levels& u = levels_of(place);
  Hypothesis* const own = slots + place * p.width;
  const Beginning begun = this->begin_hypotheses(own, n);
  if (begun.exists) {
    const int stream = begun.pool + lane;
    Path path{};
    path.score = begun.score;
    path.hash = begun.resumes ? p.state.hash[stream] : 0;
    path.history = path.symbol = -1;
    path.origin = begun.resumes ? lane : 0;
    path.ahead = begun.resumes ? p.state.ahead[stream] : 0;
    path.slot = begun.rank;
    level_of(u)[begun.rank] = path;
  }
  const int count = __popc(__ballot_sync(kWholeWarp, begun.exists));
  if (lane == 0) {
    u.utterance = n;
    u.pool = begun.pool;
    u.frame = 0;
    u.length = begun.length;
    u.level_count = count;
    u.symbol_count = 0;
    u.is_dead = begun.is_dead;
    u.closes = 0;
  }
  __syncwarp();
  begin_frame(u);
  if (lane == 0) u.closes = u.is_dead != 0 || u.frame >= u.length;
  __syncwarp();
  mark_slots(u, place);
}

// The level has all hypotheses. With durations, those that are not at the frame go on to those that wait, and the frame
// is the next one with any.
template <class T, int TILES>
__device__ __forceinline__ void LevelBeamSearch<T, TILES>::begin_frame(Levels& u) const {
  Path* const level = level_of(u);
  const int count = u.level_count, frame = u.frame, left = u.length - frame;
  if (lane == 0) {
    u.depth = u.waiting_count = 0;
    u.best = level[0];
  }
  __syncwarp();
  if (!has_durations() || left <= 0) return;
  Path path{};
  if (lane < count) path = level[lane];
  const int step = min(left, __reduce_min_sync(kWholeWarp, lane < count ? path.ahead : left));
  path.ahead -= step;
  const bool is_here = lane < count && (path.ahead == 0 || step == left);
  const unsigned here = __ballot_sync(kWholeWarp, is_here), waits = all_of(count) & ~here, below = (1u << lane) - 1;
  __syncwarp();  // all lanes have read the level
  if (is_here) {
    level[__popc(here & below)] = path;
  } else if (lane < count) {
    --path.ahead;
    path.rank = __popc(waits & below);
    waiting_of(u)[path.rank] = path;
    u.order[path.rank] = path.rank;
  }
  if (lane == 0) {
    u.frame = frame + step;
    u.level_count = __popc(here);
    u.waiting_count = __popc(waits);
  }
  __syncwarp();
}

// The best of those that wait are the hypotheses of the next frame. Where there are none, the most probable of the
// frame's beginning stands for all.
template <class T, int TILES>
__device__ __forceinline__ void LevelBeamSearch<T, TILES>::end_frame(Levels& u) const {
  Path* const level = level_of(u);
  const int count = min(u.waiting_count, beam);
  __syncwarp();  // all lanes have read the level
  if (lane < count) level[lane] = waiting_of(u)[u.order[lane]];
  if (lane == 0) {
    u.level_count = max(count, 1);
    ++u.frame;
    if (count == 0) {
      u.is_dead = 1;
      u.frame = u.length;
      level[0] = u.best;
      level[0].score = kNoScore;
    }
  }
  __syncwarp();
  if (count > 0) begin_frame(u);
}

// Gives slots to the states that read a symbol, and frees those that no path goes on from.
template <class T, int TILES>
__device__ __forceinline__ void LevelBeamSearch<T, TILES>::give_slots(Levels& u, int place) const {
  Hypothesis* const own = slots + place * p.width;
  const int i = lane % kMostBeam;
  Path* path = nullptr;
  if (lane < kMostBeam) {
    if (i < u.level_count) path = level_of(u) + i;
  } else if (i < min(u.waiting_count, beam)) {
    path = waiting_of(u) + u.order[i];
  }
  const bool is_new = path != nullptr && path->symbol >= 0, is_kept = path != nullptr && !is_new;
  const unsigned kept = __reduce_or_sync(kWholeWarp, is_kept ? 1u << path->slot : 0u);
  unsigned left = all_of(p.width) & ~kept;
  const unsigned news = __ballot_sync(kWholeWarp, is_new);
  Hypothesis next{};
  int slot = 0;
  if (is_new) {
    for (int before = __popc(news & ((1u << lane) - 1)); before > 0; --before) left &= left - 1;
    slot = __ffs(static_cast<int>(left)) - 1;
    next = own[path->slot];
    next.parent_slot = place * p.width + path->slot;
    next.symbol = path->symbol;
    next.step = Step::kAdvance;
    if (p.bias.nodes > 0) next.node = p.bias.next[next.node * p.model.classes + next.symbol];
    path->slot = slot;
    path->symbol = -1;
  }
  const unsigned given = __reduce_or_sync(kWholeWarp, is_new ? 1u << slot : 0u);
  __syncwarp();  // all lanes have read their parents
  if (lane < p.width) {
    own[lane].step = Step::kNone;
    if (((kept | given) >> lane & 1) == 0) own[lane].utterance = -1;
  }
  __syncwarp();
  if (is_new) {
    own[slot] = next;
    if (!is_recurrent()) {  // in shared memory: in registers no array is indexed at run time
      int* const context = own[slot].context;
      for (int k = 0; k + 1 < p.model.context; ++k) context[k] = context[k + 1];
      context[p.model.context - 1] = next.symbol;
    }
  }
  __syncwarp();
}

// Which slots are scored in the next round, or close.
template <class T, int TILES>
__device__ __forceinline__ void LevelBeamSearch<T, TILES>::mark_slots(Levels& u, int place) const {
  Hypothesis* const own = slots + place * p.width;
  if (lane < p.width) {
    own[lane].waits = 1;
    own[lane].closes = u.closes != 0 && own[lane].utterance >= 0;
    own[lane].has_changed = u.is_dead == 0;
    own[lane].ranks = 0;
  }
  __syncwarp();
  const bool is_of_level = lane < u.level_count;
  const int slot = is_of_level ? level_of(u)[lane].slot : 0;
  unsigned ranks = 0;
  for (int i = 0; u.closes != 0 && i < u.level_count; ++i) {
    if (__shfl_sync(kWholeWarp, slot, i) == slot) ranks |= 1u << i;
  }
  if (is_of_level && (ranks & ((1u << lane) - 1)) == 0) {  // of several with one state the first
    own[slot].waits = 0;
    own[slot].frame = u.frame;
    own[slot].length = u.length;
    own[slot].ranks = ranks;
  }
  __syncwarp();
}

template <class T, int TILES>
__device__ __forceinline__ void LevelBeamSearch<T, TILES>::end_utterance(Levels& u, int place) const {
  Hypothesis* const own = slots + place * p.width;
  if (writes(place)) {
    if (lane < u.level_count) {
      const Path& path = level_of(u)[lane];
      this->write_results({path.score, u.utterance, u.pool, lane, path.history, path.count, path.origin, path.ahead},
                          place);
      if (p.has_state && u.is_dead == 0) this->write_stream(u.pool + lane, path.hash, own[path.slot]);
    }
    this->write_missing(u.utterance, u.pool, u.level_count);
  }
  __syncwarp();
  if (lane == 0) u.utterance = -1;
  if (lane < p.width) {
    own[lane].utterance = -1;
    own[lane].closes = 0;
    own[lane].step = Step::kNone;
  }
  __syncwarp();
}

}  // namespace prnn::decode_cuda

#include "decode/cuda/beam_level_ways.cuh"
