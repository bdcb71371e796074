// The ways on from the hypotheses of an utterance and its frame, by a warp: as take_modified() of cpu/beam.cc.
#pragma once

#include "decode/cuda/beam.cuh"

namespace prnn::decode_cuda {

constexpr double kNoScore = -INFINITY;

// log(exp(a) + exp(b)) for a >= b, a finite. What is added to a is as exact as the logarithms of sums that both have.
__device__ __forceinline__ double add_to_larger(double a, double b) {
  return a + static_cast<double>(log1pf(expf(static_cast<float>(b - a))));
}

// Two integers with the order of the number, which is no NaN.
struct ScoreKey {
  int high, low;

  explicit __device__ __forceinline__ ScoreKey(double score) {
    const long long bits = __double_as_longlong(score + 0.0);
    const int sign = static_cast<int>(bits >> 63);
    high = static_cast<int>(bits >> 32) ^ (sign & 0x7FFFFFFF);
    low = static_cast<int>(bits) ^ sign ^ (-0x7FFFFFFF - 1);
  }
};

// The lane with the highest score, of equal ones with the lowest order, which is below 2^31; -1: no lane has a way.
__device__ __forceinline__ int lane_of_best(bool has_way, double score, int order) {
  constexpr int kLeast = -0x7FFFFFFF - 1, kMost = 0x7FFFFFFF;
  const ScoreKey key(score);
  const int high = __reduce_max_sync(kWholeWarp, has_way ? key.high : kLeast);
  if (high == kLeast) return -1;
  bool is_best = has_way && key.high == high;
  const int low = __reduce_max_sync(kWholeWarp, is_best ? key.low : kLeast);
  is_best = is_best && key.low == low;
  const int own_order = is_best ? order : kMost;
  const int first = __reduce_min_sync(kWholeWarp, own_order);
  return __ffs(static_cast<int>(__ballot_sync(kWholeWarp, own_order == first))) - 1;
}

// That of another lane.
__device__ __forceinline__ Way way_of_lane(const Way& way, int from) {
  return {__shfl_sync(kWholeWarp, way.score, from), __shfl_sync(kWholeWarp, way.from, from),
          __shfl_sync(kWholeWarp, way.symbol, from), __shfl_sync(kWholeWarp, way.value, from),
          __shfl_sync(kWholeWarp, way.duration, from)};
}

// Which hypotheses of the utterance spell the same with a symbol as others do.
template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void BeamSearch<T, COLUMN_TILES, SLOT_TILES>::find_pairs(Hypothesis* own) const {
  constexpr unsigned long long kHashFactor = 0x9E3779B97F4A7C15;
  const bool exists = lane < beam && own[lane].utterance >= 0;
  const unsigned present = __ballot_sync(kWholeWarp, exists);
  const unsigned long long hash = exists ? own[lane].hash : 0, with_symbol = hash * kHashFactor + 1;
  int partner = -1, symbol = -1;
  unsigned pairs = 0;
#pragma unroll 1
  for (int i = 0; i < beam; ++i) {
    const unsigned long long other = hash - __shfl_sync(kWholeWarp, with_symbol, i);
    const bool is_pair = exists && partner < 0 && (present >> i & 1) != 0 &&
                         other < static_cast<unsigned long long>(p.model.classes) &&
                         other != static_cast<unsigned long long>(p.model.blank);
    if (is_pair) partner = i, symbol = static_cast<int>(other);
    const unsigned longer = __ballot_sync(kWholeWarp, is_pair);
    if (lane == i) pairs = longer;
  }
  if (lane >= beam) return;
  own[lane].partner = partner;
  own[lane].pair_symbol = symbol;
  own[lane].pairs = pairs;
}

// That of the k-th hypothesis with the blank, or with it the way that spells the same, as one. `head` and the logarithm
// of the sum of all exponentials, `all`: of its column; lane k has that of the k-th.
template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ Way BeamSearch<T, COLUMN_TILES, SLOT_TILES>::way_with_blank(const Hypothesis* own, int k,
                                                                                       const ListPart& head,
                                                                                       float all) const {
  const bool exists = k < beam && own[k].utterance >= 0;
  const int partner = exists ? own[k].partner : -1;
  const float all_of_partner = __shfl_sync(kWholeWarp, all, max(partner, 0));
  Way way = {kNoScore, k, -1, 0};
  if (!exists) return way;
  if (fabsf(all) < INFINITY) way.score = own[k].score + (static_cast<double>(head.second) - static_cast<double>(all));
  if (partner < 0 || !(fabsf(all_of_partner) < INFINITY)) return way;
  const float value = __uint_as_float(head.more);
  const double extended = own[partner].score + (static_cast<double>(value) - static_cast<double>(all_of_partner));
  const double larger = max(extended, way.score), smaller = min(extended, way.score);
  if (extended > way.score) way = {larger, partner, own[k].pair_symbol, value};
  if (larger > kNoScore) way.score = add_to_larger(larger, smaller);
  return way;
}

// If there are K hypotheses, and with the blank each is more probable than every way with a symbol, as over most
// frames: takes these ways. The lanes from kMostBeam on have the blanks, the others the best symbols. Returns whether
// it has.
template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ bool BeamSearch<T, COLUMN_TILES, SLOT_TILES>::keep_all(Hypothesis* own,
                                                                                  const Way& way) const {
  const bool has_blank = lane >= kMostBeam && lane - kMostBeam < beam && own[lane - kMostBeam].utterance >= 0;
  const bool is_symbol = lane < kMostBeam && way.score > kNoScore;
  const int least_blank = __reduce_min_sync(
      kWholeWarp, has_blank ? ordered(way.symbol < 0 ? __double2float_rd(way.score) : kNever) : 0x7FFFFFFF);
  const int best_symbol = __reduce_max_sync(kWholeWarp, ordered(is_symbol ? __double2float_ru(way.score) : kNever));
  if (least_blank <= best_symbol || __popc(__ballot_sync(kWholeWarp, has_blank)) < beam) return false;
  const int rank = has_blank ? own[way.from].rank : 0;
  int next_rank = 0;
#pragma unroll 1
  for (int i = kMostBeam; i < kMostBeam + beam; ++i) {
    const double other = __shfl_sync(kWholeWarp, has_blank ? way.score : kNoScore, i);
    const int its_rank = __shfl_sync(kWholeWarp, rank, i);
    next_rank += other > way.score || (other == way.score && its_rank < rank);
  }
  __syncwarp();  // all lanes have read the ranks
  if (has_blank) {
    Hypothesis& h = own[way.from];
    h.score = way.score;
    h.rank = next_rank;
    h.ranks = 1u << next_rank;
    h.step = Step::kNone;
    ++h.frame;
    h.closes = h.frame >= h.length && p.has_state;
  }
  __syncwarp();
  return true;
}

// The K best ways on over a frame of the window, or as many as there are, in the first lanes; the best first. others:
// of the hypothesis of each, the logarithm of the sum of the exponentials without the blank's. kKeptAll: keep_all() has
// taken them.
template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ int BeamSearch<T, COLUMN_TILES, SLOT_TILES>::choose_ways(Hypothesis* own, int frame,
                                                                                    Way& chosen, float& others) const {
  const int k = lane % kMostBeam;
  const bool exists = k < beam && own[k].utterance >= 0, has_symbols = lane < kMostBeam;
  const ListPart* const list = list_of(own, k, frame);
  ListPart head{};
  if (exists) head = list[0];
  const float all = exists ? add_logs(head.first, head.second) : kNever;
  Way way = way_with_blank(own, k, head, all);
  int next = 0;
  const auto take_symbol = [&] {
    way = {kNoScore, k, 0, kNever};
    if (!exists || next == beam || !(fabsf(all) < INFINITY)) return;
    const ListPart part = list[1 + next / 2];
    way.value = next % 2 == 0 ? part.first : part.second;
    way.symbol = static_cast<int>(part.more >> next % 2 * 16 & 0xFFFF);
    way.score = own[k].score + (static_cast<double>(way.value) - static_cast<double>(all));
    ++next;
  };
  if (has_symbols) take_symbol();
  if (keep_all(own, way)) return kKeptAll;
  int count = 0;
#pragma unroll 1
  for (; count < beam; ++count) {
    const int index = way.symbol < 0 ? static_cast<int>(p.model.blank) : way.symbol;
    const bool exists_way = way.score > kNoScore;
    const int from = lane_of_best(exists_way, way.score, exists_way ? own[way.from].rank << 16 | index : 0);
    if (from < 0) break;
    const Way best = way_of_lane(way, from);
    if (lane == count) chosen = best;
    if (lane == from) {
      if (has_symbols) take_symbol();
      if (!has_symbols) way.score = kNoScore;
    }
    __syncwarp();
  }
  others = __shfl_sync(kWholeWarp, head.first, chosen.from);
  return count;
}

// Makes hypotheses of the ways that the first lanes have.
template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void BeamSearch<T, COLUMN_TILES, SLOT_TILES>::take_ways(Hypothesis* own, int place,
                                                                                   int count, const Way& way,
                                                                                   float others) {
  const bool exists = lane < count, is_new = exists && way.symbol >= 0;
  const unsigned below = (1u << lane) - 1, all_slots = (1u << beam) - 1;
  const unsigned stays = __reduce_or_sync(kWholeWarp, exists && !is_new ? 1u << way.from : 0u);
  const unsigned free = all_slots & ~stays, all_new = __ballot_sync(kWholeWarp, is_new);
  int to = way.from;
  if (is_new) {
    unsigned left = free;
    for (int i = __popc(all_new & below); i > 0; --i) left &= left - 1;
    to = __ffs(static_cast<int>(left)) - 1;
  }
  Hypothesis next{};
  float confidence = 0;
  if (exists) {
    next = own[way.from];
    if (is_new) {
      const int parent = static_cast<int>(own - slots) + way.from;
      confidence = way.value - gain_of_slot(parent, way.symbol) - others;
      next.parent_slot = parent;
    }
  }
  __syncwarp();
  if (lane < beam && (free >> lane & 1) != 0 && __popc(free & below) >= __popc(all_new)) {
    own[lane].utterance = -1;
    own[lane].step = Step::kNone;
  }
  if (exists) {
    const bool ends = next.frame + 1 >= next.length;
    next.score = way.score;
    next.rank = lane;
    next.ranks = 1u << lane;
    next.step = Step::kNone;
    next.closes = ends && p.has_state;
    if (is_new) {
      const int entry = next.frame * beam + to;
      if (writes(place)) history_of(place)[entry] = {next.history, way.symbol, next.frame, confidence};
      next.history = entry;
      ++next.count;
      next.hash = next.hash * 0x9E3779B97F4A7C15 + static_cast<uint64_t>(way.symbol) + 1;
      next.symbol = way.symbol;
      next.step = Step::kAdvance;
      if (p.bias.nodes > 0) next.node = p.bias.next[next.node * p.model.classes + way.symbol];
    }
    ++next.frame;
    own[to] = next;
    if (is_new && !is_recurrent()) {
      int* const context = own[to].context;
      for (int i = 0; i + 1 < p.model.context; ++i) context[i] = context[i + 1];
      context[p.model.context - 1] = way.symbol;
    }
  }
  __syncwarp();
}

// Goes through the window's frames, as long as every hypothesis goes on with the blank: else pairs or predictors'
// outputs are others afterwards.
template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void BeamSearch<T, COLUMN_TILES, SLOT_TILES>::take_frames(int place) {
  Hypothesis* const own = slots + place * beam;
  const unsigned present = __ballot_sync(kWholeWarp, lane < beam && own[lane].utterance >= 0);
  if (present == 0) return;
  const int any = __ffs(static_cast<int>(present)) - 1;
  bool ends = own[any].closes != 0;
  const int left = own[any].length - own[any].frame;
  for (int frame = 0; !ends && frame < min(p.window, left); ++frame) {
    Way way{};
    float others = 0;
    const int count = choose_ways(own, frame, way, others);
    if (count == kKeptAll) {
      ends = frame + 1 == left && !p.has_state;
      continue;
    }
    if (count == 0) {  // the most probable one stands for all
      if (lane < beam && own[lane].utterance >= 0) {
        own[lane].is_dead = 1;
        own[lane].score = kNoScore;
        if (own[lane].rank > 0) own[lane].utterance = -1;
      }
      ends = true;
      break;
    }
    take_ways(own, place, count, way, others);
    ends = frame + 1 == left && !p.has_state;
    if (__any_sync(kWholeWarp, lane < count && way.symbol >= 0) != 0 || count < __popc(present)) {
      if (!ends) find_pairs(own);
      break;
    }
  }
  __syncwarp();
  if (ends) end_utterance(own, place);
}

}  // namespace prnn::decode_cuda
