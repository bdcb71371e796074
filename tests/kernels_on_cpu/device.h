// The names of CUDA C++ that the kernels use, in host C++. Included before all else.
#pragma once

#include <cmath>

#include "gpu.h"

#undef __device__
#undef __global__
#undef __forceinline__
#undef __grid_constant__
#undef __launch_bounds__
#define __device__
#define __global__
#define __forceinline__ PRNN_IN_CALLER
#define __grid_constant__
#define __launch_bounds__(...)

using std::abs;
using std::fmax;
using std::isnan;
using std::max;
using std::min;
using std::sqrt;

namespace gpu {

struct Index {
  unsigned x, y, z;
};
inline Index place(unsigned number, unsigned across, unsigned down) {
  return {number % across, number / across % down, number / across / down};
}
template <class To, class From>
To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
template <class V>
V value_of_lane(const V& value, int lane) {
  const auto all = exchange(value);
  V found;
  std::memcpy(&found, all[lane & 31], sizeof found);
  return found;
}

}  // namespace gpu

#define threadIdx (gpu::place(gpu::current->number, gpu::grid.threads_across, gpu::grid.threads))
#define blockIdx (gpu::place(gpu::current->block->index, gpu::grid.across, gpu::grid.down))
#define blockDim                                               \
  (gpu::Index{static_cast<unsigned>(gpu::grid.threads_across), \
              static_cast<unsigned>(gpu::grid.threads / gpu::grid.threads_across), 1})
#define gridDim                                                                               \
  (gpu::Index{static_cast<unsigned>(gpu::grid.across), static_cast<unsigned>(gpu::grid.down), \
              static_cast<unsigned>(gpu::grid.blocks / gpu::grid.across / gpu::grid.down)})

namespace gpu {

// A launch as translate.py spells it.
template <class Kernel>
void run(const dim3& blocks, const dim3& threads, size_t shared_bytes, const Kernel& kernel) {
  const auto count = [](const dim3& of) { return static_cast<int>(of.x * of.y * of.z); };
  Grid shape{count(blocks), count(threads), 1, static_cast<int64_t>(shared_bytes)};
  shape.across = static_cast<int>(blocks.x);
  shape.down = static_cast<int>(blocks.y);
  shape.threads_across = static_cast<int>(threads.x);
  if (launch(shape, kernel)) return;
  std::printf("the kernel does not end\n");
  std::_Exit(2);
}

}  // namespace gpu

inline uint32_t __float_as_uint(float value) { return gpu::bits_as<uint32_t>(value); }
inline float __uint_as_float(uint32_t bits) { return gpu::bits_as<float>(bits); }
inline int __float_as_int(float value) { return gpu::bits_as<int>(value); }
inline float __int_as_float(int bits) { return gpu::bits_as<float>(bits); }
inline double __hiloint2double(int high, int low) {
  return gpu::bits_as<double>(uint64_t{static_cast<uint32_t>(high)} << 32 | static_cast<uint32_t>(low));
}
inline long long __double_as_longlong(double value) { return gpu::bits_as<long long>(value); }
inline double __longlong_as_double(long long bits) { return gpu::bits_as<double>(bits); }
inline int __double2hiint(double value) { return static_cast<int>(gpu::bits_as<uint64_t>(value) >> 32); }
inline int __double2loint(double value) { return static_cast<int>(gpu::bits_as<uint64_t>(value)); }
inline int __viaddmax_s32(int a, int b, int least) { return max(static_cast<int>(unsigned(a) + unsigned(b)), least); }
template <class T>
PRNN_IN_CALLER T atomicAdd(T* to, T value) {
  gpu::may_yield();
  const T before = *to;
  *to = before + value;
  return before;
}
template <class T>
T __ldcs(const T* from) {
  gpu::may_yield();
  return *from;
}
template <class T>
PRNN_IN_CALLER void __stcs(T* to, T value) {
  gpu::may_yield();
  *to = value;
}
template <class T>
PRNN_IN_CALLER void __stwb(T* to, T value) {
  __stcs(to, value);
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t both = uint64_t{high} << 32 | low;
  uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t nibble = selector >> 4 * i & 0xF;
    if (nibble > 7) gpu::fail("__byte_perm() with signs");
    chosen |= static_cast<uint32_t>(both >> 8 * nibble & 0xFF) << 8 * i;
  }
  return chosen;
}
// Rounded down, and up.
inline float __double2float_rd(double x) {
  const float nearest = static_cast<float>(x);
  return nearest > x ? std::nextafter(nearest, -INFINITY) : nearest;
}
inline float __double2float_ru(double x) { return -__double2float_rd(-x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }

// Shuffles of a warp. `width`: that of the groups of lanes that exchange values.
template <class V>
V __shfl_sync(unsigned, V value, int from, int width = 32) {
  return gpu::value_of_lane(value, gpu::lane() / width * width + from % width);
}
template <class V>
V __shfl_xor_sync(unsigned, V value, int bits) {
  return gpu::value_of_lane(value, gpu::lane() ^ bits);
}
template <class V>
V __shfl_down_sync(unsigned, V value, int distance) {
  return gpu::value_of_lane(value, gpu::lane() + distance < 32 ? gpu::lane() + distance : gpu::lane());
}
template <class V>
V __shfl_up_sync(unsigned, V value, int distance) {
  return gpu::value_of_lane(value, gpu::lane() >= distance ? gpu::lane() - distance : gpu::lane());
}
inline unsigned __ballot_sync(unsigned, bool value) {
  const auto all = gpu::exchange(static_cast<uint64_t>(value));
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) bits |= static_cast<unsigned>(all[i][0] != 0) << i;
  return bits;
}
inline int __reduce_min_sync(unsigned, int value) {
  const auto all = gpu::exchange(static_cast<int64_t>(value));
  for (int i = 0; i < 32; ++i) value = min(value, static_cast<int>(all[i][0]));
  return value;
}
inline int __reduce_max_sync(unsigned, int value) {
  const auto all = gpu::exchange(static_cast<int64_t>(value));
  for (int i = 0; i < 32; ++i) value = max(value, static_cast<int>(all[i][0]));
  return value;
}
inline unsigned __reduce_or_sync(unsigned, unsigned value) {
  const auto all = gpu::exchange(static_cast<uint64_t>(value));
  for (int i = 0; i < 32; ++i) value |= static_cast<unsigned>(all[i][0]);
  return value;
}
inline bool __all_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) == ~0u; }
inline bool __any_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) != 0; }
inline void __syncwarp() {
  gpu::Warp& warp = *gpu::current->warp;
  order::arrive(warp.order);
  if (warp.arrived % 32 == 31) order::end(warp.order);
  gpu::exchange(0);
  order::acquire(warp.order);
}
inline void __syncthreads() { gpu::join_or(gpu::current->block->barriers[0], gpu::grid.threads, false); }
inline int __syncthreads_or(int value) {
  return gpu::join_or(gpu::current->block->barriers[0], gpu::grid.threads, value != 0);
}
inline void __threadfence_system() {}
inline size_t __cvta_generic_to_shared(const void* pointer) {
  const auto offset = static_cast<size_t>(static_cast<const char*>(pointer) - gpu::current->block->shared);
  if (offset >= gpu::kSharedBytes) gpu::fail("an address is not of shared memory");
  return offset;
}
