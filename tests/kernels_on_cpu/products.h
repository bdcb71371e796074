// The matrix instructions: what each lane has of the operands is what PTX says.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device.h"

namespace prnn {
struct Tf32;  // rnn/cuda/common/tf32.cuh: a float, of which the instructions read the first 19 bits
}

namespace gpu {

using prnn::Tf32;

template <class T>
struct Factor {
  static constexpr int kPerWord = 2;
  static float of(uint32_t word, int i) {
    return static_cast<float>(bits_as<T>(static_cast<uint16_t>(word >> 16 * i)));
  }
};
template <>
struct Factor<Tf32> {
  static constexpr int kPerWord = 1;
  static float of(uint32_t word, int) { return bits_as<float>(word & 0xFFFFE000); }
};

// A float, rounded towards zero as the instructions round their sums.
inline float truncated(double value) {
  const auto near = static_cast<float>(value);
  return std::abs(static_cast<double>(near)) > std::abs(value) ? std::nextafter(near, 0.0f) : near;
}

// mma.sync m16n8k16, of Tf32 m16n8k8.
template <class T>
void multiply_tile(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                   uint32_t b0, uint32_t b1) {
  if (!order::kMultiplies) return;  // the values have no effect on the order
  struct Words {
    uint32_t a[2][2], b[2];  // [of k][row + 8]
  };
  const auto all = exchange(Words{{{a0, a1}, {a2, a3}}, {b0, b1}});
  Words words[32];
  for (int i = 0; i < 32; ++i) std::memcpy(&words[i], all[i], sizeof words[i]);
  float* const sums[4] = {&d0, &d1, &d2, &d3};
  for (int i = 0; i < 4; ++i) {
    const int row = lane() / 4 * 4, column = (lane() % 4 * 2 + i % 2) * 4;  // their first lanes
    double sum = 0;
    for (int k = 0; k < 8; ++k) {
      const uint32_t a = words[row + k % 4].a[k / 4][i / 2], b = words[column + k % 4].b[k / 4];
      for (int e = 0; e < Factor<T>::kPerWord; ++e)
        sum += static_cast<double>(Factor<T>::of(a, e)) * static_cast<double>(Factor<T>::of(b, e));
    }
    *sums[i] = truncated(*sums[i] + sum);
  }
}

// ---- wgmma: each warp has 16 rows; a row of B is a column of the product ----

// What a descriptor says: where an operand starts, and how long its rows are, 128, 64 or 32 bytes, whose vecs are
// permuted.
struct Operand {
  explicit Operand(uint64_t descriptor)
      : start(static_cast<uint32_t>(descriptor & 0x3FFF) << 4), row_bytes(256 >> (descriptor >> 62)) {}

  uint32_t start, row_bytes;

