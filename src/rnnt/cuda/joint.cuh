// What the joiner's kernels share on the device.
#pragma once

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
    for (int i = 0; i < kCount; i += kWidth)
      *reinterpret_cast<Piece<Element, kWidth>*>(target + i) = *reinterpret_cast<const Piece<Element, kWidth>*>(at + i);
  }
};

// Writes kCount neighbouring elements of a row of a factor, whose terms lie `stride` elements apart.
template <class Form, Side kSide, int kCount>
__device__ __forceinline__ void store_terms(typename Form::Matrix* row, int64_t stride,
                                            const typename Form::Real (&values)[kCount]) {
  alignas(16) Run<typename Form::Matrix, kCount> upper;
#pragma unroll
  for (int i = 0; i < kCount; ++i) from_real(upper.at[i], values[i]);
  upper.store(row);
  if constexpr (Form::kTerms == 3) {
    alignas(16) Run<typename Form::Matrix, kCount> lower;
#pragma unroll
    for (int i = 0; i < kCount; ++i) from_real(lower.at[i], values[i] - to_real(upper.at[i]));
    (kSide == Side::kLeft ? lower : upper).store(row + stride);
    (kSide == Side::kLeft ? upper : lower).store(row + 2 * stride);
  }
}

// Where the rows of frame t of sequence n begin and how many symbols they stand for, from symbol `begin` on. The layout
// is PACKED or PRUNED.
struct FrameRows {
  int64_t first;
  int begin, count;
};

__device__ __forceinline__ FrameRows frame_rows(const Problem& p, const Sequence& s, int64_t n, int t) {
  if (p.layout == PRNN_RNNT_PACKED) return {s.cell_begin + static_cast<int64_t>(t) * (s.targets + 1), 0, s.targets + 1};
  const int64_t frame = n * p.max_frames + t;
  const int begin = p.range_begins[frame];
  return {frame * p.prune_range, begin, min(static_cast<int>(p.prune_range), s.targets + 1 - begin)};
}

}  // namespace prnn::rnnt_cuda
