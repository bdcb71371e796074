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

// The factors that a word has.
template <class T>
struct Factors {
  static constexpr int kPerWord = 2;
  static void unpack(uint32_t word, float* factors) {
    for (int i = 0; i < 2; ++i) factors[i] = static_cast<float>(bits_as<T>(static_cast<uint16_t>(word >> 16 * i)));
  }
};
// CUDA's conversion on the host loops over the bits of a mantissa.
template <>
struct Factors<__half> {
  static constexpr int kPerWord = 2;
  static void unpack(uint32_t word, float* factors) {
    for (int i = 0; i < 2; ++i) {
      const uint32_t bits = word >> 16 * i, exponent_and_mantissa = (bits & 0x7FFF) << 13;
      const bool is_finite = (bits & 0x7C00) != 0x7C00;
      const float value = is_finite ? bits_as<float>(exponent_and_mantissa) * 0x1p112f
                                    : bits_as<float>(exponent_and_mantissa | 0x7F800000);
      factors[i] = (bits & 0x8000) != 0 ? -value : value;
    }
  }
};
template <>
struct Factors<Tf32> {
  static constexpr int kPerWord = 1;
  static void unpack(uint32_t word, float* factors) { factors[0] = bits_as<float>(word & 0xFFFFE000); }
};
// Products of two rows with two columns, each of eight words.
template <class T, class Sum>
struct TwoByTwo {
  static constexpr int kFactors = 8 * Factors<T>::kPerWord;
  float rows[2][kFactors], columns[2][kFactors];

  static void unpack(float (&factors)[kFactors], int w, uint32_t word) {
    Factors<T>::unpack(word, factors + w * Factors<T>::kPerWord);
  }
  // sums[row][column]: along K.
  void multiply(Sum (&sums)[2][2]) const {
    using Pair [[gnu::vector_size(2 * sizeof(Sum))]] = Sum;  // of both columns
    Pair first{}, second{};
    for (int k = 0; k < kFactors; ++k) {
      const Pair both = {static_cast<Sum>(columns[0][k]), static_cast<Sum>(columns[1][k])};
      first += static_cast<Sum>(rows[0][k]) * both;
      second += static_cast<Sum>(rows[1][k]) * both;
    }
    sums[0][0] = first[0], sums[0][1] = first[1], sums[1][0] = second[0], sums[1][1] = second[1];
  }
};

// A float, rounded towards zero as the instructions round their sums.
inline float truncated(double value) {
  const auto near = static_cast<float>(value);
  const bool is_beyond = std::abs(static_cast<double>(near)) > std::abs(value);
  return bits_as<float>(bits_as<uint32_t>(near) -
                        (is_beyond ? 1 : 0));  // as std::nextafter(near, 0.0f), which is a call
}

// mma.sync m16n8k16, of Tf32 m16n8k8.
template <class T>
void multiply_tile(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                   uint32_t b0, uint32_t b1) {
  if (!order::kMultiplies) return;  // the values have no effect on the order
  using F = Factors<T>;
  struct Operands {
    float a[2][2][F::kPerWord], b[2][F::kPerWord];  // [of k][row + 8]
  };
  Operands own;
  F::unpack(a0, own.a[0][0]), F::unpack(a1, own.a[0][1]), F::unpack(a2, own.a[1][0]), F::unpack(a3, own.a[1][1]);
  F::unpack(b0, own.b[0]), F::unpack(b1, own.b[1]);
  const auto all = exchange(own);
  const auto operands_of = [&](int lane) { return reinterpret_cast<const Operands*>(all[lane]); };
  TwoByTwo<T, double> product;
  const int row = lane() / 4 * 4, column = lane() % 4 * 8;  // their first lanes
  for (int k = 0; k < 8; ++k) {
    for (int i = 0; i < 2; ++i) {
      const auto& a = operands_of(row + k % 4)->a[k / 4][i];
      const auto& b = operands_of(column + 4 * i + k % 4)->b[k / 4];
      std::copy(a, a + F::kPerWord, product.rows[i] + k * F::kPerWord);
      std::copy(b, b + F::kPerWord, product.columns[i] + k * F::kPerWord);
    }
  }
  double sums[2][2];
  product.multiply(sums);
  d0 = truncated(d0 + sums[0][0]), d1 = truncated(d1 + sums[0][1]);
  d2 = truncated(d2 + sums[1][0]), d3 = truncated(d3 + sums[1][1]);
}

// ---- wgmma: each warp has 16 rows; a row of B is a column of the product ----

// A descriptor's contents: where an operand starts, and how long its rows are, 128, 64 or 32 bytes, whose vecs are
// permuted.
struct Operand {
  explicit Operand(uint64_t descriptor)
      : start(static_cast<uint32_t>(descriptor & 0x3FFF) << 4), row_bytes(256 >> (descriptor >> 62)) {}

  uint32_t start, row_bytes;

  uint32_t place(int row, int byte) const {
    const uint32_t address = start + row * row_bytes + byte;
    return address ^ (address >> 7 & (row_bytes / 16 - 1)) << 4;
  }
  // The 32 bytes of a row that a product reads.
  void read(int row, uint32_t (&words)[8]) const {
    for (int i = 0; i < 2; ++i) order::copy(words + 4 * i, at(place(row, 16 * i), 16), 16);
  }
};
// Follows the rows of an operand that a warp reads: 32 bytes of each.
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
  TwoByTwo<T, float> product;
  for (int half = 0; half < 2; ++half)
    for (int w = 0; w < 8; ++w) product.unpack(product.rows[half], w, a.words[half][w]);
  for (int i = 0; i < count; i += 4) {
    for (int pair = 0; pair < 2; ++pair) {
      uint32_t words[8];
      operand.read(i / 4 * 8 + lane() % 4 * 2 + pair, words);
      for (int w = 0; w < 8; ++w) product.unpack(product.columns[pair], w, words[w]);
    }
    float added[2][2];
    product.multiply(added);
    sums[i] += added[0][0], sums[i + 1] += added[0][1], sums[i + 2] += added[1][0], sums[i + 3] += added[1][1];
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
      operand.read(first + half * 8 + lane() / 4, rows.words[half]);
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
    TwoByTwo<T, float> product;
    for (int half = 0; half < 2; ++half) {
      uint32_t words[8];
      operand.read(first + half * 8 + lane() / 4, words);
      for (int w = 0; w < 8; ++w) product.unpack(product.rows[half], w, words[w]);
    }
    for (int i = 0; i < COLUMNS / 2; i += 4) {
      const int column = i / 4 * 8 + lane() % 4 * 2;
      for (int k = 0; k < 16; ++k) {
        uint32_t word;
        float pair[2];
        order::copy(&word, at(columns.place(k, 2 * column), 4), 4);
        Factors<T>::unpack(word, pair);
        product.columns[0][k] = pair[0], product.columns[1][k] = pair[1];
      }
      float added[2][2];
      product.multiply(added);
      to[i] += added[0][0], to[i + 1] += added[0][1], to[i + 2] += added[1][0], to[i + 3] += added[1][1];
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
