// A round's scores: the output layer over the windows' frames, what all blocks publish of each column, and the symbol
// found in it. A piece of the output layer publishes its best candidate as soon as it has it, in a key of 8 bytes;
// what log-probabilities are made from follows, and only the block that writes a slot's results reads that.
#pragma once

#include "decode/cuda/search.cuh"

namespace prnn::decode_cuda {

// A column's best candidate over some rows: the highest value, of equal ones the lowest class.
struct Candidate {
  static constexpr int kNoKey = static_cast<int>(0x807FFFFF);  // of -infinity
  static constexpr int kNotFinite = 0x7FFFFFFF;                // a logit is NaN or +infinity
  static constexpr int kNoPlace = 0xFFFF;

  int key = kNoKey, place = kNoPlace;
  float logit = kNever;

  // is_any: else nothing is taken. Without branches, so that those of several columns are taken side by side.
  __device__ __forceinline__ void take(bool is_any, float value, float its_logit, int its_place) {
    const int its_key = its_logit < INFINITY ? ordered(value) : kNotFinite;
    const bool is_candidate = is_any & ((its_key == kNotFinite) | ((its_logit != kNever) & (value == value)));
    const bool is_better = is_candidate & ((its_key > key) | ((its_key == key) & (its_place < place)));
    key = is_better ? its_key : key;
    place = is_better ? its_place : place;
    logit = is_better ? its_logit : logit;
  }

