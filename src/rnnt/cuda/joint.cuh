// Shared parts of the joiner's kernels on the device.
#pragma once

#include <type_traits>

#include "core/cuda/logits.cuh"
#include "rnnt/cuda/cells.cuh"
#include "rnnt/cuda/joint.h"

namespace prnn::rnnt_cuda {

// The terms of a number as a factor. With a = a1 + a2 and b = b1 + b2, halves of 11 bits each, kLeft a1, a2, a1 and
// kRight b1, b1, b2 make a b but for a2 b2, which is below what a float holds.
enum class Side { kLeft, kRight };

// kCount neighbouring elements, in pieces of at most 16 bytes.
template <class Element, int kCount>
struct Run {
  static constexpr int kWidth = kCount * sizeof(Element) <= 16 ? kCount : static_cast<int>(16 / sizeof(Element));
  Element at[kCount];

  __device__ __forceinline__ void load(const Element* source) {
#pragma unroll
    for (int i = 0; i < kCount; i += kWidth)
      *reinterpret_cast<Piece<Element, kWidth>*>(at + i) = *reinterpret_cast<const Piece<Element, kWidth>*>(source + i);
  }
  __device__ __forceinline__ void store(Element* target) const {
#pragma unroll
    for (int i = 0; i < kCount; i += kWidth) {
      if constexpr (kWidth * sizeof(Element) == 16)  // the compiler on its own would store 4 bytes at a time
        __stwb(reinterpret_cast<uint4*>(target + i), *reinterpret_cast<const uint4*>(at + i));
      else
        *reinterpret_cast<Piece<Element, kWidth>*>(target + i) =
            *reinterpret_cast<const Piece<Element, kWidth>*>(at + i);
    }
  }
};

// kCount neighbouring elements as they lie in memory, in pieces of 16 bytes: loads that wait take no more registers.
template <class Element, int kCount>
struct Words {
  static constexpr int kPieces = kCount * static_cast<int>(sizeof(Element)) / 16;
  uint32_t words[kPieces * 4];

  __device__ __forceinline__ void load_piece(int i, const void* source) {
    const uint4 piece = *static_cast<const uint4*>(source);
    words[i * 4] = piece.x;
    words[i * 4 + 1] = piece.y;
    words[i * 4 + 2] = piece.z;
    words[i * 4 + 3] = piece.w;
  }
  __device__ __forceinline__ auto at(int i) const { return value(static_cast<const Element*>(nullptr), i); }

 private:
  __device__ __forceinline__ double value(const double*, int i) const {
    return __hiloint2double(static_cast<int>(words[i * 2 + 1]), static_cast<int>(words[i * 2]));
  }
  __device__ __forceinline__ float value(const float*, int i) const { return __uint_as_float(words[i]); }
  __device__ __forceinline__ float value(const __nv_bfloat16*, int i) const {
    return __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
  }
  __device__ __forceinline__ float value(const __half*, int i) const {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(words[i / 2] >> i % 2 * 16)));
  }
};

// Where the rows of frame t of sequence n begin and how many symbols they stand for, from symbol `begin` on. The layout
// is PACKED or PRUNED.
struct FrameRows {
  int64_t first;
  int begin, count;
};

// PRUNED: none where the range begins beyond the last target.
__device__ __forceinline__ FrameRows frame_rows(const Problem& p, const Sequence& s, int64_t n, int t) {
  if (p.layout == PRNN_RNNT_PACKED) return {s.cell_begin + static_cast<int64_t>(t) * (s.targets + 1), 0, s.targets + 1};
  const int64_t frame = n * p.maxFrames + t;
  const int begin = p.range_begins[frame];
  return {frame * p.pruneRange, begin, max(min(static_cast<int>(p.pruneRange), s.targets + 1 - begin), 0)};
}

__device__ __forceinline__ int64_t frames_end(const Problem& p, const Frames& frames) {
  return frames.first[p.batch * p.maxFrames];
}

