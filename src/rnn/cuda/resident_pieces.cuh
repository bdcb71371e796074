// Weights whose rows are whole pieces of 16 bytes.
#pragma once

#include "rnn/cuda/resident.cuh"

namespace prnn {

template <class T>
__device__ __forceinline__ bool has_whole_pieces(const T* matrix, int row_elements) {
  return (reinterpret_cast<uintptr_t>(matrix) | row_elements * sizeof(T)) % 16 == 0;
}

// load_row_fragment() of such a matrix, without a branch: loads do not wait for each other.
template <class T>
__device__ __forceinline__ uint4 load_whole_piece(const T* matrix, int64_t index, int available) {
  return load_or_zeros(available > 0, matrix + index);
}

}  // namespace prnn
