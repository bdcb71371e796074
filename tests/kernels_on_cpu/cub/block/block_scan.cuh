// In place of CUB's: what the kernels use of its scan over a block.
#pragma once

#include "device.h"

namespace cub {

template <class T, int THREADS>
class BlockScan {
 public:
  struct TempStorage {
    T values[THREADS];
  };
  explicit BlockScan(TempStorage& storage) : storage_(storage) {}

  template <class Add>
  void ExclusiveScan(const T& own, T& before, const T& first, const Add& add, T& all) {
    storage_.values[threadIdx.x] = own;
    __syncthreads();
    before = all = first;
    for (int i = 0; i < THREADS; ++i) {
      if (i == static_cast<int>(threadIdx.x)) before = all;
      all = add(all, storage_.values[i]);
    }
    // The storage may be used again after a barrier of the caller's.
  }
  void ExclusiveSum(const T& own, T& before, T& all) {
    ExclusiveScan(own, before, T(0), [](const T& a, const T& b) { return a + b; }, all);
  }
  template <int ITEMS>
  void ExclusiveSum(T (&own)[ITEMS], T (&before)[ITEMS], T& all) {
    T sum = 0, sums[ITEMS], first;
    for (int i = 0; i < ITEMS; ++i) {
      sums[i] = sum;
      sum += own[i];
    }
    ExclusiveSum(sum, first, all);
    for (int i = 0; i < ITEMS; ++i) before[i] = first + sums[i];
  }

 private:
  TempStorage& storage_;
};

}  // namespace cub
