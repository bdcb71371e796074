// The ways on from a level of an utterance's frame, by a warp.
#pragma once

#include "decode/cuda/beam_levels.cuh"

namespace prnn::decode_cuda {

// The K best ways on from a level that are better than `bar`, or as many as there are, in the first lanes; the best
// first. Two lanes have a hypothesis of the level, and every other duration; a symbol's order among those of a
// hypothesis is the same for all durations.
template <class T, int TILES>
__device__ __forceinline__ int LevelBeamSearch<T, TILES>::choose_ways(Levels& u, int place, Ways kind, double bar,
                                                                      Way& chosen) const {
  const int k = lane % kMostBeam, half = lane / kMostBeam, count = static_cast<int>(p.model.durationCount);
  const bool exists = k < u.level_count, stays = kind == Ways::kStay;
  const ListPart* list = nullptr;
  ListPart head{};
  double score = 0;
  if (exists) {
    const Path& path = level_of(u)[k];
    list = lists + (place * p.width + path.slot) * p.list_room;
    head = list[0];
    score = path.score;
  }
  const float all = exists ? add_logs(head.first, head.second) : kNever;
  const auto logit_of = [&](int duration) {
    const ListPart& part = list[p.list_parts + 1 + duration / 2];
    return duration % 2 == 0 ? part.first : part.second;
  };
  float all_durations = 0;
  if (exists && count > 0) {
    LogSum sum;
    for (int d = 0; d < count; ++d) sum.add(logit_of(d));
    all_durations = sum.log_sum();
  }
  const bool is_valid = exists && fabsf(all) < INFINITY && fabsf(all_durations) < INFINITY;

  // How many symbols have been taken with each of this lane's durations, in 5 bits each, and whether the blank has
  // been.
  uint64_t taken = 0;
  unsigned blanks_taken = 0;
  Way way{};
  int order = 0;
  const auto offer = [&](double its_score, int symbol, float value, int duration) {
    const int index = symbol < 0 ? static_cast<int>(p.model.blank) : symbol,
              its_order = k << 20 | index << 4 | duration;
    if (!(its_score > way.score) && !(its_score == way.score && its_order < order)) return;
    way = {its_score, k, symbol, value, duration};
    order = its_order;
  };
  const auto find_best = [&] {
    way = {kNoScore, k, 0, kNever, 0};
    order = 0x7FFFFFFF;
    if (!is_valid) return;
#pragma unroll 1
    for (int i = 0; 2 * i + half < max(count, 1); ++i) {
      const int duration = 2 * i + half;
      const bool is_zero = count == 0 || p.model.durations[duration] == 0;
      if (stays && !is_zero) continue;
      const double more = count == 0 ? 0 : static_cast<double>(logit_of(duration)) - static_cast<double>(all_durations);
      const int next = static_cast<int>(taken >> 5 * i & 31);
      if (next < beam && (stays || !is_zero || kind == Ways::kLeaveLast)) {
        const ListPart part = list[1 + next / 2];
        const float value = next % 2 == 0 ? part.first : part.second;
        const auto symbol = static_cast<int>(part.more >> next % 2 * 16 & 0xFFFF);
        offer(score + (static_cast<double>(value) - static_cast<double>(all)) + more, symbol, value, duration);
      }
      if (!stays && (blanks_taken >> i & 1) == 0)
        offer(score + (static_cast<double>(head.second) - static_cast<double>(all)) + more, -1, 0, duration);
    }
  };
  find_best();
  int found = 0;
#pragma unroll 1
  for (; found < beam; ++found) {
    const int from = lane_of_best(way.score > bar, way.score, order);
    if (from < 0) break;
    const Way best = way_of_lane(way, from);
    if (lane == found) chosen = best;
    if (lane == from) {
      const int i = way.duration / 2;
      if (way.symbol < 0) {
        blanks_taken |= 1u << i;
      } else {
        taken += uint64_t{1} << 5 * i;
      }
      find_best();
    }
    __syncwarp();
  }
  return found;
}

// Makes the next paths of the ways that the first lanes have. leaves: they leave the frame.
template <class T, int TILES>
__device__ __forceinline__ void LevelBeamSearch<T, TILES>::follow_ways(Levels& u, int place, int count, const Way& way,
                                                                       bool leaves) const {
  const bool exists = lane < count, has_symbol = exists && way.symbol >= 0;
  const unsigned with_symbol = __ballot_sync(kWholeWarp, has_symbol);
  const int first = u.symbol_count;
  if (exists) {
    Path path = level_of(u)[way.from];
    path.score = path.largest = way.score;
    path.ahead = leaves && has_durations() ? max(p.model.durations[way.duration], 1) - 1 : 0;
    if (has_symbol) {
      const int entry = first + __popc(with_symbol & ((1u << lane) - 1)), parent = place * p.width + path.slot;
      if (writes(place)) {
        const float others = lists[parent * p.list_room].first;
        history_of(place)[entry] = {path.history, way.symbol, u.frame,
                                    way.value - gain_of_slot(parent, way.symbol) - others};
      }
      path.history = entry;
      ++path.count;
      path.hash = path.hash * 0x9E3779B97F4A7C15 + static_cast<uint64_t>(way.symbol) + 1;
      path.symbol = way.symbol;
    }
    next_of(u)[lane] = path;
  }
  __syncwarp();
  if (lane == 0) u.symbol_count = first + __popc(with_symbol);
  __syncwarp();
}

// Makes each of the next paths one with that which spells the same and waits for the same frame, if there is one.
template <class T, int TILES>
__device__ __forceinline__ void LevelBeamSearch<T, TILES>::add_to_waiting(Levels& u, int count) const {
  Path* const waiting = waiting_of(u);
  int waiting_count = u.waiting_count;
  for (int i = lane; i < waiting_count; i += 32) waiting[i].largest = waiting[i].score;
  __syncwarp();
#pragma unroll 1
  for (int k = 0; k < count; ++k) {
    const Path& path = next_of(u)[k];
    if (!(path.score > kNoScore)) continue;
    int same = -1;
    for (int first = 0; same < 0 && first < waiting_count; first += 32) {
      const int i = first + lane;
      const bool is_same = i < waiting_count && waiting[i].hash == path.hash && waiting[i].ahead == path.ahead;
      const unsigned found = __ballot_sync(kWholeWarp, is_same);
      if (found != 0) same = first + __ffs(static_cast<int>(found)) - 1;
    }
    if (lane == 0) {
      if (same < 0) {
        waiting[waiting_count] = path;
      } else {
        Path& other = waiting[same];
        const double score = add_to_larger(max(path.score, other.score), min(path.score, other.score));
        if (path.largest > other.largest) {
          other = path;
        } else if (other.slot < 0) {
          other.slot = path.slot;
          other.symbol = path.symbol;
        }
        other.score = score;
      }
    }
    waiting_count += same < 0;
    __syncwarp();
  }
  if (lane == 0) u.waiting_count = waiting_count;
  __syncwarp();
}

// Ranks those that wait. Behind the K-th they have no states, for they can only be made one with others.
template <class T, int TILES>
__device__ __forceinline__ void LevelBeamSearch<T, TILES>::rank_waiting(Levels& u) const {
  Path* const waiting = waiting_of(u);
  const int count = u.waiting_count;
  if (lane == 0) u.bar = kNoScore;
  __syncwarp();
  for (int i = lane; i < count; i += 32) {
    const double score = waiting[i].score;
    const uint64_t hash = waiting[i].hash;
    int rank = 0;
    for (int j = 0; j < count; ++j) {
      const double other = waiting[j].score;
      rank += other > score || (other == score && (waiting[j].hash < hash || (waiting[j].hash == hash && j < i)));
    }
    waiting[i].rank = rank;
    if (rank < beam) {
      u.order[rank] = i;
    } else {
      waiting[i].slot = -1;
    }
    if (rank == beam - 1) u.bar = score;
  }
  __syncwarp();
}

// From the scores of a level to the next one. Returns whether there is one.
template <class T, int TILES>
__device__ __forceinline__ bool LevelBeamSearch<T, TILES>::take_level(Levels& u, int place) const {
  const int most = static_cast<int>(p.options.maxSymbols);
  bool is_last = u.depth == most;
  Way way{};
  int count = u.level_count;
  if (has_durations()) {
    is_last = u.depth + 1 == most;
    count = choose_ways(u, place, is_last ? Ways::kLeaveLast : Ways::kLeave, kNoScore, way);
  } else if (lane < count) {
    const ListPart& head = lists[(place * p.width + level_of(u)[lane].slot) * p.list_room];
    const float all = add_logs(head.first, head.second);
    way = {kNoScore, lane, -1, 0, 0};
    if (fabsf(all) < INFINITY)
      way.score = level_of(u)[lane].score + (static_cast<double>(head.second) - static_cast<double>(all));
  }
  follow_ways(u, place, count, way, true);
  add_to_waiting(u, count);
  rank_waiting(u);
  if (is_last) return false;
  count = choose_ways(u, place, Ways::kStay, u.bar, way);
  if (count == 0) return false;
  follow_ways(u, place, count, way, false);
  if (lane < count) level_of(u)[lane] = next_of(u)[lane];
  if (lane == 0) {
    u.level_count = count;
    ++u.depth;
  }
  __syncwarp();
  return true;
}

template <class T, int TILES>
__device__ __forceinline__ void LevelBeamSearch<T, TILES>::take(int place) {
  Levels& u = levels_of(place);
  if (u.utterance < 0) return;
  if (u.closes != 0) {
    end_utterance(u, place);
    return;
  }
  if (!take_level(u, place)) end_frame(u);
  if (u.frame >= u.length && (!p.has_state || u.is_dead != 0)) {
    end_utterance(u, place);
    return;
  }
  give_slots(u, place);
  if (lane == 0) u.closes = u.frame >= u.length;
  __syncwarp();
  mark_slots(u, place);
}

}  // namespace prnn::decode_cuda
