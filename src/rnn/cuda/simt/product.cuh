// What the simt kernels have in common: float32 layers of one sequence a replica, or a few, with all recurrent weights
// in registers. The matrix instructions would leave most of eight columns empty; lanes multiply and add in float
// instead. docs/resident_kernels.md explains the design.
#pragma once

#include "rnn/cuda/common/block.cuh"
#include "rnn/cuda/common/dsmem.cuh"
#include "rnn/cuda/common/lanes.cuh"
#include "rnn/cuda/common/launch.cuh"
#include "rnn/cuda/common/sequence.cuh"
#include "rnn/cuda/common/shared_memory.cuh"
#include "rnn/cuda/common/step_io.cuh"
#include "rnn/cuda/common/unroll.cuh"
#include "rnn/cuda/common/weights.cuh"
#include "rnn/plan/simt.h"

namespace prnn {

__device__ __forceinline__ float float_of(const uint4& vec, int element) {
  return __uint_as_float(element == 0 ? vec.x : element == 1 ? vec.y : element == 2 ? vec.z : vec.w);
}

// Adds up COUNT values over LANES adjacent lanes: half of the values for half of the lanes, until a lane has one or
// there is no other lane. Lane l then has the sums of values l % COUNT, and l % COUNT + LANES and so on.
template <int COUNT, int LANES, int APART = 1>
__device__ __forceinline__ void sum_over_lanes(float (&values)[COUNT], int lane) {
  if constexpr (APART < LANES) {
    if constexpr (COUNT == 1) {
      values[0] += __shfl_xor_sync(kWholeWarp, values[0], APART);
      sum_over_lanes<1, LANES, APART * 2>(values, lane);
    } else {
      const bool is_odd = lane / APART % 2 == 1;
      float half[COUNT / 2];
#pragma unroll
      for (int i = 0; i < COUNT / 2; ++i) {
        const float given = is_odd ? values[2 * i] : values[2 * i + 1];
        half[i] = (is_odd ? values[2 * i + 1] : values[2 * i]) + __shfl_xor_sync(kWholeWarp, given, APART);
      }
      sum_over_lanes<COUNT / 2, LANES, APART * 2>(half, lane);
#pragma unroll
      for (int i = 0; i < COUNT / 2; ++i) values[i] = half[i];
    }
  }
}

// The products of a block's rows with the vectors that all blocks exchange, one a sequence: states, or gates'
// gradients. K is split over the warps, and in a warp over the lanes of a row group of ROWS rows, ROW_GROUPS of which
// it has. LOADS: 16-byte loads of a lane from a vector.
template <int ROWS, int ROW_GROUPS, int LOADS, int COLUMNS>
struct SimtProduct {
  static constexpr int kLanes = 32 / ROW_GROUPS;
  static constexpr int kRowSums = ROWS == 3 ? 4 : ROWS;                  // of a row group's sums
  static constexpr int kElements = kResidentWarps * kLanes * 4 * LOADS;  // of a vector, at most
  static constexpr int kApart = kResidentWarps * kLanes * 4;             // between a lane's vectors
  static constexpr int kSums = ROW_GROUPS * kRowSums;                    // of a warp, for a column
  static constexpr int kStride = kSums <= 8 ? kSums : kSums + 8;  // between the warps' sums: against bank conflicts
  static constexpr int kColumnStride = kResidentWarps * kStride;

  float weights[LOADS][ROWS][4];
  uint4 vecs[COLUMNS * LOADS];  // [column][load]

  static __device__ __forceinline__ int row_group_of_lane() { return threadIdx.x % 32 / kLanes; }
  // Of K, what this lane's first vec begins with.
  static __device__ __forceinline__ int first_element() {
    return (threadIdx.x / 32 * kLanes + threadIdx.x % kLanes) * 4;
  }

  // Issues the first loads of `columns` vectors in global memory, of which `elements` count. `from`: this lane's first
  // vec.
  __device__ __forceinline__ void prefetch(const float* from, int elements, int columns, int apart, int column_stride) {
    unroll<COLUMNS, LOADS>([&](int c, int i) {
      vecs[c * LOADS + i] = load_or_zeros(first_element() + i * kApart < elements && (COLUMNS == 1 || c < columns),
                                          from + c * column_stride + i * apart);
    });
  }

  // Waits until all of them have arrived.
  __device__ __forceinline__ void wait_loads(const float* from, int apart, int column_stride, int* fault,
                                             bool& timed_out) {
    const auto address = [&](int i) { return from + i / LOADS * column_stride + i % LOADS * apart; };
    poll_words(vecs, address, fault, timed_out);
  }

  // From shared memory.
  __device__ __forceinline__ void read(uint32_t from) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) vecs[i] = load_shared(from + i * kApart * 4);
  }

  // Row r of row group g comes to g * kRowSums + r of the column's and warp's sums.
  __device__ __forceinline__ void multiply(float* sums) const {
    const int lane = threadIdx.x % kLanes;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      float sum[kRowSums] = {};
      unroll<LOADS, 4>([&](int i, int j) {
        const float k = float_of(vecs[c * LOADS + i], j);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) sum[r] = fmaf(weights[i][r][j], k, sum[r]);
      });
      sum_over_lanes<kRowSums, kLanes>(sum, lane);
      float* const to = sums + c * kColumnStride + threadIdx.x / 32 * kStride + row_group_of_lane() * kRowSums + lane;
#pragma unroll
      for (int i = 0; i < (kRowSums + kLanes - 1) / kLanes; ++i) {
        if (lane < kRowSums) to[i * kLanes] = sum[i];
      }
    }
  }

  // The sum over the warps of sum `index` of a column. SHARED: its 4 lanes, which differ in `sub`, share the work.
  template <bool SHARED>
  static __device__ __forceinline__ float total(const float* sums, int column, int index, int sub) {
    constexpr int kParts = SHARED ? kResidentWarps / 4 : kResidentWarps;
    float part[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      part[i] = sums[column * kColumnStride + (SHARED ? sub + 4 * i : i) * kStride + index];
    }
    add_all(part);
    return SHARED ? sum_over_subs(part[0]) : part[0];
  }
};

// Cooperatively, or, where the blocks exchange in clusters, without.
template <class Params>
cudaError_t launch_simt(void (*kernel)(Params), const ResidentShape& shape, const Params& params, cudaStream_t stream) {
  if (shape.cluster > 1) return launch_cluster(kernel, shape.cluster, kResidentThreads, 0, params, stream);
  return launch_resident(kernel, shape, params, stream);
}

}  // namespace prnn
