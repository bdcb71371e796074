// The data types of the resident kernels: conversions, words, and the matrix instruction.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace prnn {

// A word of an exchange buffer that no block has written yet: a NaN that no conversion or arithmetic result here is
// stored as (every NaN is stored as the positive quiet one).
constexpr uint32_t kEmpty = 0xFFFFFFFFu;

// Words: two 16-bit elements or one float, the unit in which states travel. `mma` adds the product of 16 rows (two
// row tiles, `low` and `high`) of weights and 8 columns of states over the K that 16 bytes a thread cover,
// `mma_transposed` that of one row tile, which is the other operand there.
template <class T>
struct Element {  // 16-bit types
  static_assert(sizeof(T) == 2);
  static constexpr int kPerWord = 2;
  static constexpr bool kIsHalf = std::is_same_v<T, __half>;

  static __device__ float to_float(T value) { return static_cast<float>(value); }
  static __device__ T from_float(float value) { return T(value); }
  static __device__ uint32_t pack(float first, float second) {
    if constexpr (kIsHalf) {
      const __half2 packed = __floats2half2_rn(first, second);
      return reinterpret_cast<const uint32_t&>(packed);
    } else {
      const __nv_bfloat162 packed = __floats2bfloat162_rn(first, second);
      return reinterpret_cast<const uint32_t&>(packed);
    }
  }
  static __device__ void mma(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                             uint32_t b1) {
#define PRNN_MMA(type)                                                   \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type    \
               ".f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};" \
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])  \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
    if constexpr (kIsHalf) {
      PRNN_MMA("f16");
    } else {
      PRNN_MMA("bf16");
    }
#undef PRNN_MMA
  }
  static __device__ void mma_transposed(float (&sum)[4], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1) {
    mma(sum, a0, 0, a2, 0, b0, b1);
  }

  // The words of factors that are multiplied more than once, and their product.
  static __device__ uint32_t factor(uint32_t word) { return word; }
  static __device__ void mma_of_factors(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                        uint32_t b0, uint32_t b1) {
    mma(sum, a0, a1, a2, a3, b0, b1);
  }
};

// Float32 on the tf32 units without losing float32's accuracy: each factor is split into two tf32 numbers, and the
// three products that matter are added (the fourth is below 2^-22 of the first). docs/resident_kernels_measured.md.
template <>
struct Element<float> {
  static constexpr int kPerWord = 1;
  static __device__ float to_float(float value) { return value; }
  static __device__ float from_float(float value) { return value; }
  static __device__ uint32_t pack(float value, float) { return isnan(value) ? 0x7FFFFFFFu : __float_as_uint(value); }

  // The instruction reads the first 19 bits of a word: a number is its own high part. The low part is made larger by
  // ADDED 2^-23 of the number, which is, on the average, what the instruction cuts off. Volatile, so that it is
  // computed where it is used: kept for all weights, it would not fit the registers.
  template <int ADDED>
  static __device__ uint32_t low(uint32_t word) {
    uint32_t rest;
    asm volatile("{.reg .b32 h; and.b32 h,%1,0xFFFFE000; neg.f32 h,h; fma.rn.f32 %0,%1,%2,h;}"
                 : "=r"(rest)
                 : "r"(word), "f"(1 + ADDED / 8388608.0f));
    return rest;
  }
  static __device__ void mma_tf32(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                  uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
  static __device__ void mma(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                             uint32_t b1) {
    mma_tf32(sum, low<2>(a0), low<2>(a1), low<2>(a2), low<2>(a3), b0, b1);
    mma_tf32(sum, a0, a1, a2, a3, low<1>(b0), low<1>(b1));
    mma_tf32(sum, a0, a1, a2, a3, b0, b1);
  }
  static __device__ void mma_transposed(float (&sum)[4], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1) {
    mma_tf32(sum, a0, 0, a2, 0, low<2>(b0), low<2>(b1));
    mma_tf32(sum, low<1>(a0), 0, low<1>(a2), 0, b0, b1);
    mma_tf32(sum, a0, 0, a2, 0, b0, b1);
  }
};

// The instruction rounds its sums towards zero. Tolerable for 16 bits and tf32, not for float32's accuracy over many
// k-tiles.
template <class T>
constexpr bool kExact = std::is_same_v<T, float>;

}  // namespace prnn
