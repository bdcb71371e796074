// Factors of the products of the resident kernels of the LSTM with layer normalisation.
#pragma once

#include "rnn/cuda/common/weights.cuh"

namespace prnn {

// A word of weights or states as the matrix instruction wants it. Floats are split where they are multiplied.
template <class T>
__device__ __forceinline__ uint32_t factor_of(uint32_t word) {
  if constexpr (kExact<T>) {
    return word;
  } else {
    return Element<T>::factor(word);
  }
}

template <class T>
__device__ __forceinline__ uint4 factor_of(uint4 words) {
  if constexpr (kExact<T> || sizeof(T) == 2) {
    return words;
  } else {
    return factors_of<T>(words);
  }
}

// A number that pack() makes such a word of.
template <class T>
__device__ __forceinline__ float factor_of(float value) {
  if constexpr (sizeof(T) == 4) {
    return __uint_as_float(factor_of<T>(__float_as_uint(value)));
  } else {
    return value;
  }
}

}  // namespace prnn
