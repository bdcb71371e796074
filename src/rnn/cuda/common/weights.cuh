// Loading fragments of weight matrices.
#pragma once

#include "rnn/cuda/common/exchange.cuh"

namespace prnn {

// 16 bytes of a row-major matrix from element `index`, whose first `available` elements count and the rest are zeros.
template <class T>
__device__ __forceinline__ uint4 load_row_fragment(const T* matrix, int64_t index, int available) {
  constexpr int kElements = 16 / sizeof(T);
  if (available <= 0) return {0, 0, 0, 0};
  const T* from = matrix + index;
  if (available >= kElements && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    return *reinterpret_cast<const uint4*>(from);
  }
  alignas(16) T elements[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) elements[i] = i < available ? from[i] : Element<T>::from_float(0);
  return *reinterpret_cast<const uint4*>(elements);
}

// The fragment as factors of products; see Element<T>::factor.
template <class T>
__device__ __forceinline__ uint4 factors_of(const uint4& words) {
  return {Element<T>::factor(words.x), Element<T>::factor(words.y), Element<T>::factor(words.z),
          Element<T>::factor(words.w)};
}

// Loads down a column: elements `stride` apart.
template <class T>
__device__ __forceinline__ uint4 load_column_fragment(const T* matrix, int64_t index, int64_t stride, int available) {
  constexpr int kElements = 16 / sizeof(T);
  alignas(16) T elements[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    elements[i] = i < available ? matrix[index + i * stride] : Element<T>::from_float(0);
  }
  return *reinterpret_cast<const uint4*>(elements);
}

template <class T>
__device__ __forceinline__ bool has_aligned_rows(const T* matrix, int row_elements) {
  return (reinterpret_cast<uintptr_t>(matrix) | row_elements * sizeof(T)) % 16 == 0;
}

// load_row_fragment() of such a matrix, without a branch: loads do not wait for each other.
template <class T>
__device__ __forceinline__ uint4 load_aligned_vec(const T* matrix, int64_t index, int available) {
  return load_or_zeros(available > 0, matrix + index);
}

}  // namespace prnn
