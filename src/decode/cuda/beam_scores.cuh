// A round's scores of a beam search: the output layer, and the K best symbols of each column. A block lists those of
// its pieces, then puts together the pieces of its columns, and then reads all columns.
#pragma once

#include "decode/cuda/beam.cuh"

namespace prnn::decode_cuda {

constexpr int kNoKey = -0x7FFFFFFF - 1;  // below that of every candidate

__device__ __forceinline__ int key_of(float value) { return value > kNever ? ordered(value) : kNoKey; }

// Keeps the `most` best of the symbols that the lanes have, one after the other, in the first lanes, the best first. Of
// equal ones, the first.
template <int COUNT>
__device__ __forceinline__ void keep_first(float (&kept)[COUNT], int (&kept_symbols)[COUNT],
                                           const float (&values)[COUNT], int symbol, int most) {
  const int lane = threadIdx.x % 32;
  int keys[COUNT];
#pragma unroll
  for (int c = 0; c < COUNT; ++c) keys[c] = key_of(values[c]);
#pragma unroll 1
  for (int r = 0; r < most; ++r) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) {
      const int best = __reduce_max_sync(kWholeWarp, keys[c]);
      const int from = __ffs(static_cast<int>(__ballot_sync(kWholeWarp, keys[c] == best))) - 1;
      if (lane == r && best != kNoKey) kept[c] = from_ordered(best), kept_symbols[c] = symbol - lane + from;
      if (lane == from) keys[c] = kNoKey;
    }
  }
}

// Keeps the `most` best of those that the first lanes have kept, the best first, and of the symbols that the lanes
// have, in the lanes' order and behind those kept. Of equal ones, the first.
template <int COUNT>
__device__ __forceinline__ void keep_best(float (&kept)[COUNT], int (&kept_symbols)[COUNT],
                                          const float (&values)[COUNT], int symbol, int most) {
  const int lane = threadIdx.x % 32;
  int kept_keys[COUNT], keys[COUNT];
  bool is_better = false;
#pragma unroll
  for (int c = 0; c < COUNT; ++c) {
    kept_keys[c] = key_of(kept[c]);
    keys[c] = key_of(values[c]);
    is_better |= keys[c] > __shfl_sync(kWholeWarp, kept_keys[c], most - 1);
  }
  if (__any_sync(kWholeWarp, is_better) == 0) return;
  int symbols[COUNT];
#pragma unroll
  for (int c = 0; c < COUNT; ++c) {
    symbols[c] = kept_symbols[c];
    kept[c] = kNever;
  }
#pragma unroll 1
  for (int r = 0; r < most; ++r) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) {
      const int best = __reduce_max_sync(kWholeWarp, max(kept_keys[c], keys[c]));
      const unsigned of_kept = __ballot_sync(kWholeWarp, kept_keys[c] == best);
      const unsigned of_new = __ballot_sync(kWholeWarp, keys[c] == best);
      const bool is_kept = of_kept != 0;
      const int from = __ffs(static_cast<int>(is_kept ? of_kept : of_new)) - 1;
      const int taken = __shfl_sync(kWholeWarp, is_kept ? symbols[c] : symbol, from);
      if (lane == r && best != kNoKey) {
        kept[c] = from_ordered(best);
        kept_symbols[c] = taken;
      }
      if (lane == from) {
        if (is_kept) kept_keys[c] = kNoKey;
        if (!is_kept) keys[c] = kNoKey;
      }
    }
  }
}

// By a warp. The first lanes have the candidates.
template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void BeamSearch<T, COLUMN_TILES, SLOT_TILES>::publish_list(ListPart* to, float log_sum,
                                                                                      float blank, float pair,
                                                                                      float value, int symbol) const {
  const int first = 2 * max(lane - 1, 0);
  const float values[2] = {__shfl_sync(kWholeWarp, value, first), __shfl_sync(kWholeWarp, value, first + 1)};
  const int symbols[2] = {__shfl_sync(kWholeWarp, symbol, first), __shfl_sync(kWholeWarp, symbol, first + 1)};
  if (lane > p.list_parts) return;
  const uint32_t both = static_cast<uint32_t>(symbols[1]) << 16 | static_cast<uint32_t>(symbols[0] & 0xFFFF);
  publish_part(to + lane, lane == 0 ? ListPart{log_sum, blank, __float_as_uint(pair), round}
                                    : ListPart{values[0], values[1], both, round});
}

// By a warp, of its columns: the durations' logits, of the rows of a pass from `first_row` on.
template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void BeamSearch<T, COLUMN_TILES, SLOT_TILES>::publish_durations(
    const PassSums<COLUMN_TILES>& of_pass, int first_row) const {
  const int first_part = p.list_parts + 1, count = p.list_room - first_part;
  const float* const bias = floats(p.shared.output_bias) + (p.class_tiles - tiles[kOutput].share.first) * kTileRows;
#pragma unroll
  for (int c = 0; c < COLUMN_TILES; ++c) {
    const int column = warp + c * kWarps;
    const auto logit = [&](int duration) {
      return duration < p.model.durationCount ? of_pass(first_row + duration, column) + bias[duration] : 0;
    };
    if (lane < count) {
      publish_part(lists_of_round() + column * p.list_room + first_part + lane,
                   {logit(2 * lane), logit(2 * lane + 1), 0, round});
    }
  }
}

