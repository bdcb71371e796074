// Conversions between 16-bit numbers in memory and float in registers: to nearest, ties to even; a NaN stays one. Like
// simd.h only for the files of an instruction set.
#pragma once

#include "core/cpu/half.h"
#include "core/cpu/simd.h"

namespace prnn {
namespace PRNN_ISA_NAMESPACE {

PRNN_INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
PRNN_INLINE float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

PRNN_INLINE float widen(float x) { return x; }
PRNN_INLINE double widen(double x) { return x; }
PRNN_INLINE float widen(Bfloat16 x) { return float_of(uint32_t{x.bits} << 16); }

// Rounds float bits to a bfloat16, which is then their upper half. T: uint32_t or a vector of them.
template <class T>
PRNN_INLINE T round_to_upper(T bits) {
  return bits + 0x7fff + (bits >> 16 & 1);
}
PRNN_INLINE void narrow(float x, float* to) { *to = x; }
PRNN_INLINE void narrow(double x, double* to) { *to = x; }
PRNN_INLINE void narrow(float x, Bfloat16* to) {
  const uint32_t bits = bits_of(x);
  to->bits = static_cast<uint16_t>((x == x ? round_to_upper(bits) : bits | 0x400000) >> 16);
}

#if defined(__F16C__)
PRNN_INLINE float widen(Half x) { return _cvtsh_ss(x.bits); }
PRNN_INLINE void narrow(float x, Half* to) { to->bits = _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#else
PRNN_INLINE float widen(Half x) {
  const uint32_t sign = uint32_t{x.bits} << 16 & 0x80000000, magnitude = x.bits & 0x7fff;
  if (magnitude >= 0x7c00) return float_of(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  const float value = magnitude < 0x400 ? static_cast<float>(magnitude) * 0x1p-24f  // subnormal
                                        : float_of((magnitude << 13) + (uint32_t{127 - 15} << 23));
  return float_of(sign | bits_of(value));
}
PRNN_INLINE void narrow(float x, Half* to) {
  const uint32_t sign = bits_of(x) >> 16 & 0x8000, magnitude = bits_of(x) & 0x7fffffff;
  uint32_t bits;
  if (magnitude > 0x7f800000) {
    bits = 0x7e00;
  } else if (magnitude >= 0x47800000) {  // 2^16
    bits = 0x7c00;
  } else if (magnitude < 0x38800000) {  // 2^-14: the sum's unit in the last place is the smallest subnormal
    bits = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  } else {
    bits = (magnitude - (uint32_t{127 - 15} << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  }
  to->bits = static_cast<uint16_t>(sign | bits);
}
#endif

// load(), store(): a vector of floats, from and to as many 16-bit numbers.
#if defined(__AVX512F__)
PRNN_INLINE __m256i load_bits(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
PRNN_INLINE FloatVector load(const Bfloat16* p) {
  const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, load_bits(p));
  return (FloatVector)((FloatBits)wide << 16);
}
PRNN_INLINE FloatVector load(const Half* p) { return _mm512_maskz_cvtph_ps(0xffff, load_bits(p)); }
PRNN_INLINE void store(Bfloat16* p, FloatVector v) {
  const FloatBits bits = (FloatBits)v, rounded = v == v ? round_to_upper(bits) : bits | 0x400000;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)(rounded >> 16)));
}
PRNN_INLINE void store(Half* p, FloatVector v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#elif defined(__AVX2__) && defined(__FMA__)
PRNN_INLINE __m128i load_bits(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
PRNN_INLINE FloatVector load(const Bfloat16* p) {
  return (FloatVector)((FloatBits)_mm256_cvtepu16_epi32(load_bits(p)) << 16);
}
PRNN_INLINE FloatVector load(const Half* p) { return _mm256_cvtph_ps(load_bits(p)); }
PRNN_INLINE void store(Bfloat16* p, FloatVector v) {
  const FloatBits bits = (FloatBits)v, rounded = (v == v ? round_to_upper(bits) : bits | 0x400000) >> 16;
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)rounded, (__m256i)rounded), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
PRNN_INLINE void store(Half* p, FloatVector v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#else
template <class S>
PRNN_INLINE FloatVector load_each(const S* p) {
  FloatVector v = {};
  for (int i = 0; i < Simd<float>::kWidth; ++i) v[i] = widen(p[i]);
  return v;
}
PRNN_INLINE FloatVector load(const Bfloat16* p) { return load_each(p); }
PRNN_INLINE FloatVector load(const Half* p) { return load_each(p); }
template <class S>
PRNN_INLINE void store_each(S* p, FloatVector v) {
  for (int i = 0; i < Simd<float>::kWidth; ++i) narrow(v[i], p + i);
}
PRNN_INLINE void store(Bfloat16* p, FloatVector v) { store_each(p, v); }
PRNN_INLINE void store(Half* p, FloatVector v) { store_each(p, v); }
#endif

// From vectors of pairs of neighbours in memory to the first of each pair, and the second.
PRNN_INLINE void unpair(const Bfloat16*, FloatVector pairs, FloatVector* first, FloatVector* second) {
  *first = (FloatVector)((FloatBits)pairs << 16);
  *second = (FloatVector)((FloatBits)pairs & 0xffff0000);
}
PRNN_INLINE void unpair(const Half*, FloatVector pairs, FloatVector* first, FloatVector* second) {
#if defined(__AVX512F__)
  // Within 16 bytes the firsts, then the seconds.
  const __m512i order = _mm512_set4_epi32(0x0f0e0b0a, 0x07060302, 0x0d0c0908, 0x05040100);
  const __m512i sorted = _mm512_maskz_shuffle_epi8(~__mmask64{0}, (__m512i)pairs, order);
  const __m512 low = _mm512_maskz_cvtph_ps(0xffff, _mm512_maskz_extracti64x4_epi64(0xff, sorted, 0));
  const __m512 high = _mm512_maskz_cvtph_ps(0xffff, _mm512_maskz_extracti64x4_epi64(0xff, sorted, 1));
  *first = _mm512_maskz_shuffle_f32x4(0xffff, low, high, 0x88);
  *second = _mm512_maskz_shuffle_f32x4(0xffff, low, high, 0xdd);
#elif defined(__AVX2__) && defined(__FMA__)
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                                         0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  const __m256i sorted = _mm256_shuffle_epi8((__m256i)pairs, order);
  const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(sorted));
  const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(sorted, 1));
  *first = _mm256_permute2f128_ps(low, high, 0x20);
  *second = _mm256_permute2f128_ps(low, high, 0x31);
#else
  constexpr int W = Simd<float>::kWidth;
  Half halves[2][W];
  for (int i = 0; i < W; ++i) {
    const uint32_t bits = ((FloatBits)pairs)[i];
    halves[0][i].bits = static_cast<uint16_t>(bits);
    halves[1][i].bits = static_cast<uint16_t>(bits >> 16);
  }
  *first = load(halves[0]);
  *second = load(halves[1]);
#endif
}

// Arrays. S: any type.
template <class S>
void widen_array(const S* from, int64_t count, Compute<S>* to) {
  constexpr int W = Simd<Compute<S>>::kWidth;
  int64_t i = 0;
  for (; i + W <= count; i += W) store(to + i, load(from + i));
  for (; i < count; ++i) to[i] = widen(from[i]);
}
template <class S>
void narrow_array(const Compute<S>* from, int64_t count, S* to) {
  constexpr int W = Simd<Compute<S>>::kWidth;
  int64_t i = 0;
  for (; i + W <= count; i += W) store(to + i, load(from + i));
  for (; i < count; ++i) narrow(from[i], to + i);
}

}  // namespace PRNN_ISA_NAMESPACE
}  // namespace prnn
