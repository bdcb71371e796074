// Shared parts of the simt kernels, which serve float32 layers of one sequence a replica, or a few. Recurrent weights
// lie in registers, those of large layers also in shared memory. The matrix instructions would leave most of eight
// columns empty; lanes multiply and add in float instead. docs/resident_kernels.md explains the design.
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
// it has. LOADS: 16-byte loads of a lane from a vector. CHUNK: simt_chunk().
template <int ROWS, int ROW_GROUPS, int LOADS, int COLUMNS, int CHUNK>
struct SimtProduct {
  static constexpr int kLanes = 32 / ROW_GROUPS;
  static constexpr int kRowSums = ROWS == 3 ? 4 : ROWS;                  // of a row group's sums
  static constexpr int kElements = kResidentWarps * kLanes * 4 * LOADS;  // of a vector, at most
  static constexpr int kApart = kResidentWarps * kLanes * 4;             // between a lane's vectors
  static constexpr int kSums = ROW_GROUPS * kRowSums;                    // of a warp, for a column
  static constexpr int kStride = kSums <= 8 ? kSums : kSums + 8;  // between the warps' sums: against bank conflicts
  static constexpr int kColumnStride = kResidentWarps * kStride;

  static constexpr int kInRegisters = simt_register_loads(ROWS, LOADS);  // loads whose weights lie there
  // Loads that are waited for and multiplied together: all, but those of large layers, two chunks of which are in
  // flight.
  static constexpr int kChunk = LOADS == kInRegisters ? LOADS : CHUNK, kChunks = (LOADS + kChunk - 1) / kChunk;
  static_assert(kChunks == 1 || COLUMNS == 1, "large layers have one sequence");

  float weights[kInRegisters][ROWS][4];
  uint32_t more_weights;  // shared address of this thread's: [load - kInRegisters][row][thread]
  uint4 vecs[kChunks > 1 ? 2 : 1][COLUMNS * kChunk];  // [chunk, in turn][column][load]

