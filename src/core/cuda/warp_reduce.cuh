// The least and the largest of a warp's values: instructions from compute capability 8.0 on.
#pragma once

namespace prnn {

template <class T>
__device__ __forceinline__ T warp_min(T value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  for (int distance = 16; distance > 0; distance /= 2) value = min(value, __shfl_xor_sync(~0u, value, distance));
  return value;
#else
  return __reduce_min_sync(~0u, value);
#endif
}

template <class T>
__device__ __forceinline__ T warp_max(T value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  for (int distance = 16; distance > 0; distance /= 2) value = max(value, __shfl_xor_sync(~0u, value, distance));
  return value;
#else
  return __reduce_max_sync(~0u, value);
#endif
}

}  // namespace prnn
