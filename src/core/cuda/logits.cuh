// Rows of V activations on a GPU, read and written by a group of lanes in pieces as wide as memory likes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#include <initializer_list>

#include "core/cuda/launch.h"
#include "core/cuda/log_zero.h"
#include "prnn_types.h"

namespace prnn {

__device__ __forceinline__ float to_real(float x) { return x; }
__device__ __forceinline__ double to_real(double x) { return x; }
__device__ __forceinline__ float to_real(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_real(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void from_real(float& out, float x) { out = x; }
__device__ __forceinline__ void from_real(double& out, double x) { out = x; }
__device__ __forceinline__ void from_real(__half& out, float x) { out = __float2half_rn(x); }
__device__ __forceinline__ void from_real(__nv_bfloat16& out, float x) { out = __float2bfloat16_rn(x); }

// kWidth elements that one load brings.
template <class Element, int kWidth>
struct alignas(sizeof(Element) * kWidth) Piece {
  Element at[kWidth];
};

constexpr int kRowThreads = 256;  // of a block; each group of lanes has one row
constexpr int kPieces = 4;        // that a lane has in flight

// How rows are taken: by kGroup lanes each, in pieces of kWidth elements that lie at multiples of a piece's size.
// kWhole: a row is made of pieces alone; else it begins and ends anywhere, with up to kWidth - 1 elements on either
// side of them. kHeld: the lanes can hold a row whole.
template <class T, int kPieceWidth, int kLanes, bool kPiecesAlone, bool kHoldsRow>
struct RowShape {
  using Element = T;
  using Real = decltype(to_real(T()));
  static constexpr int kWidth = kPieceWidth, kGroup = kLanes, kAround = kPiecesAlone ? 0 : 2 * (kPieceWidth - 1);
  static constexpr bool kWhole = kPiecesAlone, kHeld = kHoldsRow;
};

// Calls launch.run<Shape>() with the shape for rows of `classes` elements. Short rows get few lanes, so that no lane is
// without work and a warp still reads one run of memory. `step` is a common divisor of the distances between rows, in
// elements. Rows whose pieces lie otherwise in one of the arrays than in the others are taken element by element. For
// short rows of an even length pieces of two elements take fewer instructions than wide ones with elements around them.
template <class Element, class Launch>
void for_row_shape(int64_t classes, int64_t step, std::initializer_list<const void*> arrays, const Launch& launch) {
  constexpr int kWide = 16 / sizeof(Element);
  const auto offset = [](const void* array) { return reinterpret_cast<uintptr_t>(array) % 16; };
  const uintptr_t first = offset(*arrays.begin());
  bool alike = true;
  for (const void* array : arrays) alike = alike && offset(array) == first;
  const auto whole = [&](int width) {
    return first % (width * sizeof(Element)) == 0 && classes % width == 0 && step % width == 0;
  };
  if (!alike)
    launch.template run<RowShape<Element, 1, 32, true, false>>();
  else if (classes > 32 * kPieces * kWide)
    whole(kWide) ? launch.template run<RowShape<Element, kWide, 32, true, false>>()
                 : launch.template run<RowShape<Element, kWide, 32, false, false>>();
  else if (classes > 8 * kPieces * kWide)
    launch.template run<RowShape<Element, kWide, 32, false, true>>();
  else if (whole(kWide))
    launch.template run<RowShape<Element, kWide, 8, true, true>>();
  else if (whole(2) && classes <= 8 * kPieces * 2)
    launch.template run<RowShape<Element, 2, 8, true, true>>();
  else
    launch.template run<RowShape<Element, kWide, 8, false, true>>();
}

// The same, over the element types that are computed in Real.
template <class Real, class Launch>
void for_rows(prnnDataType_t type, int64_t classes, int64_t step, std::initializer_list<const void*> arrays,
              const Launch& launch) {
  if constexpr (sizeof(Real) == sizeof(double)) {
    for_row_shape<double>(classes, step, arrays, launch);
  } else if (type == PRNN_DATA_HALF) {
    for_row_shape<__half>(classes, step, arrays, launch);
  } else if (type == PRNN_DATA_BFLOAT16) {
    for_row_shape<__nv_bfloat16>(classes, step, arrays, launch);
  } else {
    for_row_shape<float>(classes, step, arrays, launch);
  }
}

template <int kGroup>
unsigned blocks_for_rows(int64_t rows) {
  return static_cast<unsigned>(ceil_div(rows, kRowThreads / kGroup));
}

// Short rows are taken by warps in rounds, so that what a row is needs to be found out by one lane only: in each round
// a group of lanes has one row of the warp's 32 / kGroup * rounds. Few rows are spread over many warps.
template <int kGroup>
int rounds_for_rows(int64_t rows) {
  constexpr int64_t kWarps = kGridMultiprocessors * 32, kGroups = 32 / kGroup;
  const int64_t rounds = rows / (kWarps * kGroups);
  return static_cast<int>(rounds < 1 ? 1 : rounds > kGroup ? kGroup : rounds);
}

// exp for sums and gradients that are accurate to float: __expf's error grows with |x|, but its terms shrink faster.
__device__ __forceinline__ float fast_exp(float x) { return __expf(x); }
__device__ __forceinline__ double fast_exp(double x) { return exp(x); }

// The largest, or the sum, of a group's values, in every lane.
template <int kGroup, class Real>
__device__ __forceinline__ Real group_max(Real value) {
#pragma unroll
  for (int step = kGroup / 2; step > 0; step /= 2) value = max(value, __shfl_xor_sync(~0u, value, step));
  return value;
}
template <int kGroup, class Real>
__device__ __forceinline__ Real group_sum(Real value) {
#pragma unroll
  for (int step = kGroup / 2; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// Where a row's pieces lie: from `head` on. `rest` elements lie around them.
template <class Shape>
struct Split {
  int head = 0, rest = 0;
  unsigned pieces;

  __device__ __forceinline__ Split(const typename Shape::Element* row, int classes) : pieces(classes / Shape::kWidth) {
    if constexpr (!Shape::kWhole) {
      constexpr int kWidth = Shape::kWidth;
      const int over = static_cast<int>(reinterpret_cast<uintptr_t>(row) / sizeof(*row) % kWidth);
      head = min(classes, (kWidth - over) % kWidth);
      pieces = (classes - head) / kWidth;
      rest = classes - static_cast<int>(pieces) * kWidth;
    }
  }
  // Where the i-th of the elements around the pieces lies.
  __device__ __forceinline__ int at(int i) const { return i < head ? i : i + static_cast<int>(pieces) * Shape::kWidth; }
};

// A few elements of a row, at most kMost, spread over the lanes of a group and fetched ahead of the many that lie in
// pieces.
template <class Real, int kGroup, int kMost>
struct Few {
  static constexpr int kEach = (kMost + kGroup - 1) / kGroup;

  Real held[kEach > 0 ? kEach : 1];  // minus infinity where there is none

  template <class Element, class Place>
  __device__ __forceinline__ Few(const Element* row, int count, int lane, Place place) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      held[i] = static_cast<Real>(kNever);
      if (lane + i * kGroup < count) held[i] = to_real(row[place(lane + i * kGroup)]);
    }
  }
  __device__ __forceinline__ Real highest(Real value) const {  // and `value`
#pragma unroll
    for (int i = 0; i < kEach; ++i) value = max(value, held[i]);
    return value;
  }
  __device__ __forceinline__ Real sum_exp(Real shift) const {
    Real sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum += fast_exp(held[i] - shift);
    return sum;
  }
};

// The elements around a row's pieces.
template <class Shape>
using Around = Few<typename Shape::Real, Shape::kGroup, Shape::kAround>;

// The number subtracted from a row before its exponentials are added up.
template <class Real>
__device__ __forceinline__ Real shift_of(Real highest) {
  return highest == static_cast<Real>(kNever) ? Real(0) : highest;
}

// log of the sum of exp over a row, which is read once; NaN if one is in it. All lanes of the warp take part; a group
// whose row is not wanted passes classes = 0.
template <class Shape>
__device__ __forceinline__ typename Shape::Real row_log_sum_exp(const typename Shape::Element* row, int classes,
                                                                int lane) {
  using Real = typename Shape::Real;
  constexpr int kWidth = Shape::kWidth, kGroup = Shape::kGroup;
  const Split<Shape> split(row, classes);
  const Around<Shape> around(row, split.rest, lane, [&](int i) { return split.at(i); });
  const auto* source = reinterpret_cast<const Piece<typename Shape::Element, kWidth>*>(row + split.head);
  Real maximum = static_cast<Real>(kNever), sum = 0;  // of this lane: the sum is scaled by exp(-maximum)
  for (unsigned base = lane; base < split.pieces; base += kGroup * kPieces) {
    Piece<typename Shape::Element, kWidth> held[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (base + i * kGroup < split.pieces) held[i] = source[base + i * kGroup];
    }
    Real highest = maximum;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        if (base + i * kGroup < split.pieces) highest = max(highest, to_real(held[i].at[k]));
      }
    }
    const Real shift = shift_of(highest);
    if (highest != maximum) sum *= fast_exp(maximum - shift);
    maximum = highest;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        if (base + i * kGroup < split.pieces) sum += fast_exp(to_real(held[i].at[k]) - shift);
      }
    }
  }
  const Real shift = shift_of(group_max<kGroup>(around.highest(maximum)));
  return shift + log(group_sum<kGroup>(sum * fast_exp(maximum - shift) + around.sum_exp(shift)));
}

