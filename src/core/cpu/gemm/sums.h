// Sums of a matrix's columns.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/cpu/simd.h"

namespace prnn {
namespace PRNN_ISA_NAMESPACE {

// Adds up kTogether rows at a time, of them kPartial in T.
template <class T>
void add_rows(const T* a, int64_t lda, int64_t rows, int64_t columns, double* sums) {
  constexpr int64_t kTogether = 8, kPartial = 256, kColumns = 256, W = Simd<T>::kWidth;
  alignas(64) T partial[kColumns];
  for (int64_t column = 0; column < columns; column += kColumns) {
    const int64_t width = columns - column < kColumns ? columns - column : kColumns, whole = width / W * W;
    for (int64_t begin = 0; begin < rows; begin += kPartial) {
      const int64_t end = rows - begin < kPartial ? rows : begin + kPartial;
      std::memset(partial, 0, sizeof partial);
      int64_t row = begin;
      for (; row + kTogether <= end; row += kTogether) {
        const T* const from = a + row * lda + column;
        const auto sum = [&](auto get) __attribute__((always_inline)) {
          return ((get(0) + get(1)) + (get(2) + get(3))) + ((get(4) + get(5)) + (get(6) + get(7)));
        };
        for (int64_t i = 0; i < whole; i += W) {
          const auto get = [&](int64_t j) __attribute__((always_inline)) { return load(from + j * lda + i); };
          store(partial + i, load(partial + i) + sum(get));
        }
        if (whole < width) {
          const auto get = [&](int64_t j) __attribute__((always_inline)) {
            return load_part(from + j * lda + whole, static_cast<int>(width - whole));
          };
          store(partial + whole, load(partial + whole) + sum(get));
        }
      }
      for (; row < end; ++row) {
        for (int64_t i = 0; i < width; ++i) partial[i] += a[row * lda + column + i];
      }
      for (int64_t i = 0; i < width; ++i) sums[column + i] += partial[i];
    }
  }
}

}  // namespace PRNN_ISA_NAMESPACE
}  // namespace prnn