// The own rows of the output layer, and what each piece of them says of each column.
template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void BeamSearch<T, COLUMN_TILES, SLOT_TILES>::score_columns() {
  const Share own = tiles[kOutput].share;
  const float* const bias = floats(p.shared.output_bias);
  const int classes = static_cast<int>(p.model.classes), blank_class = static_cast<int>(p.model.blank);
  const int together = p.tiles[kOutput].together;
  LogSum log_sums[COLUMN_TILES];
  float blanks[COLUMN_TILES], pairs[COLUMN_TILES], kept[COLUMN_TILES];
  int kept_symbols[COLUMN_TILES];
  // For each column's hypothesis: the first slot of its utterance; which others spell the same as they do with a
  // symbol; the symbol with which they do as their partner's column.
  int first_slots[COLUMN_TILES], pair_symbols[COLUMN_TILES], pair_columns[COLUMN_TILES];
  unsigned pairs_of[COLUMN_TILES];
  bool has_pairs = false;
#pragma unroll
  for (int c = 0; c < COLUMN_TILES; ++c) {
    const int column = warp + c * kWarps, slot = slot_of(column);
    pairs_of[c] = 0;
    pair_symbols[c] = -1;
    if (slot >= p.slots) continue;
    const Hypothesis& h = slots[slot];
    first_slots[c] = quotient(slot, p.hypotheses) * beam;
    pairs_of[c] = h.pairs;
    if (h.partner >= 0) pair_symbols[c] = h.pair_symbol;
    pair_columns[c] = column + (h.partner - slot + first_slots[c]) * p.window;
    has_pairs |= pairs_of[c] != 0 || h.partner >= 0;
  }
  const auto begin_piece = [&] {
#pragma unroll
    for (int c = 0; c < COLUMN_TILES; ++c) {
      log_sums[c] = {};
      blanks[c] = pairs[c] = kept[c] = kNever;
      kept_symbols[c] = 0;
    }
  };
  const auto publish = [&](int entry) {
    add_up_lanes(log_sums);
#pragma unroll
    for (int c = 0; c < COLUMN_TILES; ++c) {
      publish_list(parts_of(warp + c * kWarps) + entry * (p.list_parts + 1), log_sums[c].log_sum(), blanks[c], pairs[c],
                   kept[c], kept_symbols[c]);
    }
    begin_piece();
  };
  begin_piece();
  int entry = tiles[kOutput].first_piece, of_piece = 0;  // of_piece: row tiles of this piece before
  multiply_rows<T, COLUMN_TILES>(
      tiles[kOutput], this->ahead, this->columns_of_scores(), COLUMN_TILES, sums(),
      [&](int tile, int rows, const PassSums<COLUMN_TILES>& of_pass) {
        const int first_own = tile * kTileRows, first = own.first * kTileRows + first_own, row = first + lane;
        const bool is_row = lane < rows, is_symbol = is_row && row < classes && row != blank_class;
        const auto is_here = [&](int symbol) { return symbol >= first && symbol < first + rows; };
        const float own_bias = bias[is_row ? first_own + lane : 0];
        float logits[COLUMN_TILES], values[COLUMN_TILES];
#pragma unroll
        for (int c = 0; c < COLUMN_TILES; ++c) logits[c] = of_pass(lane, warp + c * kWarps) + own_bias;
#pragma unroll
        for (int c = 0; c < COLUMN_TILES; ++c) values[c] = is_symbol ? logits[c] : kNever;
        add_of_lanes(log_sums, values, of_piece == 0);
        if (is_here(blank_class)) {
#pragma unroll
          for (int c = 0; c < COLUMN_TILES; ++c) blanks[c] = __shfl_sync(kWholeWarp, logits[c], blank_class - first);
        }
        if (p.bias.nodes > 0) {
#pragma unroll
          for (int c = 0; c < COLUMN_TILES; ++c) values[c] += is_symbol ? gain(warp + c * kWarps, row) : 0;
        }
#pragma unroll
        for (int c = 0; has_pairs && c < COLUMN_TILES; ++c) {
          for (unsigned left = pairs_of[c]; left != 0; left &= left - 1) {
            if (slots[first_slots[c] + __ffs(static_cast<int>(left)) - 1].pair_symbol == row) values[c] = kNever;
          }
          if (is_here(pair_symbols[c])) {
            const int own_row = pair_symbols[c] - first;
            pairs[c] =
                of_pass(own_row, pair_columns[c]) + bias[first_own + own_row] + gain(pair_columns[c], pair_symbols[c]);
          }
        }
        if (of_piece == 0) {
          keep_first(kept, kept_symbols, values, row, beam);
        } else {
          keep_best(kept, kept_symbols, values, row, beam);
        }
        const int next_tile = tile + rows / kTileRows;
        of_piece += rows / kTileRows;
        if (own.first + next_tile > p.class_tiles) publish_durations(of_pass, p.class_tiles * kTileRows - first);
        if (of_piece == together || next_tile == own.count) {
          publish(entry++);
          of_piece = 0;
        }
      });
  if (own.count == 0) publish(turn_of(p.tiles[kOutput], p.blocks, block));
}