  // The best candidate of all lanes.
  __device__ __forceinline__ void take_over_warp() {
    const int best = __reduce_max_sync(kWholeWarp, key);
    const int own_place = key == best ? place : 0x7FFFFFFF;
    place = __reduce_min_sync(kWholeWarp, own_place);
    const unsigned lanes = __ballot_sync(kWholeWarp, own_place == place);
    logit = __shfl_sync(kWholeWarp, logit, __ffs(static_cast<int>(lanes)) - 1);
    key = best;
  }
};

// A key: the candidate's as an unsigned number, the classes below it, and the lower half of the round's number. The
// largest key of a column is that of its best candidate.
__device__ __forceinline__ TaggedWord key_of(const Candidate& candidate, uint32_t round) {
  return static_cast<TaggedWord>(static_cast<uint32_t>(candidate.key) ^ 0x80000000u) << 32 |
         static_cast<uint32_t>(Candidate::kNoPlace - candidate.place) << 16 | (round & 0xFFFF);
}
__device__ __forceinline__ Candidate candidate_of(TaggedWord key) {
  Candidate candidate;
  candidate.key = static_cast<int>(static_cast<uint32_t>(key >> 32) ^ 0x80000000u);
  candidate.place = Candidate::kNoPlace - static_cast<int>(key >> 16 & 0xFFFF);
  return candidate;
}

// Publishes the best of all lanes' candidates of the warp's columns, then the logarithms of sums.
template <class T, int COLUMN_TILES>
__device__ __forceinline__ void Search<T, COLUMN_TILES>::publish_keys(Candidate (&candidates)[COLUMN_TILES],
                                                                      int entry) const {
  TaggedWord own = 0;
#pragma unroll
  for (int c = 0; c < COLUMN_TILES; ++c) {
    candidates[c].take_over_warp();
    const TaggedWord key = key_of(candidates[c], round);
    if (lane == c) own = key;
  }
  publish_word(lane < COLUMN_TILES, keys_of(warp + lane % COLUMN_TILES * kWarps, round) + entry, own);
}
template <class T, int COLUMN_TILES>
__device__ __forceinline__ void Search<T, COLUMN_TILES>::publish_sums(const Candidate (&candidates)[COLUMN_TILES],
                                                                      LogSum (&log_sums)[COLUMN_TILES],
                                                                      int entry) const {
  add_up_lanes(log_sums);
  LogSum own;
  float logit = 0;
#pragma unroll
  for (int c = 0; c < COLUMN_TILES; ++c) {
    if (lane == c) own = log_sums[c], logit = candidates[c].logit;
  }
  if (lane < COLUMN_TILES)
    publish_part(parts_of(warp + lane * kWarps, round) + entry, {own.log_sum(), logit, 0, round});
}

// The own rows of the output layer, and what each piece of them says of each column. Of columns without a frame nothing
// that is read.
template <class T, int COLUMN_TILES>
__device__ __forceinline__ void Search<T, COLUMN_TILES>::score_columns() {
  const Share own = tiles[kOutput].share;
  const float* const bias = floats(p.shared.output_bias);
  const int classes = static_cast<int>(p.model.classes), blank = static_cast<int>(p.model.blank);
  const int together = p.tiles[kOutput].together;
  const int used = (windows.columns() + kTileColumns - 1) / kTileColumns;  // column tiles
  int entry = tiles[kOutput].first_piece, of_piece = 0;                    // of_piece: row tiles of this piece before
  Candidate candidates[COLUMN_TILES];
  LogSum log_sums[COLUMN_TILES];
  multiply_rows<T, COLUMN_TILES>(
      tiles[kOutput], this->ahead, this->columns_of_scores(), used, sums(),
      [&](int tile, int rows, const PassSums<COLUMN_TILES>& of_pass) {
        const int own_row = tile * kTileRows + lane, first_row = (own.first + tile) * kTileRows, row = first_row + lane;
        const int next_tile = tile + rows / kTileRows;
        const bool is_row = lane < rows, is_class = is_row && row < classes && row != blank;
        const bool begins = of_piece == 0;
        of_piece += rows / kTileRows;
        const bool ends = of_piece == together || next_tile == own.count;
        const float own_bias = bias[is_row ? own_row : 0];
        float logits[COLUMN_TILES], values[COLUMN_TILES];
#pragma unroll
        for (int c = 0; c < COLUMN_TILES; ++c) values[c] = logits[c] = of_pass(lane, warp + c * kWarps) + own_bias;
        if (p.bias.nodes > 0) {
#pragma unroll
          for (int c = 0; c < COLUMN_TILES; ++c) values[c] += is_class ? gain(warp + c * kWarps, row) : 0;
        }
#pragma unroll
        for (int c = 0; c < COLUMN_TILES; ++c) candidates[c].take(is_class, values[c], logits[c], row);
        if (first_row <= blank && blank < first_row + rows) {
#pragma unroll
          for (int c = 0; c < COLUMN_TILES; ++c) {
            publish_word(row == blank, keys_of(warp + c * kWarps, round) + p.entries,
                         static_cast<TaggedWord>(__float_as_uint(logits[c])) << 32 | (round & 0xFFFF));
          }
        }
        if (ends) publish_keys(candidates, entry);
        float class_logits[COLUMN_TILES];
#pragma unroll
        for (int c = 0; c < COLUMN_TILES; ++c) class_logits[c] = is_class ? logits[c] : kNever;
        add_of_lanes(log_sums, class_logits, begins);
        if (ends) {
          publish_sums(candidates, log_sums, entry);
#pragma unroll
          for (int c = 0; c < COLUMN_TILES; ++c) candidates[c] = {}, log_sums[c] = {};
          ++entry;
          of_piece = 0;
        }
        if (own.first + next_tile <= p.class_tiles) return;
        const int duration = row - p.class_tiles * kTileRows;
        Candidate durations[COLUMN_TILES];
        LogSum sums_of_durations[COLUMN_TILES];
        const bool is_duration = is_row && duration >= 0 && duration < p.model.durationCount;
#pragma unroll
        for (int c = 0; c < COLUMN_TILES; ++c) {
          durations[c].take(is_duration, logits[c], logits[c], duration);
          class_logits[c] = is_duration ? logits[c] : kNever;
        }
        add_of_lanes(sums_of_durations, class_logits, true);
        publish_keys(durations, p.entries + 1);
        publish_sums(durations, sums_of_durations, p.entries);
      });
  if (own.count == 0) {
    const int entry = turn_of(p.tiles[kOutput], p.blocks, block);
    publish_keys(candidates, entry);
    publish_sums(candidates, log_sums, entry);
  }
}

// Waits for the keys that all blocks publish of the columns that have frames, and of column 0, so that in every round
// every block has heard of every other. Some lanes read those of a column, and find its symbol.
template <class T, int COLUMN_TILES>
__device__ __forceinline__ bool Search<T, COLUMN_TILES>::read_keys() {
  constexpr int kColumnLanes = COLUMN_TILES == 1 ? 32 : COLUMN_TILES == 2 ? 16 : 8, kBatch = 3;
  const int column = warp + lane / kColumnLanes * kWarps, own_lane = lane % kColumnLanes;
  const bool has_durations = p.model.durationCount > 0;
  const int count = p.entries + (has_durations ? 2 : 1), pairs = (count + 1) / 2;
  const bool is_wanted = column < kColumns && (column == 0 || has_frame(column));
  const TaggedWord* const keys = keys_of(is_wanted ? column : 0, round);
  const auto is_of_round = [&](TaggedWord key) { return ((static_cast<uint32_t>(key) ^ round) & 0xFFFF) == 0; };
  TaggedWord best = 0, blank_key = 0, duration_key = 0;
#pragma unroll 1
  for (int first = own_lane; first - own_lane < pairs; first += kBatch * kColumnLanes) {
    TwoLongs words[kBatch] = {};
    const auto has_arrived = [&](int k) {
      const int i = first + k * kColumnLanes;
      return !is_wanted || i >= pairs ||
             (is_of_round(words[k].first) && (2 * i + 1 >= count || is_of_round(words[k].second)));
    };
    wait_together<kBatch>(
        has_arrived, [&](int k) { words[k] = load_tagged(keys + 2 * (first + k * kColumnLanes)); }, p.timed_out,
        timed_out);
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
#pragma unroll
      for (int w = 0; w < 2; ++w) {
        const int entry = 2 * (first + k * kColumnLanes) + w;
        const TaggedWord key = w == 0 ? words[k].first : words[k].second;
        if (entry < p.entries && key > best) best = key;
        if (entry == p.entries) blank_key = key;
        if (entry == p.entries + 1) duration_key = key;
      }
    }
  }
#pragma unroll
  for (int bits = kColumnLanes / 2; bits > 0; bits /= 2) {
    const TaggedWord other = __shfl_xor_sync(kWholeWarp, best, bits);
    if (other > best) best = other;
  }
  const int of_column = lane - own_lane;
  const float blank = __uint_as_float(
      __shfl_sync(kWholeWarp, static_cast<uint32_t>(blank_key >> 32), of_column + p.entries / 2 % kColumnLanes));
  duration_key = __shfl_sync(kWholeWarp, duration_key, of_column + (p.entries + 1) / 2 % kColumnLanes);
  if (is_wanted && own_lane == 0) {
    const Candidate candidate = candidate_of(best);
    const bool is_finite =
        candidate.key != Candidate::kNotFinite && blank < INFINITY &&
        (candidate.place != Candidate::kNoPlace || candidate.key != Candidate::kNoKey || blank != kNever);
    Column found = {-1, 1};
    if (is_finite) {
      const float value = from_ordered(candidate.key);
      if (value > blank || (value == blank && candidate.place < p.model.blank)) found = {candidate.place, 0};
      if (has_durations) {
        const Candidate of_durations = candidate_of(duration_key);
        const bool is_number = of_durations.key != Candidate::kNotFinite && of_durations.place != Candidate::kNoPlace;
        const int duration = is_number ? p.model.durations[of_durations.place] : 1;
        found.duration = found.symbol < 0 ? max(1, duration) : duration;
      }
    }
    columns_of(round)[column] = found;
  }
  return !sync_threads_or(timed_out);
}

