// Rows of V activations on a GPU, read and written by a group of lanes in pieces as wide as memory likes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <initializer_list>

#include "core/cuda/launch.h"
#include "core/cuda/log_math.cuh"
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
  constexpr int kWide = 16 / sizeof(Element);
  bool wide = classes % kWide == 0 && step % kWide == 0;
  for (const void* array : arrays) wide = wide && reinterpret_cast<uintptr_t>(array) % 16 == 0;
  const int64_t pieces = wide ? classes / kWide : classes;
  if (wide) {
    if (pieces <= 8 * kPieces)
      launch.template run<Element, kWide, 8>();
    else
      launch.template run<Element, kWide, 32>();
  } else {
    if (pieces <= 8 * kPieces)
      launch.template run<Element, 1, 8>();
    else if (pieces <= 16 * kPieces)
      launch.template run<Element, 1, 16>();
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

// A sum of exponentials, scaled by exp(-maximum).
template <class Real>
struct ScaledSum {
  Real maximum = static_cast<Real>(kNever), sum = 0;

  // Both may be empty; NaN in either makes the sum NaN.
  __device__ __forceinline__ void add(Real other_maximum, Real other_sum) {
    const Real high = maximum > other_maximum ? maximum : other_maximum;
    const Real own_scale = maximum == high ? Real(1) : exp(maximum - high);
    const Real other_scale = other_maximum == high ? Real(1) : exp(other_maximum - high);
    sum = sum * own_scale + other_sum * other_scale;
    maximum = high;
  }
};

// log of the sum of exp over a row, which is read once. All lanes of the warp take part; a group whose row is not
// wanted passes classes = 0.
template <class Real, class Element, int kWidth, int kGroup>
__device__ __forceinline__ Real row_log_sum_exp(const Element* row, int64_t classes, int lane) {
  const int64_t pieces = classes / kWidth;
  const auto* source = reinterpret_cast<const Piece<Element, kWidth>*>(row);
  ScaledSum<Real> own;
  for (int64_t base = lane; base < pieces; base += kGroup * kPieces) {
    Piece<Element, kWidth> held[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (base + i * kGroup < pieces) held[i] = source[base + i * kGroup];
    }
    Real maximum = static_cast<Real>(kNever), sum = 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (base + i * kGroup >= pieces) continue;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) maximum = max(maximum, to_real(held[i].at[k]));
    }
    const Real shift = maximum == static_cast<Real>(kNever) ? Real(0) : maximum;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (base + i * kGroup >= pieces) continue;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) sum += exp(to_real(held[i].at[k]) - shift);
    }
    own.add(maximum, sum);
  }
#pragma unroll
  for (int offset = kGroup / 2; offset > 0; offset /= 2) {
    own.add(__shfl_xor_sync(~0u, own.maximum, offset), __shfl_xor_sync(~0u, own.sum, offset));
  }
  return own.maximum + log(own.sum);
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

}  // namespace prnn