  // `load(k, rows)` sets rows[r][e] to the weight of row r of the lane's row group at element k + e of K. `shared`: of
  // the block, where the kernel has more loads than registers. `elements`: of a vector.
  template <class Load>
  __device__ __forceinline__ void load_weights(float4* shared, int elements, const Load& load) {
    more_weights = shared_address(shared + threadIdx.x);
#pragma unroll
    for (int i = 0; i < kInRegisters; ++i) load(first_element() + i * kApart, weights[i]);
#pragma unroll 1
    for (int i = kInRegisters; i < LOADS && i / kChunk * kChunk * kApart < elements; ++i) {
      float rows[ROWS][4];
      load(first_element() + i * kApart, rows);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        store_shared(true, place_of(i, r), float4{rows[r][0], rows[r][1], rows[r][2], rows[r][3]});
      }
    }
  }

  static __device__ __forceinline__ int row_group_of_lane() { return threadIdx.x % 32 / kLanes; }
  // The element of K that this lane's first vec begins with.
  static __device__ __forceinline__ int first_element() {
    return (threadIdx.x / 32 * kLanes + threadIdx.x % kLanes) * 4;
  }

  // Issues the first loads of a chunk of `columns` vectors in global memory, of which `elements` count. `from`: this
  // lane's first vec.
  template <int INDEX>
  __device__ __forceinline__ void prefetch(const float* from, int elements, int columns, int apart, int column_stride) {
    unroll<COLUMNS, kChunk>([&](int c, int i) {
      const int load = INDEX * kChunk + i;
      vecs[INDEX % 2][c * kChunk + i] =
          load_or_zeros(first_element() + load * kApart < elements && (COLUMNS == 1 || c < columns),
                        from + c * column_stride + load * apart);
    });
  }

  // Waits until all of them have arrived.
  template <int INDEX>
  __device__ __forceinline__ void wait_loads(const float* from, int apart, int column_stride, int* fault,
                                             bool& timed_out) {
    const auto address = [&](int i) {
      return from + i / kChunk * column_stride + (INDEX * kChunk + i % kChunk) * apart;
    };
    poll_words(vecs[INDEX % 2], address, fault, timed_out);
  }

  // The products with the vectors, whose first chunks prefetch() has issued loads of; the arguments are its and those
  // of wait_loads(). Row r of row group g comes to g * kRowSums + r of the column's and warp's sums.
  __device__ __forceinline__ void run(const float* from, int elements, int columns, int apart, int column_stride,
                                      int* fault, bool& timed_out, float* sums) {
    prefetch<0>(from, elements, columns, apart, column_stride);
    if constexpr (kChunks > 1) {
      prefetch<1>(from, elements, columns, apart, column_stride);
      float sum[kRowSums] = {};
      run_chunks<0>(from, elements, apart, fault, timed_out, sum);
      store(sum, sums);
    } else {
      wait_loads<0>(from, apart, column_stride, fault, timed_out);
      multiply(sums);
    }
  }

  // Multiplies with states in shared memory.
  __device__ __forceinline__ void run(uint32_t from, float* sums) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) vecs[0][i] = load_shared(from + i * kApart * 4);
    multiply(sums);
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

 private:
  __device__ __forceinline__ uint32_t place_of(int load, int row) const {
    return more_weights + ((load - kInRegisters) * ROWS + row) * (kResidentThreads * 16);
  }

  template <int INDEX>
  __device__ __forceinline__ void run_chunks(const float* from, int elements, int apart, int* fault, bool& timed_out,
                                             float (&sum)[kRowSums]) {
    wait_loads<INDEX>(from, apart, 0, fault, timed_out);
    add_chunk<INDEX>(0, sum);
    if constexpr (INDEX + 2 < kChunks) prefetch<INDEX + 2>(from, elements, 1, apart, 0);
    if constexpr (INDEX + 1 < kChunks) {
      if ((INDEX + 1) * kChunk * kApart < elements) run_chunks<INDEX + 1>(from, elements, apart, fault, timed_out, sum);
    }
  }

  __device__ __forceinline__ void multiply(float* sums) const {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      float sum[kRowSums] = {};
      add_chunk<0>(c, sum);
      store(sum, sums + c * kColumnStride);
    }
  }

  template <int INDEX>
  __device__ __forceinline__ void add_chunk(int column, float (&sum)[kRowSums]) const {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const int load = INDEX * kChunk + i;
      if (load >= LOADS) break;
      const uint4 vec = vecs[INDEX % 2][column * kChunk + i];
      if (load < kInRegisters) {
        unroll<4, ROWS>([&](int e, int r) {
          sum[r] = fmaf(weights[load < kInRegisters ? load : 0][r][e], float_of(vec, e), sum[r]);
        });
      } else {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          float4 w;
          load_shared(place_of(load, r), w);
          sum[r] = fmaf(w.x, float_of(vec, 0), sum[r]);
          sum[r] = fmaf(w.y, float_of(vec, 1), sum[r]);
          sum[r] = fmaf(w.z, float_of(vec, 2), sum[r]);
          sum[r] = fmaf(w.w, float_of(vec, 3), sum[r]);
        }
      }
    }
  }

  // Adds up the sums of a row group's lanes.
  __device__ __forceinline__ void store(float (&sum)[kRowSums], float* sums) const {
    const int lane = threadIdx.x % kLanes;
    sum_over_lanes<kRowSums, kLanes>(sum, lane);
    float* const to = sums + threadIdx.x / 32 * kStride + row_group_of_lane() * kRowSums + lane;
#pragma unroll
    for (int i = 0; i < (kRowSums + kLanes - 1) / kLanes; ++i) {
      if (lane < kRowSums) to[i * kLanes] = sum[i];
    }
  }
};

// Cooperatively, or, where the blocks exchange in clusters, without.
template <class Params>
cudaError_t launch_simt(void (*kernel)(Params), const ResidentShape& shape, const Params& params, cudaStream_t stream) {
  if (shape.cluster > 1) return launch_cluster(kernel, shape.cluster, kResidentThreads, 0, params, stream);
  return launch_resident(kernel, shape, params, stream);
}

}  // namespace prnn