// A column's candidates of all pieces, by a warp.
template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ void BeamSearch<T, COLUMN_TILES, SLOT_TILES>::merge_column(const ListPart* parts,
                                                                                      int column) const {
  const int of_piece = p.list_parts + 1;
  LogSum log_sum;
  for (int e = lane; e < p.entries; e += 32) log_sum.add(parts[e * of_piece].first);
  add_up_lanes(log_sum);

  // How many candidates of each of this lane's pieces are taken already, in 4 bits each, and the best of the others.
  unsigned taken = 0;
  int key = kNoKey, symbol = 0, piece = 0;
  const auto find_best = [&] {
    key = kNoKey;
    for (int i = 0; lane + 32 * i < p.entries; ++i) {
      const int next = static_cast<int>(taken >> 4 * i & 0xF);
      const ListPart part = parts[(lane + 32 * i) * of_piece + 1 + next / 2];
      const int own_key = key_of(next % 2 == 0 ? part.first : part.second);
      if (own_key > key) key = own_key, piece = i, symbol = static_cast<int>(part.more >> next % 2 * 16 & 0xFFFF);
    }
  };
  find_best();
  float value = kNever;
  int value_symbol = 0;
#pragma unroll 1
  for (int r = 0; r < beam; ++r) {
    const int best = __reduce_max_sync(kWholeWarp, key);
    if (best == kNoKey) break;
    const int first = __reduce_min_sync(kWholeWarp, key == best ? symbol : 0x7FFFFFFF);
    if (lane == r) value = from_ordered(best), value_symbol = first;
    if (key == best && symbol == first && r + 1 < beam) {
      taken += 1u << 4 * piece;
      find_best();
    }
    __syncwarp();
  }
  const Hypothesis& h = slots[slot_of(column)];
  const float blank = parts[entry_of(static_cast<int>(p.model.blank)) * of_piece].second;
  const float pair = h.partner >= 0 ? __uint_as_float(parts[entry_of(h.pair_symbol) * of_piece].more) : kNever;
  publish_list(lists_of_round() + column * p.list_room, log_sum.log_sum(), blank, pair, value, value_symbol);
}

// Waits for what all pieces say of the columns whose lists this block puts together: of those that have frames and of
// column 0, so that in every round every block has heard of every other.
template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ bool BeamSearch<T, COLUMN_TILES, SLOT_TILES>::merge_lists() {
  const int of_column = static_cast<int>(p.parts_of_column.divisor);
  const int own = block < kColumns ? (kColumns - 1 - block) / p.blocks + 1 : 0;
  ListPart* const gathered = reinterpret_cast<ListPart*>(sums());
  const ListPart* const parts = parts_of(block);
  sync_threads();  // all warps have read the sums of the last pass
  const auto is_wanted = [&](int column) { return column == 0 || has_frame(column); };
  gather(
      own * of_column, [&](int i) { return is_wanted(block + quotient(i, p.parts_of_column) * p.blocks) ? i : -1; },
      [&](int i) { return load_part(parts + quotient(i, p.parts_of_column) * (p.blocks - 1) * of_column + i); },
      [&](const TwoLongs& v) { return static_cast<uint32_t>(v.second >> 32) == round; },
      [&](int i, const TwoLongs& v) { reinterpret_cast<TwoLongs*>(gathered)[i] = v; }, p.timed_out, timed_out);
  if (sync_threads_or(timed_out)) return false;
  for (int turn = warp; turn < own; turn += kWarps) {
    const int column = block + turn * p.blocks;
    if (is_wanted(column)) merge_column(gathered + turn * of_column, column);
  }
  return true;
}

// Waits for the lists of the same columns, whoever has put them together.
template <class T, int COLUMN_TILES, int SLOT_TILES>
__device__ __forceinline__ bool BeamSearch<T, COLUMN_TILES, SLOT_TILES>::gather_lists() {
  const ListPart* const published = lists_of_round();
  gather(
      p.slots * p.window * p.list_room,
      [&](int i) {
        const int column = quotient(i, p.parts_of_list);
        return column == 0 || has_frame(column) ? i : -1;
      },
      [&](int i) { return load_part(published + i); },
      [&](const TwoLongs& v) { return static_cast<uint32_t>(v.second >> 32) == round; },
      [&](int i, const TwoLongs& v) { reinterpret_cast<TwoLongs*>(lists)[i] = v; }, p.timed_out, timed_out);
  return !sync_threads_or(timed_out);
}

}  // namespace prnn::decode_cuda
