// Timesteps of uniform and of variable-length batches.
#pragma once

#include "rnn/cuda/common/element.cuh"
#include "rnn/cuda/common/params.h"

namespace prnn {

struct Step {
  int row = 0;
  int batch = 0;
};

// Sizes: ResidentSizes, or DirectionSteps.
template <class Sizes>
__device__ __forceinline__ Step step_at(const Sizes& sizes, int t) {
  if (sizes.table == nullptr) return {t * sizes.batch, sizes.batch};
  const StepSizes entry = sizes.table[t];
  return {entry.row, entry.batch};
}

// Sequences of timestep t; none outside the timesteps.
__device__ __forceinline__ int batch_at(const ResidentSizes& sizes, int t) {
  if (t < 0 || t >= sizes.steps) return 0;
  return sizes.table == nullptr ? sizes.batch : sizes.table[t].batch;
}

// Timesteps that have a sequence from `column` on: the first ones, since batches do not grow.
template <class Sizes>
__device__ __forceinline__ int steps_of_column(const Sizes& sizes, int column) {
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

// The timestep of a pass's step `s` of `steps`; no sequences outside them.
template <class Sizes>
__device__ __forceinline__ Step step_of_pass(const Sizes& sizes, int steps, bool runs_down, int s) {
  return s < steps ? step_at(sizes, runs_down ? steps - 1 - s : s) : Step{0, 0};
}

// prnnRNNExtras_t::reset of the later of two neighbouring timesteps, which is `second`, or `first` if the pass runs
// down. 0 without `reset`, and for a sequence that the later one does not have.
__device__ __forceinline__ uint32_t load_reset(const uint8_t* reset, bool runs_down, const Step& first,
                                               const Step& second, int n) {
  if (reset == nullptr) return 0;
  // Numbers are chosen, not one of the steps: that would be one of two addresses, and both steps in local memory.
  const int row = runs_down ? first.row : second.row, batch = runs_down ? first.batch : second.batch;
  uint32_t flag;
  asm volatile("{.reg .pred p; setp.ne.u32 p,%2,0; mov.u32 %0,0; @p ld.global.nc.u8 %0,[%1];}"
               : "=r"(flag)
               : "l"(reset + (row + n)), "r"(static_cast<uint32_t>(n < batch)));
  return flag;
}

// Whether sequence n has no state from the step before. EXTRAS: of the kernel; without, it does not look, which takes
// small layers 0.03 to 0.07 us a step.
template <bool EXTRAS, class Direction>
__device__ __forceinline__ bool restarts(const Direction& dir, const Step& first, const Step& second, int n) {
  return EXTRAS && load_reset(dir.reset, dir.reverse, first, second, n) != 0;
}

// The last step of a backward pass: one more than timesteps where gradients of initial states are to be stored.
template <class Direction, class Sizes>
__device__ __forceinline__ int last_backward_step(const Direction& dir, const Sizes& sizes, int steps) {
  const bool has_gradients =
      dir.dhx != nullptr || dir.dcx != nullptr || dir.dreset_hx != nullptr || dir.dreset_cx != nullptr;
  return !has_gradients && sizes.table == nullptr ? steps - 1 : steps;
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

// Does it by the whole block. `add(is_first)`: replaces the sum of earlier ones, or adds to it.
template <class T, class Add>
__device__ __forceinline__ void add_bias_sums_before(int s, const Add& add) {
  if (!is_bias_step<T>(s)) return;
  __syncthreads();
  add(s == kBiasSteps<T>);
  __syncthreads();
}

// `is_first` after the last step, which adds what is left.
template <class T>
__device__ __forceinline__ bool is_only_bias_sum(int last_step) {
  return kBiasSteps<T> == 0 || last_step < kBiasSteps<T>;
}

}  // namespace prnn
