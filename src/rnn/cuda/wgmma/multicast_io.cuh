// Loads and stores of the multicast wgmma kernels in global memory besides the operands: the work of a warp for each
// warpgroup, so that the warpgroup does not wait for it. Both share columns of shared memory, which change hands.
#pragma once

#include "rnn/cuda/common/sequence.cuh"
#include "rnn/cuda/common/unit_io.cuh"
#include "rnn/cuda/common/weights.cuh"
#include "rnn/cuda/wgmma/multicast.cuh"

namespace prnn {

// Columns of a group whose sequences have no state from the step before, a bit each; of kernels with RESETS.
template <bool RESETS, int COLUMNS>
struct Restarts {
  static constexpr int kWords = COLUMNS / 32;
  uint32_t words[kWords];

  __device__ __forceinline__ bool has(int column) const {
    if constexpr (!RESETS) return false;
    const uint32_t first = words[0], last = words[kWords - 1];  // numbers are chosen, not one of two addresses
    return ((column < 32 ? first : last) >> column % 32 & 1) != 0;
  }
  // In shared memory, by a warp: word i lies in what column i leaves free, `stride` bytes apart.
  __device__ __forceinline__ void store(uint32_t to, int stride) const {
#pragma unroll
    for (int i = 0; RESETS && i < kWords; ++i) {
      if (threadIdx.x % 32 == 0) {
        asm volatile("st.shared.u32 [%0],%1;" ::"r"(to + i * stride), "r"(words[i]) : "memory");
      }
    }
  }
  static __device__ __forceinline__ bool load(uint32_t from, int stride, int column) {
    if constexpr (!RESETS) return false;
    uint32_t word;
    asm volatile("ld.shared.u32 %0,[%1];" : "=r"(word) : "r"(from + column / 32 * stride) : "memory");
    return (word >> column % 32 & 1) != 0;
  }
};

// The restarts of a lane's columns while their loads are on their way.
template <bool RESETS, int COLUMNS>
struct LoadedRestarts {
  uint32_t flags[COLUMNS / 32];

  // `first` and `second`: neighbouring steps as for restarts(). By a warp.
  template <class Direction, int GROUPS>
  __device__ __forceinline__ LoadedRestarts(const Direction& dir, const GroupColumns<GROUPS>& columns, int group,
                                            const Step& first, const Step& second) {
#pragma unroll
    for (int i = 0; RESETS && i < COLUMNS / 32; ++i) {
      flags[i] = load_reset(dir.reset, dir.reverse, first, second, columns.sequence(group, i * 32 + threadIdx.x % 32));
    }
  }
  __device__ __forceinline__ Restarts<RESETS, COLUMNS> of_all_lanes() const {
    Restarts<RESETS, COLUMNS> all;
#pragma unroll
    for (int i = 0; RESETS && i < COLUMNS / 32; ++i) all.words[i] = __ballot_sync(kWholeWarp, flags[i] != 0);
    return all;
  }
};

template <class T, int COLUMNS, int GROUPS>
struct MulticastIo {
  static constexpr int kChunk = multicast_chunk(sizeof(T)), kVec = 16 / sizeof(T);  // elements
  static constexpr int kChunkBytes = COLUMNS * 128;
  static constexpr int kUnits = kWgmmaUnits * sizeof(T);  // bytes of a warpgroup's units
  // Lanes that move them, and columns whose units a warp moves at a time.
  static constexpr int kLanes = kUnits / 16, kMoved = 32 / kLanes;

  MulticastExchange<T, COLUMNS, GROUPS> exchange;
  GroupColumns<GROUPS> columns;
  int warpgroup, first_unit;  // the warpgroup's
  uint32_t room;              // shared address of its columns

  // The warpgroup's side: what it reads is there, and what it writes has room; and: it has written. Each `set` of
  // columns, 0 or 1, changes hands by itself.
  __device__ __forceinline__ void wait(int set = 0) const {
    asm volatile("bar.sync %0,160;" ::"r"(5 + warpgroup + 4 * set) : "memory");
  }
  __device__ __forceinline__ void hand_over(int set = 0) const {
    asm volatile("bar.arrive %0,160;" ::"r"(3 + warpgroup + 4 * set) : "memory");
  }

