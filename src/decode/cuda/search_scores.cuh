// A round's scores: the output layer over the windows' frames, and what all blocks say of each column.
#pragma once

#include "decode/cuda/search.cuh"

namespace prnn::decode_cuda {

// The most probable duration of a column, whose logits the warp's lanes have in their order; the others have
// -infinity.
template <class T, int COLUMN_TILES>
__device__ __forceinline__ void Search<T, COLUMN_TILES>::publish_duration(ColumnPart* parts, float logit,
                                                                          int place) const {
  Summary all[1];
  all[0].add(logit);
  all[0].take(logit, logit, place);
  summarise_over_lanes<32>(all);
  const bool exists = all[0].place >= 0 && all[0].place < kTileRows;
  if (lane == 0)
    publish_part(parts + p.entries + 1,
                 {all[0].value - all[0].log_sum(), 0, 0, place_and_round(exists ? all[0].place : 0)});
}

// The own rows of the output layer, and what each piece of them says of each column.
template <class T, int COLUMN_TILES>
__device__ __forceinline__ void Search<T, COLUMN_TILES>::score_columns() {
  const Share own = tiles[kOutput].share;
  const float* const results = floats(p.shared.results);
  const float* const bias = floats(p.shared.output_bias);
  const int classes = static_cast<int>(p.model.classes);
  ColumnPart* const parts = parts_of_round();
  const int together = p.tiles[kOutput].together;
  const auto publish = [&](Summary(&summaries)[COLUMN_TILES], int entry) {
    summarise_over_lanes<32>(summaries);
#pragma unroll
    for (int c = 0; c < COLUMN_TILES; ++c) {
      const Summary& piece = summaries[c];
      if (lane == 0) {
        publish_part(parts + (warp + c * kWarps) * (p.entries + 2) + entry,
                     {piece.value, piece.logit, piece.log_sum(), place_and_round(piece.place & 0xFFFF)});
      }
      summaries[c] = {};
    }
  };
  Summary summaries[COLUMN_TILES];
  multiply_rows<T, COLUMN_TILES, false>(
      tiles[kOutput], shared_address(memory + p.shared.activations), kTileColumns - 1, p.joiner_stride, sums(),
      floats(p.shared.results), kResultsStride, [&](int tile, int rows) {
        const int own_row = tile * kTileRows + lane, row = own.first * kTileRows + own_row;
        const int next_tile = tile + rows / kTileRows;
        const bool is_row = lane < rows, is_class = is_row && row < classes;
#pragma unroll
        for (int c = 0; c < COLUMN_TILES; ++c) {
          const int column = warp + c * kWarps;
          const float logit = is_row ? results[lane * kResultsStride + column] + bias[own_row] : 0;
          if (is_class && row == p.model.blank)
            publish_part(parts + column * (p.entries + 2) + p.entries, {logit, 0, 0, place_and_round(0)});
          if (is_class && row != p.model.blank) {
            summaries[c].add(logit);
            summaries[c].take(logit + gain(column, row), logit, row);
          }
        }
        if (next_tile % together == 0 || next_tile == own.count) publish(summaries, (own.first + tile) / together);
        if (own.first + next_tile <= p.class_tiles) return;
        const int duration = row - p.class_tiles * kTileRows;
        const bool is_duration = is_row && duration >= 0 && duration < p.model.durationCount;
#pragma unroll 1
        for (int column = warp; column < kColumns; column += kWarps) {
          const float logit = is_duration ? results[lane * kResultsStride + column] + bias[own_row] : kNever;
          publish_duration(parts + column * (p.entries + 2), logit, duration);
        }
      });
  if (own.count == 0) publish(summaries, turn_of(p.tiles[kOutput], p.blocks, block));
}

// Waits for what all blocks say of the columns that have frames, and of column 0, so that in every round every block
// has heard of every other.
template <class T, int COLUMN_TILES>
__device__ __forceinline__ bool Search<T, COLUMN_TILES>::gather_parts() {
  const int of_column = static_cast<int>(p.parts_of_column.divisor);
  const ColumnPart* const parts = parts_of_round();
  gather(
      kColumns * of_column,
      [&](int i) -> const void* {
        const int column = quotient(i, p.parts_of_column);
        return column == 0 || has_frame(column) ? parts + i + column * (p.entries + 2 - of_column) : nullptr;
      },
      [](const void* from) { return load_part(from); },
      [&](const TwoLongs& v) { return (static_cast<uint32_t>(v.second >> 32) & 0xFFFF) == (round & 0xFFFF); },
      [&](int i, const TwoLongs& v) {
        const int column = quotient(i, p.parts_of_column);
        reinterpret_cast<TwoLongs*>(memory + p.shared.sums)[i + column * (p.entries + 2 - of_column)] = v;
      },
      p.timed_out, timed_out);
  return __syncthreads_or(timed_out) == 0;
}

// Puts together each column from all blocks' parts; kColumnLanes lanes for each, whatever the number of columns, so
// that the sums have one order.
template <class T, int COLUMN_TILES>
__device__ __forceinline__ void Search<T, COLUMN_TILES>::read_columns() {
  constexpr int kColumnLanes = 8, kPerWarp = 32 / kColumnLanes;
  for (int first = warp; first < kColumns; first += kPerWarp * kWarps) {
    const int column = first + lane / kColumnLanes * kWarps;
    const bool is_wanted = column < kColumns && has_frame(column);
    const ColumnPart* const parts =
        reinterpret_cast<const ColumnPart*>(memory + p.shared.sums) + column * (p.entries + 2);
    Summary summaries[1];
    Summary& summary = summaries[0];
    if (is_wanted) {
#pragma unroll 4
      for (int b = lane % kColumnLanes; b < p.entries; b += kColumnLanes) {
        const ColumnPart part = parts[b];
        summary.take(part.best, part.logit, static_cast<int>(part.place_and_round >> 16));
        summary.largest = fmaxf(summary.largest, part.log_sum);
      }
#pragma unroll 4
      for (int b = lane % kColumnLanes; b < p.entries; b += kColumnLanes) {
        const float log_sum = parts[b].log_sum;
        if (log_sum != kNever) summary.sum += expf(log_sum - summary.largest);
      }
    }
    summarise_over_lanes<kColumnLanes>(summaries);
    if (!is_wanted || lane % kColumnLanes != 0) continue;
    const float others = summary.log_sum(), blank = parts[p.entries].best, all = add_logs(others, blank);
    Column found = {-1, 1, blank - all, 0, 0, 0};
    if (!(fabsf(all) < INFINITY)) {
      found.log_prob = kNever;
    } else {
      if (summary.value > blank || (summary.value == blank && summary.place < p.model.blank)) {
        found.symbol = summary.place;
        found.duration = 0;
        found.log_prob = summary.logit - all;
        found.confidence = summary.logit - others;
        found.gain = gain(column, summary.place);
      }
      if (p.model.durationCount > 0) {
        const ColumnPart part = parts[p.entries + 1];
        const bool is_number = fabsf(part.best) < INFINITY;
        found.duration_log_prob = is_number ? part.best : kNever;
        const int duration = is_number ? p.model.durations[part.place_and_round >> 16] : 1;
        found.duration = found.symbol < 0 ? max(1, duration) : duration;
      }
    }
    columns[column] = found;
  }
}

}  // namespace prnn::decode_cuda
