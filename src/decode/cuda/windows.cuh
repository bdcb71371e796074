// Which columns of the output layer are whose frames.
#pragma once

#include "decode/cuda/params.h"

namespace prnn::decode_cuda {

__device__ __forceinline__ int quotient(int number, const Divisor& by) {
  return by.factor == 0 ? number : static_cast<int>(__umulhi(static_cast<unsigned>(number), by.factor));
}

// Each slot of a beam search has as many, in every round.
struct EqualWindows {
  int slots, window;
  Divisor frames_of_slot;

  template <class PARAMS>
  explicit __device__ __forceinline__ EqualWindows(const PARAMS& p)
      : slots(p.slots), window(p.window), frames_of_slot(p.frames_of_slot) {}

  __device__ __forceinline__ int columns() const { return slots * window; }
  __device__ __forceinline__ int slot_of(int column) const { return quotient(column, frames_of_slot); }
  __device__ __forceinline__ int first_column(int slot) const { return slot * window; }
};

// The live slots of a greedy search have all columns in equal shares, up to kMostWindow: fewer slots, longer windows.
struct SharedWindows {
  unsigned live = 0;   // a bit for each slot
  uint32_t slots = 0;  // their numbers in their order, 4 bits each
  int count = 0, window = 1;
  unsigned reciprocal = 0;  // of the window, in 256ths

  template <class PARAMS>
  explicit __device__ __forceinline__ SharedWindows(const PARAMS&) {}
  __device__ __forceinline__ SharedWindows(unsigned live_slots, int columns) : live(live_slots) {
#pragma unroll 1
    for (unsigned left = live; left != 0; left &= left - 1, ++count)
      slots |= static_cast<uint32_t>(__ffs(static_cast<int>(left)) - 1) << 4 * count;
    if (count > 0) window = min(kMostWindow, columns / count);
    reciprocal = (255 + window) / window;
  }

  __device__ __forceinline__ int columns() const { return count * window; }
  // Beyond the columns: kSlots.
  __device__ __forceinline__ int slot_of(int column) const {
    if (column >= columns()) return kSlots;
    return static_cast<int>(slots >> 4 * (static_cast<unsigned>(column) * reciprocal >> 8) & 15);
  }
  __device__ __forceinline__ int first_column(int slot) const { return __popc(live & ((1u << slot) - 1)) * window; }
};

}  // namespace prnn::decode_cuda