// The log-probabilities of a column of the last round, which has found this, from all pieces' parts, by a warp: the
// sums have one order, however many blocks have the pieces.
template <class T, int COLUMN_TILES>
__device__ __forceinline__ ColumnScores Search<T, COLUMN_TILES>::score_of(int column, const Column& found, int node,
                                                                          uint32_t of_round) {
  constexpr int kBatch = 3;
  const ListPart* const parts = parts_of(column, of_round);
  const TwoLongs with_blank = load_tagged(keys_of(column, of_round) + p.entries / 2 * 2);
  const auto first_of = [](const TwoLongs& part) { return __uint_as_float(static_cast<uint32_t>(part.first)); };
  const auto second_of = [](const TwoLongs& part) { return __uint_as_float(static_cast<uint32_t>(part.first >> 32)); };
  // After the parts of the pieces comes that of the durations.
  const int count = p.entries + (p.model.durationCount > 0 ? 1 : 0);
  const int entry = found.symbol < 0 ? -1 : found.symbol / kTileRows / p.tiles[kOutput].together;
  LogSum all;
  float logit = 0, duration_log_prob = 0;
#pragma unroll 1
  for (int first = lane; first - lane < count; first += kBatch * 32) {
    TwoLongs pieces[kBatch] = {};
    wait_together<kBatch>(
        [&](int k) { return first + k * 32 >= count || static_cast<uint32_t>(pieces[k].second >> 32) == of_round; },
        [&](int k) { pieces[k] = load_part(parts + first + k * 32); }, p.timed_out, timed_out);
    float log_sums[kBatch], largest = all.largest;
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int b = first + k * 32;
      log_sums[k] = b < p.entries ? first_of(pieces[k]) : kNever;
      largest = fmaxf(largest, log_sums[k]);
      if (b == entry) logit = second_of(pieces[k]);
      if (b == p.entries) duration_log_prob = second_of(pieces[k]) - first_of(pieces[k]);
    }
    if (all.largest != largest) all.sum *= expf(all.largest - largest);
#pragma unroll
    for (int k = 0; k < kBatch; ++k) all.sum += log_sums[k] == kNever ? 0 : expf(log_sums[k] - largest);
    all.largest = largest;
  }
  add_up_lanes(all);
  logit = __shfl_sync(kWholeWarp, logit, max(entry, 0) % 32);
  duration_log_prob = __shfl_sync(kWholeWarp, duration_log_prob, p.entries % 32);
  const float others = all.log_sum();
  const TaggedWord blank_key = p.entries % 2 == 0 ? with_blank.first : with_blank.second;
  const float blank = __uint_as_float(static_cast<uint32_t>(blank_key >> 32));
  const float together = add_logs(others, blank);
  ColumnScores scores = {blank - together, 0, 0, 0};
  if (!(fabsf(together) < INFINITY)) {
    scores.log_prob = kNever;
    return scores;
  }
  if (found.symbol >= 0) {
    scores = {logit - together, logit - others, 0, 0};
    if (p.bias.nodes > 0) scores.gain = static_cast<const float*>(p.bias.gains)[node * p.model.classes + found.symbol];
  }
  if (p.model.durationCount > 0)
    scores.duration_log_prob = fabsf(duration_log_prob) < INFINITY ? duration_log_prob : kNever;
  return scores;
}

}  // namespace prnn::decode_cuda
