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

// Calls launch.run<Element, kWidth, kGroup>() with the width of a piece and the number of lanes that share a row. Short
// rows get few lanes, so that no lane is without work and a warp still reads one run of memory. `step` is a common
// divisor of the distances between rows, in elements.
template <class Element, class Launch>
void for_row_shape(int64_t classes, int64_t step, std::initializer_list<const void*> arrays, const Launch& launch) {
  const auto fits = [&](int width) {
    bool aligned = classes % width == 0 && step % width == 0;
    for (const void* array : arrays)
      aligned = aligned && reinterpret_cast<uintptr_t>(array) % (width * sizeof(Element)) == 0;
    return aligned;
  };
  constexpr int kWide = 16 / sizeof(Element);
  if (fits(kWide)) {
    if (classes <= 8 * kPieces * kWide)
      launch.template run<Element, kWide, 8>();
    else
      launch.template run<Element, kWide, 32>();
  } else if (fits(2)) {
    if (classes <= 8 * kPieces * 2)
      launch.template run<Element, 2, 8>();
    else
      launch.template run<Element, 2, 32>();
  } else {
    if (classes <= 8 * kPieces)
      launch.template run<Element, 1, 8>();
    else
      launch.template run<Element, 1, 32>();
  }
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
  constexpr int64_t kWarps = 132 * 32, kGroups = 32 / kGroup;
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

// log of the sum of exp over a row, which is read once; NaN if one is in it. All lanes of the warp take part; a group
// whose row is not wanted passes classes = 0.
template <class Real, class Element, int kWidth, int kGroup>
__device__ __forceinline__ Real row_log_sum_exp(const Element* row, int64_t classes, int lane) {
  constexpr Real kEmpty = static_cast<Real>(kNever);
  const int64_t pieces = classes / kWidth;
  const auto* source = reinterpret_cast<const Piece<Element, kWidth>*>(row);
  Real maximum = kEmpty, sum = 0;  // of this lane: the sum is scaled by exp(-maximum)
  for (int64_t base = lane; base < pieces; base += kGroup * kPieces) {
    Piece<Element, kWidth> held[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (base + i * kGroup < pieces) held[i] = source[base + i * kGroup];
    }
    Real highest = maximum;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        if (base + i * kGroup < pieces) highest = max(highest, to_real(held[i].at[k]));
      }
    }
    const Real shift = highest == kEmpty ? Real(0) : highest;
    if (highest != maximum) sum *= fast_exp(maximum - shift);
    maximum = highest;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        if (base + i * kGroup < pieces) sum += fast_exp(to_real(held[i].at[k]) - shift);
      }
    }
  }
  const Real highest = group_max<kGroup>(maximum);
  const Real shift = highest == kEmpty ? Real(0) : highest;
  return shift + log(group_sum<kGroup>(sum * fast_exp(maximum - shift)));
}

// The same for a row that the group's lanes can hold whole, with one exponential an element; `wanted` is false for a
// group whose row is not wanted, and classes the same for all groups.
template <class Real, class Element, int kWidth, int kGroup>
__device__ __forceinline__ Real held_row_log_sum_exp(const Element* row, int classes, bool wanted, int lane) {
  constexpr Real kEmpty = static_cast<Real>(kNever);
  const auto* source = reinterpret_cast<const Piece<Element, kWidth>*>(row);
  const int pieces = classes / kWidth;
  Piece<Element, kWidth> held[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if (wanted && lane + i * kGroup < pieces) held[i] = source[lane + i * kGroup];
  }
  Real values[kPieces * kWidth], maximum = kEmpty, sum = 0;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if (i * kGroup >= pieces) break;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const Real value = wanted && lane + i * kGroup < pieces ? to_real(held[i].at[k]) : kEmpty;
      values[i * kWidth + k] = value;
      maximum = max(maximum, value);
    }
  }
  maximum = group_max<kGroup>(maximum);
  const Real shift = maximum == kEmpty ? Real(0) : maximum;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if (i * kGroup >= pieces) break;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum += fast_exp(values[i * kWidth + k] - shift);
  }
  return shift + log(group_sum<kGroup>(sum));
}

// target[v] = function(v, source[v]) for the whole row; with `reads` false the source is not read and function gets 0.
// Source and target may be the same.
template <class Element, int kWidth, int kGroup, class Function>
__device__ __forceinline__ void row_map(const Element* source, Element* target, int64_t classes, int lane, bool reads,
                                        Function function) {
  using Real = decltype(to_real(Element()));
  const int64_t pieces = classes / kWidth;
  for (int64_t base = lane; base < pieces; base += kGroup * kPieces) {
    Piece<Element, kWidth> held[kPieces];
    if (reads) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int64_t piece = base + i * kGroup;
        if (piece < pieces) held[i] = reinterpret_cast<const Piece<Element, kWidth>*>(source)[piece];
      }
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int64_t piece = base + i * kGroup;
      if (piece >= pieces) continue;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const Real x = reads ? to_real(held[i].at[k]) : Real(0);
        from_real(held[i].at[k], function(piece * kWidth + k, x));
      }
      reinterpret_cast<Piece<Element, kWidth>*>(target)[piece] = held[i];
    }
  }
}

// The same for a row that the group's lanes can hold whole.
template <class Element, int kWidth, int kGroup, class Function>
__device__ __forceinline__ void held_row_map(const Element* source, Element* target, int classes, int lane, bool reads,
                                             Function function) {
  using Real = decltype(to_real(Element()));
  const int pieces = classes / kWidth;
  Piece<Element, kWidth> held[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int piece = lane + i * kGroup;
    if (reads && piece < pieces) held[i] = reinterpret_cast<const Piece<Element, kWidth>*>(source)[piece];
  }
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if (i * kGroup >= pieces) break;
    const int piece = lane + i * kGroup;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const Real x = reads ? to_real(held[i].at[k]) : Real(0);
      from_real(held[i].at[k], function(piece * kWidth + k, x));
    }
    if (piece < pieces) reinterpret_cast<Piece<Element, kWidth>*>(target)[piece] = held[i];
  }
}

}  // namespace prnn