// Sums a row that the group's lanes can hold whole, with one exponential an element; `wanted` is false for a
// group whose row is not wanted, and classes the same for all groups.
template <class Shape>
__device__ __forceinline__ typename Shape::Real held_row_log_sum_exp(const typename Shape::Element* row, int classes,
                                                                     bool wanted, int lane) {
  using Real = typename Shape::Real;
  constexpr int kWidth = Shape::kWidth, kGroup = Shape::kGroup;
  const Split<Shape> split(row, wanted ? classes : 0);
  const Around<Shape> around(row, split.rest, lane, [&](int i) { return split.at(i); });
  const auto* source = reinterpret_cast<const Piece<typename Shape::Element, kWidth>*>(row + split.head);
  const int most = classes / kWidth;  // pieces of any group's row
  Piece<typename Shape::Element, kWidth> held[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if (lane + i * kGroup < split.pieces) held[i] = source[lane + i * kGroup];
  }
  Real values[kPieces * kWidth], maximum = around.highest(static_cast<Real>(kNever));
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if (i * kGroup >= most) break;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const Real value = lane + i * kGroup < split.pieces ? to_real(held[i].at[k]) : static_cast<Real>(kNever);
      values[i * kWidth + k] = value;
      maximum = max(maximum, value);
    }
  }
  const Real shift = shift_of(group_max<kGroup>(maximum));
  Real sum = around.sum_exp(shift);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if (i * kGroup >= most) break;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum += fast_exp(values[i * kWidth + k] - shift);
  }
  return shift + log(group_sum<kGroup>(sum));
}