// The last frame from `low` on, and before `high`, that begins at or before a cell.
__device__ __forceinline__ int64_t find_frame(const Frames& frames, int64_t cell, int64_t low, int64_t high) {
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (frames.first[middle] <= cell)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// The frame of a cell below frames_end().
__device__ __forceinline__ int64_t find_frame(const Problem& p, const Frames& frames, int64_t cell) {
  return find_frame(frames, cell, 0, p.batch * p.maxFrames);
}

// The same, by a whole warp.
__device__ __forceinline__ int64_t find_frame_by_warp(const Problem& p, const Frames& frames, int64_t cell) {
  int64_t low = 0, left = p.batch * p.maxFrames;
  const int lane = threadIdx.x % 32;
  while (left > 1) {
    const int64_t step = (left + 31) / 32, ahead = lane * step;
    const bool before = ahead < left && frames.first[low + ahead] <= cell;
    const int64_t passed = (__popc(__ballot_sync(~0u, before)) - 1) * step;
    low += passed;
    left = min(step, left - passed);
  }
  return low;
}

// Cell number `cell`, of a frame.
__device__ __forceinline__ Cell cell_of_frame(const Problem& p, const Frames& frames, int64_t frame, int64_t cell) {
  Cell found;
  divide(frame, p.maxFrames, found.n, found.t);
  found.u = frames.begin[frame] + static_cast<int>(cell - frames.first[frame]);
  found.real = true;
  return found;
}

// Cell number `cell`; not real beyond the last.
__device__ __forceinline__ Cell find_cell(const Problem& p, const Frames& frames, int64_t cell) {
  if (cell >= frames_end(p, frames)) return {0, 0, 0, false};
  return cell_of_frame(p, frames, find_frame(p, frames, cell), cell);
}

// The row of a cell in arrays of the lattice's layout.
__device__ __forceinline__ int64_t row_of(const Problem& p, const Sequence& s, const Cell& cell) {
  const FrameRows rows = frame_rows(p, s, cell.n, cell.t);
  return rows.first + cell.u - rows.begin;
}

// The row of a cell in arrays that are kept for the backward pass: those of TDT have rows of padding, too.
__device__ __forceinline__ int64_t kept_row(const Chunk& chunk, const Sequence& s, const Cell& cell) {
  const Problem& p = chunk.problem;
  if (chunk.joint.tokens < chunk.joint.classes) return (cell.n * p.maxFrames + cell.t) * p.width() + cell.u;
  return row_of(p, s, cell);
}

// Finds the emission of a real cell.
__device__ __forceinline__ Emission find_emission(const Chunk& chunk, const Cell& cell) {
  const Problem& p = chunk.problem;
  const Sequence s = chunk.sequences[cell.n];
  return {lattice_index(p, cell),
          kept_row(chunk, s, cell),
          cell.u < s.targets ? p.targets[s.target_begin + cell.u] : -1,
          cell.t,
          cell.u,
          s.frames};
}

// From the logits of blank and label to the arcs. `label` is not read where there is none.
template <class Real>
__device__ __forceinline__ void write_emission(const Problem& p, const Emission& cell, Real blank, Real label,
                                               Real normaliser, Arcs<Real>* out, Real* normalisers) {
  Arcs<Real> arcs{blank - normaliser, static_cast<Real>(kNever)};
  if (cell.label >= 0) {
    arcs.label = label - normaliser;
    if (p.delayPenalty != 0) arcs.label += static_cast<Real>(p.delayPenalty * (0.5 * (cell.frames - 1) - cell.t));
  }
  out[cell.arcs] = arcs;
  if (normalisers) normalisers[cell.row] = normaliser;
}

// From the logits of blank and label and duration(0) .. to the scores of TDT's arcs, of which a group of `lanes` lanes
// each writes its own.
template <class Real, class Duration>
__device__ __forceinline__ void write_scores(const Problem& p, const DurationHead<Real>& head, const Emission& cell,
                                             Real blank, Real label, Real normaliser, int lane, int lanes,
                                             const Duration& duration) {
  Real highest = static_cast<Real>(kNever), sum = 0;
  for (int i = 0; i < head.entries; ++i) highest = max(highest, duration(i));
  const Real shift = highest == static_cast<Real>(kNever) ? Real(0) : highest;
  for (int i = 0; i < head.entries; ++i) sum += fast_exp(duration(i) - shift);
  const Real duration_normaliser = shift + log(sum);
  if (lane == 0 && head.shares.token_normalisers) {
    head.shares.token_normalisers[cell.row] = normaliser;
    head.shares.duration_normalisers[cell.row] = duration_normaliser;
  }
  const int count = head.arcs.count(), ended = cell.label < 0;
  for (int i = lane; i < count; i += lanes) {
    const DurationArc& arc = head.arcs.arc[i];
    Real score = static_cast<Real>(kNever);
    if (DurationArcs::leads_on(arc, cell.t, ended, cell.frames, 1)) {
      score = (arc.label() ? label : blank) - normaliser - static_cast<Real>(arc.sigma);
      if (arc.entry >= 0) score += duration(arc.entry) - duration_normaliser;
    }
    head.scores[(cell.arcs - cell.u) * count + i * p.width() + cell.u] = score;
  }
}

// The gradient of a duration logit but for limit and scale. Softmax times zero is not zero where the softmax is NaN.
template <class Real>
__device__ __forceinline__ Real duration_gradient(const DurationHead<Real>& head, int64_t row, int entry, Real logit) {
  const Real* record = head.shares.records + row * head.record_size;
  const Real total = record[1];
  if (total == 0) return 0;
  return total * fast_exp(logit - head.shares.duration_normalisers[row]) -
         record[duration_cuda::kSums + head.arcs.slots() - head.entries + entry];
}

template <class Real>
__device__ CellShares<Real> cell_shares(const Chunk& chunk, const CostShares<Real>& made_of, const Cell& cell) {
  CellShares<Real> result{0, 0, 0, 0, 0, -1};
  if (!cell.real) return result;
  const Problem& p = chunk.problem;
  const Sequence s = chunk.sequences[cell.n];
  const int64_t row = result.row = kept_row(chunk, s, cell);
  if (cell.u < s.targets) result.label_at = p.targets[s.target_begin + cell.u];
  if (const Real* records = made_of.weights.records) {
    const Real* slots = records + row * made_of.weights.record_size + duration_cuda::kSums;
    result.label = slots[0];
    result.blank = slots[1];
  } else {
    const Arcs<Real> arcs = made_of.weights.arcs[row];
    result.blank = arcs.blank;
    if (cell.u < s.targets) result.label = arcs.label * static_cast<Real>(1 + p.fastEmitLambda);
  }
  const Real scale = static_cast<Real>(chunk.scales->gradient);
  result.normaliser = made_of.normalisers[row];
  result.scale = scale * (made_of.cost_gradients ? made_of.cost_gradients[cell.n] : Real(1));
  return result;
}

// A NaN stays NaN.
template <class Real>
__device__ __forceinline__ Real limited(Real gradient, Real limit) {
  return gradient > limit ? limit : gradient < -limit ? -limit : gradient;
}

// The gradient of the logit of class v. Softmax times zero is not zero where the softmax is NaN: `cell` has
// probability.
template <class Real>
__device__ __forceinline__ Real logit_gradient(const CellShares<Real>& cell, Real logit, int64_t v, int blank,
                                               Real limit) {
  Real gradient = (cell.blank + cell.label) * fast_exp(logit - cell.normaliser);
  if (v == blank) gradient -= cell.blank;
  if (v == cell.label_at) gradient -= cell.label;
  return limited(gradient, limit) * cell.scale;
}

template <class Real>
__device__ __forceinline__ Real clamp_limit(const Problem& p) {
  return p.clamp > 0 ? static_cast<Real>(p.clamp) : static_cast<Real>(CUDART_INF);
}

template <class Real>
__device__ __forceinline__ Real logit_scale(const Scales* scales) {
  return Real(1) / (static_cast<Real>(scales->activation) * static_cast<Real>(scales->weight));
}

// The derivative of the activation where its stored value is `value`, or that and its `lower` half. kPlain: tanh
// without dropout.
template <class Form, bool kPlain>
struct Slope {
  using Real = typename Form::Real;
  bool is_tanh = true;
  Real keep_scale = 1, unscale = 1;  // unscale: of stored activations

  Slope() = default;
  __device__ __forceinline__ Slope(const Joint& joint, const Scales& scales)
      : is_tanh(joint.activation == PRNN_JOINT_TANH),
        keep_scale(static_cast<Real>(joint.keep_scale)),
        unscale(1 / (static_cast<Real>(scales.activation) * keep_scale)) {}

  __device__ __forceinline__ Real of(Real value, Real lower) const {
    if (!kPlain && value == 0 && signbit(value)) return 0;  // dropped
    if (Form::kTerms == 3) value += lower;
    if (!kPlain || Form::kTerms == 3) value *= unscale;
    const Real slope = fma(-value, value, Real(1));
    return kPlain ? slope : keep_scale * (is_tanh ? slope : value > 0 ? Real(1) : isnan(value) ? value : Real(0));
  }
};

// ---- Layouts of a chunk's matrices ----

// Rows one after the other, the terms of a row side by side.
template <class Element>
struct RowLayout {
  static constexpr bool kTiled = false;
  int64_t stride;
  int terms;
  __device__ __forceinline__ int64_t at(int64_t row, int term, int64_t column) const {
    return (row * terms + term) * stride + column;
  }
};

// Tiles of kTileRows rows of 128 bytes, as wgmma reads them from shared memory: piece p of 16 bytes of row r is at
// p ^ (r % 8). The terms of a tile lie one after the other, then come those of the columns that follow.
template <class Element>
struct TileLayout {
  static constexpr bool kTiled = true;
  static constexpr int kColumns = kTileBytes / static_cast<int>(sizeof(Element));
  static constexpr int kPiece = 16 / static_cast<int>(sizeof(Element));
  int64_t stride;  // whole tiles
  int terms;
  __device__ __forceinline__ int64_t at(int64_t row, int term, int64_t column) const {
    const auto r = static_cast<unsigned>(row), c = static_cast<unsigned>(column);  // a chunk has fewer than 2^31 rows
    const unsigned piece = (c / kPiece ^ r) % 8;
    const unsigned inside = c / kColumns * terms + term;
    return static_cast<int64_t>(r / kTileRows) * (stride * terms * kTileRows) +
           static_cast<int64_t>(inside) * (kTileRows * kColumns) +
           (r % kTileRows * kColumns + piece * kPiece + c % kPiece);
  }
  // Where the row's part of the tile that has the column begins.
  __device__ __forceinline__ int64_t origin(int64_t row, int term, int64_t column) const {
    return row / kTileRows * (stride * terms * kTileRows) +
           (column / kColumns * terms + term) * (kTileRows * kColumns) + row % kTileRows * kColumns;
  }
};

// The layout of a matrix with this many columns and terms of a product.
template <class Layout>
__host__ __device__ Layout chunk_layout(int64_t columns, int terms) {
  if constexpr (Layout::kTiled) {
    return {(columns + Layout::kColumns - 1) / Layout::kColumns * Layout::kColumns, terms == 3 ? 2 : terms};
  } else {
    return {columns, terms};
  }
}

// Writes kCount neighbouring elements of a row of a factor. Tiles have the two halves of a number; rows have the terms.
template <class Form, Side kSide, int kCount, template <class> class Layout>
__device__ __forceinline__ void store_terms(typename Form::Matrix* out, const Layout<typename Form::Matrix>& layout,
                                            int64_t row, int64_t column, const typename Form::Real (&values)[kCount]) {
  using Matrix = typename Form::Matrix;
  alignas(16) Run<Matrix, kCount> upper;
#pragma unroll
  for (int i = 0; i < kCount; ++i) from_real(upper.at[i], values[i]);
  upper.store(out + layout.at(row, 0, column));
  if constexpr (Form::kTerms == 3) {
    alignas(16) Run<Matrix, kCount> lower;
#pragma unroll
    for (int i = 0; i < kCount; ++i) from_real(lower.at[i], values[i] - to_real(upper.at[i]));
    constexpr bool kLowerNext = kSide == Side::kLeft || Layout<Matrix>::kTiled;
    (kLowerNext ? lower : upper).store(out + layout.at(row, 1, column));
    if constexpr (!Layout<Matrix>::kTiled) (kLowerNext ? upper : lower).store(out + layout.at(row, 2, column));
  }
}

}  // namespace prnn::rnnt_cuda