  uint32_t place(int row, int byte) const {
    const uint32_t address = start + row * row_bytes + byte;
    return address ^ (address >> 7 & (row_bytes / 16 - 1)) << 4;
  }
  uint32_t word(int row, int w) const {
    uint32_t word;
    order::copy(&word, at(place(row, w * 4), 4), 4);
    return word;
  }
};
// Of an operand that a warp reads: 32 bytes of each row.
PRNN_IN_CALLER void follow_rows(const Operand& operand, int first, int rows) {
  if (!order::kOn || lane() != 0) return;
  for (int i = 0; i < 2 * rows; ++i)
    order::read_by_product(at(operand.place(first + i / 2, i % 2 * 16), 16), 16, current->product_groups);
}
struct Rows {
  uint32_t words[2][8];  // of two rows of A: 32 bytes each
};
template <class T>
void multiply_rows(float* sums, int count, const Rows& a, uint64_t b) {
  const Operand operand(b);
  for (int i = 0; i < count; ++i) {
    const int column = i / 4 * 8 + lane() % 4 * 2 + i % 2;
    float sum = 0;
    for (int w = 0; w < 8; ++w) {
      const uint32_t word = operand.word(column, w);
      for (int e = 0; e < Factor<T>::kPerWord; ++e)
        sum += Factor<T>::of(a.words[i % 4 / 2][w], e) * Factor<T>::of(word, e);
    }
    sums[i] += sum;
  }
}
struct Fragment {
  uint32_t words[4];
};
template <class T, int HALF_COLUMNS>
PRNN_IN_CALLER void multiply(float (&sums)[HALF_COLUMNS], const uint32_t (&a)[4], uint64_t b) {
  const auto all = exchange(Fragment{{a[0], a[1], a[2], a[3]}});
  Rows rows;
  for (int w = 0; w < 8; ++w) {
    Fragment fragment;
    std::memcpy(&fragment, all[lane() / 4 * 4 + w % 4], sizeof fragment);
    for (int half = 0; half < 2; ++half) rows.words[half][w] = fragment.words[w / 4 * 2 + half];
  }
  float* const to = sums;
  follow_rows(Operand(b), 0, 2 * HALF_COLUMNS);
  if (order::kOn) return;  // the values have no effect on the order
  issue(current->products, current->product_groups, [=] { multiply_rows<T>(to, HALF_COLUMNS, rows, b); });
}
template <class T, int HALF_COLUMNS>
PRNN_IN_CALLER void multiply(float (&sums)[HALF_COLUMNS], uint64_t a, uint64_t b) {
  exchange(0);
  float* const to = sums;
  const Operand operand(a);
  const int first = current->number / 32 % 4 * 16;  // of the warp's rows
  follow_rows(operand, first, 16);
  follow_rows(Operand(b), 0, 2 * HALF_COLUMNS);
  if (order::kOn) return;  // the values have no effect on the order
  issue(current->products, current->product_groups, [=] {
    Rows rows;
    for (int half = 0; half < 2; ++half) {
      const int row = first + half * 8 + lane() / 4;
      for (int w = 0; w < 8; ++w) rows.words[half][w] = operand.word(row, w);
    }
    multiply_rows<T>(to, HALF_COLUMNS, rows, b);
  });
}

// B as it lies: its 16 rows are along K, COLUMNS long.
template <class T, int COLUMNS>
PRNN_IN_CALLER void multiply_along_k(float (&sums)[32], uint64_t a, uint64_t b) {
  exchange(0);
  float* const to = sums;
  const Operand operand(a), columns(b);
  const int first = current->number / 32 % 4 * 16;
  if (columns.row_bytes != 2 * COLUMNS) fail("rows along K are not those of one permuted tile");
  follow_rows(operand, first, 16);
  if (order::kOn && lane() == 0) {
    for (int k = 0; k < 16; ++k)
      for (int byte = 0; byte < 2 * COLUMNS; byte += 16)
        order::read_by_product(at(columns.place(k, byte), 16), 16, current->product_groups);
  }
  if (order::kOn) return;  // the values have no effect on the order
  issue(current->products, current->product_groups, [=] {
    for (int i = 0; i < COLUMNS / 2; ++i) {
      const int row = first + i % 4 / 2 * 8 + lane() / 4, column = i / 4 * 8 + lane() % 4 * 2 + i % 2;
      float sum = 0;
      for (int k = 0; k < 16; ++k) {
        uint16_t element;
        order::copy(&element, at(columns.place(k, 2 * column), 2), 2);
        sum += Factor<T>::of(operand.word(row, k / 2), k % 2) * Factor<T>::of(element, 0);
      }
      to[i] += sum;
    }
  });
}

// ---- ldmatrix, stmatrix: lane l has the address of row l % 8 of matrix l / 8 ----

template <class Access>
PRNN_IN_CALLER void access_matrices(uint32_t address, bool is_transposed, const Access& access) {
  const auto addresses = exchange(static_cast<uint64_t>(address));
  uint32_t rows[32];
  for (int i = 0; i < 32; ++i) rows[i] = static_cast<uint32_t>(addresses[i][0]);
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int i = 0; i < 2; ++i) {
      const int pair = lane() % 4 * 2 + i, row = is_transposed ? pair : lane() / 4;
      const int column = is_transposed ? lane() / 4 : pair;
      access(at(rows[8 * matrix + row], 16) + 2 * column, matrix, i);
    }
  }
}
PRNN_IN_CALLER Fragment load_matrices(uint32_t address, bool is_transposed) {
  Fragment fragment;
  access_matrices(address, is_transposed, [&](const char* from, int matrix, int i) {
    std::memcpy(reinterpret_cast<char*>(&fragment.words[matrix]) + 2 * i, from, 2);
  });
  return fragment;
}

}  // namespace gpu