 protected:
  // The warp's side. A lane moves 16 bytes of the warpgroup's units, those of number lane % kLanes, of every kMoved-th
  // column.
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x % 32); }
  __device__ __forceinline__ int own_unit() const { return first_unit + lane() % kLanes * kVec; }

  __device__ __forceinline__ void take_over(int set = 0) const {
    asm volatile("bar.sync %0,160;" ::"r"(3 + warpgroup + 4 * set) : "memory");
  }
  // With all copies done.
  __device__ __forceinline__ void give_back(int set = 0) const {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
    asm volatile("bar.arrive %0,160;" ::"r"(5 + warpgroup + 4 * set) : "memory");
  }

  // Tells the other blocks that this warp's stores are there.
  __device__ __forceinline__ void announce(int group) const {
    __syncwarp();
    if (lane() == 0) add_released(exchange.counter(group, first_unit / kChunk));
  }
  // Where the lane's units of its first column go in the operand of step `s`; kMoved rows on, those of the next.
  // `first_chunk`: of K, what has unit 0.
  __device__ __forceinline__ char* published_at(int s, int group, int first_chunk) const {
    return exchange.states(s, group, first_chunk + first_unit / kChunk) +
           swizzled(lane() / kLanes, first_unit % kChunk / kVec + lane() % kLanes);
  }
  // Publishes the first `present` columns of units at `staged`, `stride` bytes a column, after change(column, units),
  // as factors.
  template <class Change>
  __device__ __forceinline__ void publish(char* to, uint32_t staged, int stride, int present,
                                          const Change& change) const {
    const uint32_t from = staged + lane() / kLanes * stride + lane() % kLanes * 16;
#pragma unroll
    for (int i = 0; i < COLUMNS / kMoved; ++i) {
      const int column = i * kMoved + lane() / kLanes;
      uint4 units = load_shared(from + i * kMoved * stride);
      change(column, units);
      if (column < present) *reinterpret_cast<uint4*>(to + i * kMoved * 128) = factors_of<T>(units);
    }
  }

  // Stores them to rows of `row_elements`, of which `rows` is the first column's. `aligned`: all are, to 16 bytes.
  static __device__ __forceinline__ bool has_aligned_units(const T* rows, int64_t row_elements) {
    return (reinterpret_cast<uintptr_t>(rows) | row_elements * sizeof(T)) % 16 == 0;
  }
  __device__ __forceinline__ void store_units(uint32_t staged, int stride, T* rows, int64_t row_elements, int present,
                                              bool aligned) const {
    uint32_t from = staged + lane() / kLanes * stride + lane() % kLanes * 16;
    T* to = rows + lane() / kLanes * row_elements + own_unit();
#pragma unroll 2
    for (int column = lane() / kLanes; column < present; column += kMoved) {
      const uint4 units = load_shared(from);
      if (aligned) {
        *reinterpret_cast<uint4*>(to) = units;
      } else {
        store_elements(to, units);
      }
      from += kMoved * stride;
      to += kMoved * row_elements;
    }
  }
  static __device__ __forceinline__ void store_elements(T* to, const uint4& units) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) to[i] = reinterpret_cast<const T*>(&units)[i];
  }

  // Copies 16 bytes to shared memory without waiting for them, or zeros. `aligned`: `from` is, to 16 bytes.
  static __device__ __forceinline__ void copy_vec(uint32_t to, const T* from, bool wanted) {
    copy_vec(to, from, wanted, reinterpret_cast<uintptr_t>(from) % 16 == 0);
  }
  static __device__ __forceinline__ void copy_vec(uint32_t to, const T* from, bool wanted, bool aligned) {
    if (aligned) {
      asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to), "l"(from), "r"(wanted ? 16 : 0) : "memory");
    } else {
      store_shared(to, load_row_fragment(from, 0, wanted ? kVec : 0));
    }
  }
};

}  // namespace prnn
