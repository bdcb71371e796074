// Loading the recurrent weights of a backward cluster kernel into registers.
#pragma once

#include "rnn/cuda/common/unroll.cuh"
#include "rnn/cuda/common/weights.cuh"

namespace prnn {

// A warp's weights: rows of its bundles, each of the units of one block; a lane has kLaneUnits adjacent ones. They are
// columns of R, whose rows come k-tile by k-tile through `shared`, which has room for one and is free again after the
// next barrier. Layout: that of the kernel, as ClusterBackward. `matrix`: R, [kGates H, H]. The k-tiles are those
// from `first_tile` on.
template <class T, class Layout, int TILES, int K_TILES>
__device__ __forceinline__ void load_backward_weights(const T* matrix, int hidden, int first_unit, void* shared,
                                                      uint4 (&weights)[TILES][K_TILES][2], int first_tile = 0) {
  constexpr int kFragment = 16 / sizeof(T), kKTile = 4 * kFragment;  // elements
  constexpr int kUnits = Layout::kUnits, kRow = Layout::kRows, kFragments = kRow / kFragment;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sub = lane % 4;
  uint4* const rows = static_cast<uint4*>(shared);
#pragma unroll
  for (int i = 0; i < K_TILES; ++i) {
    __syncthreads();
    for (int j = threadIdx.x; j < kKTile * kFragments; j += Layout::kThreads) {
      const int k = (first_tile + i) * kKTile + j / kFragments, row = j % kFragments * kFragment;
      const int gate = k / kUnits, unit = first_unit + k % kUnits;
      rows[j] = load_row_fragment(matrix, (int64_t{gate} * hidden + unit) * hidden + row,
                                  gate < Layout::kGates && unit < hidden ? hidden - row : 0);
    }
    __syncthreads();
#pragma unroll
    for (int bundle = 0; bundle < Layout::kBundles; ++bundle) {
      constexpr int kPerWord = Element<T>::kPerWord, kWords = Layout::kLaneUnits / kPerWord;
      const int at = (warp * Layout::kBundles + bundle) * Layout::kBundle / kPerWord + lane / 4 * kWords;
      const uint32_t* const from = reinterpret_cast<const uint32_t*>(rows);
      if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int e = 0; e < Layout::kLaneUnits; ++e) {
          const auto word = [&](int j) { return from[(sub * kFragment + j) * kRow + at + e]; };
          weights[bundle * Layout::kBundleTiles + e / 2][i][e % 2] =
              factors_of<T>({word(0), word(1), word(2), word(3)});
        }
      } else {
        uint32_t words[8][kWords];  // of 8 rows of R
        unroll<8, kWords>([&](int j, int w) { words[j][w] = from[(sub * 8 + j) * (kRow / 2) + at + w]; });
#pragma unroll
        for (int e = 0; e < Layout::kLaneUnits; ++e) {
          const auto two_rows = [&](int j) {
            return __byte_perm(words[j][e / 2], words[j + 1][e / 2], e % 2 == 0 ? 0x5410 : 0x7632);
          };
          weights[bundle * Layout::kBundleTiles + e / 2][i][e % 2] = {two_rows(0), two_rows(2), two_rows(4),
                                                                      two_rows(6)};
        }
      }
    }
  }
}

}  // namespace prnn
