// Float layers whose recurrent product is one product of tf32 numbers, for callers who allow that. Memory, activations
// and carried states are float's.
#pragma once

#include "rnn/cuda/common/element.cuh"

namespace prnn {

// A float that counts as a factor with 11 significant bits.
struct Tf32 {
  float value;
};

// Found by its argument where the kernels load their inputs.
__device__ __forceinline__ Tf32 __ldcs(const Tf32* from) { return {::__ldcs(&from->value)}; }

template <>
struct Element<Tf32> : Element<float> {
  static __device__ float to_float(Tf32 number) { return number.value; }
  static __device__ Tf32 from_float(float value) { return {value}; }
  static __device__ uint32_t round(uint32_t word) {
    uint32_t rounded;
    asm("cvt.rna.tf32.f32 %0,%1;" : "=r"(rounded) : "f"(__uint_as_float(word)));
    return rounded;
  }
  static __device__ void mma(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                             uint32_t b1) {
    mma_tf32(sum, round(a0), round(a1), round(a2), round(a3), round(b0), round(b1));
  }
  static __device__ void mma_transposed(float (&sum)[4], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1) {
    mma(sum, a0, 0, a2, 0, b0, b1);
  }

  static __device__ uint32_t factor(uint32_t word) { return round(word); }
  static __device__ void mma_of_factors(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                        uint32_t b0, uint32_t b1) {
    mma_tf32(sum, a0, a1, a2, a3, b0, b1);
  }
};

}  // namespace prnn