// target[v] = function(v, source[v]) for the whole row; with `reads` false the source is not read and function gets 0.
// Source and target may be the same.
template <class Shape, class Function>
__device__ __forceinline__ void row_map(const typename Shape::Element* source, typename Shape::Element* target,
                                        int classes, int lane, bool reads, Function function) {
  using Real = typename Shape::Real;
  constexpr int kWidth = Shape::kWidth, kGroup = Shape::kGroup;
  using Pieces = Piece<typename Shape::Element, kWidth>;
  const Split<Shape> split(source, classes);
  const Around<Shape> around(source, reads ? split.rest : 0, lane, [&](int i) { return split.at(i); });
  const auto* from = reinterpret_cast<const Pieces*>(source + split.head);
  auto* to = reinterpret_cast<Pieces*>(target + split.head);
  for (unsigned base = lane; base < split.pieces; base += kGroup * kPieces) {
    Pieces held[kPieces];
    if (reads) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        if (base + i * kGroup < split.pieces) held[i] = from[base + i * kGroup];
      }
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const unsigned piece = base + i * kGroup;
      if (piece >= split.pieces) continue;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const Real x = reads ? to_real(held[i].at[k]) : Real(0);
        from_real(held[i].at[k], function(split.head + static_cast<int>(piece) * kWidth + k, x));
      }
      to[piece] = held[i];
    }
  }
#pragma unroll
  for (int i = 0; i < Around<Shape>::kEach; ++i) {
    if (lane + i * kGroup >= split.rest) continue;
    const int v = split.at(lane + i * kGroup);
    from_real(target[v], function(v, reads ? around.held[i] : Real(0)));
  }
}

// Visits a row that the group's lanes can hold whole.
template <class Shape, class Function>
__device__ __forceinline__ void held_row_map(const typename Shape::Element* source, typename Shape::Element* target,
                                             int classes, int lane, bool reads, Function function) {
  using Real = typename Shape::Real;
  constexpr int kWidth = Shape::kWidth, kGroup = Shape::kGroup;
  using Pieces = Piece<typename Shape::Element, kWidth>;
  const Split<Shape> split(source, classes);
  const Around<Shape> around(source, reads ? split.rest : 0, lane, [&](int i) { return split.at(i); });
  const auto* from = reinterpret_cast<const Pieces*>(source + split.head);
  auto* to = reinterpret_cast<Pieces*>(target + split.head);
  Pieces held[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if (reads && lane + i * kGroup < split.pieces) held[i] = from[lane + i * kGroup];
  }
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if (i * kGroup >= split.pieces) break;
    const unsigned piece = lane + i * kGroup;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const Real x = reads ? to_real(held[i].at[k]) : Real(0);
      from_real(held[i].at[k], function(split.head + static_cast<int>(piece) * kWidth + k, x));
    }
    if (piece < split.pieces) to[piece] = held[i];
  }
#pragma unroll
  for (int i = 0; i < Around<Shape>::kEach; ++i) {
    if (lane + i * kGroup >= split.rest) continue;
    const int v = split.at(lane + i * kGroup);
    from_real(target[v], function(v, reads ? around.held[i] : Real(0)));
  }
}

}  // namespace prnn
