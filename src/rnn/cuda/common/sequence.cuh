// Timesteps of uniform and of variable-length batches.
#pragma once

#include "rnn/cuda/common/element.cuh"
#include "rnn/cuda/common/params.h"

namespace prnn {

struct Step {
  int row = 0;
  int batch = 0;
};

__device__ __forceinline__ Step step_at(const ResidentSizes& sizes, int t) {
  if (sizes.table == nullptr) return {t * sizes.batch, sizes.batch};
  const StepSizes entry = sizes.table[t];
  return {entry.row, entry.batch};
}

// Timesteps that have a sequence from `column` on: the first ones, since batches do not grow.
__device__ __forceinline__ int steps_of_column(const ResidentSizes& sizes, int column) {
  if (sizes.table == nullptr) return sizes.steps;
  int low = 0, high = sizes.steps;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (sizes.table[middle].batch > column) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Timesteps whose gradients are summed for the biases before the sum goes to that of earlier ones, since adding a float
// to a long sum loses more; 0: all at once.
template <class T>
constexpr int kBiasSteps = kExact<T> ? 32 : 0;

// Whether that is to be done before step s.
template <class T>
__device__ __forceinline__ bool is_bias_step(int s) {
  if constexpr (kBiasSteps<T> > 0) return s > 0 && s % kBiasSteps<T> == 0;
  return false;
}

}  // namespace prnn
