// What the forward and the backward resident kernel have in common: weights as matrix-instruction fragments in
// registers and shared memory, states polled from L2 in fragment order, sums over warps and over a cluster.
#pragma once

#include <cstdint>
#include <type_traits>

#include "rnn/cuda/resident_math.cuh"
#include "rnn/cuda/resident_params.h"

namespace prnn {

constexpr unsigned kWholeWarp = 0xFFFFFFFFu;
constexpr int kOctetFloats = 64;  // 8 rows x 8 columns

// ---- memory ----

__device__ __forceinline__ void publish_word(bool valid, void* address, uint32_t word) {
  asm volatile("{.reg .pred p; setp.ne.u32 p,%2,0; @p st.relaxed.gpu.global.u32 [%0],%1;}" ::"l"(address), "r"(word),
               "r"(static_cast<uint32_t>(valid))
               : "memory");
}

// 16 bytes that other blocks write, or zeros. Predicated, without a branch.
__device__ __forceinline__ uint4 load_or_zeros(bool wanted, const void* address) {
  uint4 v;
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p,%4,0; mov.u32 %0,0; mov.u32 %1,0; mov.u32 %2,0; mov.u32 %3,0;"
      "@p ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3},[%5];}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "r"(static_cast<uint32_t>(wanted)), "l"(address)
      : "memory");
  return v;
}

// kEmpty if a word has not arrived yet: it is the largest of all.
__device__ __forceinline__ uint32_t largest_word(const uint4& v) { return max(max(v.x, v.y), max(v.z, v.w)); }

// Loads again, without a branch, what has not arrived yet.
__device__ __forceinline__ void reload_if_missing(uint4& v, const void* address) {
  asm volatile("{.reg .pred p; setp.eq.u32 p,%4,0xFFFFFFFF; @p ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3},[%5];}"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
               : "r"(largest_word(v)), "l"(address)
               : "memory");
}

__device__ __forceinline__ uint64_t global_nanoseconds() {
  uint64_t time;
  asm volatile("mov.u64 %0,%globaltimer;" : "=l"(time));
  return time;
}

// The same number, of which the compiler knows nothing: what rare code works out from it stays there, and takes no
// registers from the loop around it.
__device__ __forceinline__ int only_here(int number) {
  asm volatile("" : "+r"(number));
  return number;
}

// Differences of up to 2 seconds count.
__device__ __forceinline__ unsigned clock_low() {
  unsigned cycles;
  asm volatile("mov.u32 %0,%clock;" : "=r"(cycles)::"memory");
  return cycles;
}

// Whether a wait goes on. Looks at the clock and at the fault flag only now and then. False: give up, the kernel's
// results are lost and `fault` says so to the next call.
struct Patience {
  static constexpr uint64_t kNanoseconds = 4000000000;
  unsigned looks = 0;
  uint64_t start = 0;

  __device__ __forceinline__ bool lasts(int* fault) {
    if ((++looks & 0xFFF) != 0) return true;
    const uint64_t now = global_nanoseconds();
    if (start == 0) start = now;
    if (*static_cast<volatile int*>(fault) != 0) return false;
    if (now - start < kNanoseconds) return true;
    *static_cast<volatile int*>(fault) = 1;
    __threadfence_system();
    return false;
  }
};

// ---- timesteps ----

struct Step {
  int row = 0;
  int batch = 0;
};

__device__ __forceinline__ Step step_at(const ResidentSizes& sizes, int t) {
  if (sizes.table == nullptr) return {t * sizes.batch, sizes.batch};
  const StepSizes entry = sizes.table[t];
  return {entry.row, entry.batch};
}

// ---- cluster ----

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0,%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ uint32_t address_in_rank(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

__device__ __forceinline__ void init_barrier(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0],1;" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void expect_bytes(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ bool has_completed(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p,[%1],%2; selp.u32 %0,1,0,p;}"
               : "=r"(done)
               : "r"(shared_address(barrier)), "r"(parity)
               : "memory");
  return done != 0;
}

// Sends 16 bytes to a block of the cluster; the barrier there counts them.
__device__ __forceinline__ void send_to_rank(uint32_t address, uint32_t barrier, const float4& v) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0],{%1,%2,%3,%4},[%5];" ::"r"(address),
               "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
               : "memory");
}
#else
// Never called: clusters are launched on compute capability 9.0 and above alone.
__device__ __forceinline__ uint32_t cluster_rank() { return 0; }
__device__ __forceinline__ void sync_cluster() {}
__device__ __forceinline__ uint32_t address_in_rank(uint32_t address, uint32_t) { return address; }
__device__ __forceinline__ void init_barrier(uint64_t*) {}
__device__ __forceinline__ void expect_bytes(uint64_t*, uint32_t) {}
__device__ __forceinline__ bool has_completed(uint64_t*, uint32_t) { return true; }
__device__ __forceinline__ void send_to_rank(uint32_t, uint32_t, const float4&) {}
#endif

// ---- the product of resident weights with a tile of states ----

// The instruction rounds its sums towards zero. 16 bits and tf32 bear that; float's accuracy does not for many pairs.
template <class T>
constexpr bool kExact = std::is_same_v<T, float>;

// Timesteps whose gradients are summed for the biases before the sum goes to that of earlier ones, since adding a float
// to a long sum loses more; 0: all at once.
template <class T>
constexpr int kBiasSteps = kExact<T> ? 32 : 0;

// Whether that is to be done before step s.
template <class T>
__device__ __forceinline__ bool is_bias_step(int s) {
  if constexpr (kBiasSteps<T> > 0) return s > 0 && s % kBiasSteps<T> == 0;
  return false;
}

// Calls multiply(first, second), which adds the products of the two halves of a pair to these sums, and makes good for
// how the instruction rounds. APART: the pair's product is made alone and added with float's rounding, to the nearest.
// Else the six instructions of a pair round the sum itself, and what that takes on the average is added.
template <class T, bool APART, class Multiply>
__device__ __forceinline__ void add_pair(float (&first_sum)[4], float (&second_sum)[4], const Multiply& multiply) {
  if constexpr (kExact<T> && APART) {
    float part[4] = {0, 0, 0, 0};
    multiply(part, part);
#pragma unroll
    for (int i = 0; i < 4; ++i) first_sum[i] += part[i];
  } else {
    multiply(first_sum, second_sum);
    if constexpr (kExact<T>) {
#pragma unroll
      for (int i = 0; i < 4; ++i) first_sum[i] = fmaf(first_sum[i], 1.9e-7f, first_sum[i]);
    }
  }
}

// Adds the product of a pair of K: 16 rows of weights, as two operands of the instruction, and 8 columns of states.
template <class T, bool APART>
__device__ __forceinline__ void multiply_pair(float (&first_sum)[4], float (&second_sum)[4], const uint4& first,
                                              const uint4& second, const uint4& states) {
  add_pair<T, APART>(first_sum, second_sum, [&](float (&one)[4], float (&other)[4]) {
    Element<T>::mma(one, first.x, first.y, first.z, first.w, states.x, states.y);
    Element<T>::mma(other, second.x, second.y, second.z, second.w, states.z, states.w);
  });
}

// The same for an octet, transposed: as the other operand an octet alone needs no registers for 8 rows of zeros.
template <class T, bool APART>
__device__ __forceinline__ void multiply_octet(float (&first_sum)[4], float (&second_sum)[4], const uint4& weights,
                                               const uint4& states) {
  add_pair<T, APART>(first_sum, second_sum, [&](float (&one)[4], float (&other)[4]) {
    Element<T>::mma_transposed(one, states.x, states.y, weights.x, weights.y);
    Element<T>::mma_transposed(other, states.z, states.w, weights.z, weights.w);
  });
}

// Where row `row` of an octet and column `column` are among the octet's sums.
__device__ __forceinline__ int sum_index(int row, int column) { return column % 2 * 32 + row * 4 + column / 2; }

// OCTETS of rows by the warp's pairs of K; pair i of warp w is w + 8 i. `Load` is a function (octet, pair) -> uint4
// that fetches the 16 bytes of this lane: row lane / 4 of the octet, K elements (lane % 4) * 16 bytes onwards of the
// pair. STRIDE: floats between the sums of two octets, chosen by the kernel against bank conflicts. Pairs are loaded
// and multiplied in chunks of kChunkPairs; two chunks are in flight, each in its slot. APART: see add_pair().
template <class T, int OCTETS, int STRIDE, bool SINGLE, bool APART>
struct ResidentProduct {
  static constexpr int kInRegisters = register_pairs(OCTETS);
  static constexpr int kTiles = (OCTETS + 1) / 2;  // of 16 rows; an odd octet's has 8
  // Independent chains of sums, to hide their latency.
  static constexpr int kSets = kTiles <= 2 && !kExact<T> ? 2 : 1;
  using Sums = float[kSets][kTiles][4];

  uint4 weights[kInRegisters][OCTETS];
  uint4* more_weights;  // shared memory: [pair - kInRegisters][octet][warp][lane]
  int pairs, chunks;    // of this warp
  int pair_stride;      // bytes from a warp's pair of states to its next

  uint4 states[2][kChunkPairs];

  // Floats of one sequence: the matrix instructions would multiply it and seven columns of nothing three times over.
  // Every lane has its row and its part of K of that sequence instead, and adds in float.
  static constexpr bool kMayBeLone = SINGLE && kExact<T> && OCTETS < 8;  // eight leave no registers for it
  const int* group_columns = nullptr;  // where the kernel's parameters say it, which takes no register

  __device__ __forceinline__ bool is_lone() const { return kMayBeLone && *group_columns == 1; }
  // The column whose states this lane loads.
  __device__ __forceinline__ int column_of(int lane) const { return is_lone() ? 0 : lane / 4; }

  template <class Load>
  __device__ __forceinline__ void load_weights(int k_pairs, void* shared, const Load& load) {
    const int warp = threadIdx.x / 32;
    pairs = warp < k_pairs ? (k_pairs - warp + kResidentWarps - 1) / kResidentWarps : 0;
    chunks = (pairs + kChunkPairs - 1) / kChunkPairs;
    more_weights = static_cast<uint4*>(shared) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kInRegisters; ++i) {
#pragma unroll
      for (int o = 0; o < OCTETS; ++o) {
        weights[i][o] = i < pairs ? load(o, warp + i * kResidentWarps) : uint4{0, 0, 0, 0};
      }
    }
    for (int i = kInRegisters; i < pairs; ++i) {
      uint4* const to = more_weights + (i - kInRegisters) * OCTETS * kResidentThreads;
      for (int o = 0; o + 1 < OCTETS; o += 2) {  // in the order of the instruction's operand
        const uint4 low = load(o, warp + i * kResidentWarps), high = load(o + 1, warp + i * kResidentWarps);
        to[o * kResidentThreads] = {low.x, high.x, low.y, high.y};
        to[(o + 1) * kResidentThreads] = {low.z, high.z, low.w, high.w};
      }
      if (OCTETS % 2 == 1) to[(OCTETS - 1) * kResidentThreads] = load(OCTETS - 1, warp + i * kResidentWarps);
    }
  }

  // First look at the states of a chunk. `base` is where this lane's 16 bytes of the warp's first pair are; lanes that
  // are not to read get zeros, and so does a pair beyond the last.
  template <int SLOT>
  __device__ __forceinline__ void begin(int chunk, const char* base, bool reads) {
    const char* const source = base + chunk * (kChunkPairs * pair_stride);
#pragma unroll
    for (int i = 0; i < kChunkPairs; ++i) {
      states[SLOT][i] = load_or_zeros(reads && chunk * kChunkPairs + i < pairs, source + i * pair_stride);
    }
  }

  // Waits until the chunk in the slot has arrived whole. `chunk` and `base` are those of begin().
  template <int SLOT>
  __device__ __forceinline__ void finish(int chunk, const char* base, int* fault, bool& gave_up) {
    const char* const source = base + chunk * (kChunkPairs * pair_stride);
    Patience patience;
    while (!gave_up) {
      uint32_t largest = 0;
#pragma unroll
      for (int i = 0; i < kChunkPairs; ++i) largest = max(largest, largest_word(states[SLOT][i]));
      if (!__any_sync(kWholeWarp, largest == kEmpty)) return;
      if (!__all_sync(kWholeWarp, patience.lasts(fault))) gave_up = true;
#pragma unroll
      for (int i = 0; i < kChunkPairs; ++i) reload_if_missing(states[SLOT][i], source + i * pair_stride);
    }
  }

  // Adds the chunk in the slot. FIRST_PAIR: of the chunk, where it is known when compiling; -1: `chunk` says.
  template <int SLOT, int FIRST_PAIR>
  __device__ __forceinline__ void multiply(int chunk, Sums& sums) const {
    if (is_lone()) return multiply_lone<SLOT, FIRST_PAIR>(chunk, sums);
#pragma unroll
    for (int i = 0; i < kChunkPairs; ++i) {
      const int known = FIRST_PAIR < 0 ? kInRegisters : FIRST_PAIR + i;
      const int pair = FIRST_PAIR < 0 ? chunk * kChunkPairs + i : FIRST_PAIR + i;
      if (known >= kInRegisters && pair >= pairs) continue;  // shared memory has no zeros beyond the last pair
      const uint4 b = states[SLOT][i];
      const uint4* const from = more_weights + (pair - kInRegisters) * OCTETS * kResidentThreads;
#pragma unroll
      for (int o = 0; o + 1 < OCTETS; o += 2) {
        uint4 first, second;  // halves of the pair, 16 rows each
        if (known < kInRegisters) {
          const uint4 low = weights[known < kInRegisters ? known : 0][o];
          const uint4 high = weights[known < kInRegisters ? known : 0][o + 1];
          first = {low.x, high.x, low.y, high.y};
          second = {low.z, high.z, low.w, high.w};
        } else {
          first = from[o * kResidentThreads];
          second = from[(o + 1) * kResidentThreads];
        }
        multiply_pair<T, APART>(sums[0][o / 2], sums[kSets - 1][o / 2], first, second, b);
      }
      if (OCTETS % 2 == 1) {
        const uint4 last = known < kInRegisters ? weights[known < kInRegisters ? known : 0][OCTETS - 1]
                                                : from[(OCTETS - 1) * kResidentThreads];
        multiply_octet<T, APART>(sums[0][kTiles - 1], sums[kSets - 1][kTiles - 1], last, b);
      }
    }
  }

  // The warp's sums for one tile into `shared`: row r of octet o and column c at o * STRIDE + sum_index(r, c).
  __device__ __forceinline__ void store(const Sums& sums, float* shared) const {
    const int lane = threadIdx.x % 32;
    if (is_lone()) {
#pragma unroll
      for (int o = 0; o < OCTETS; ++o) {
        float sum = 0;
#pragma unroll
        for (int set = 0; set < kSets; ++set) sum += sums[set][o / 2][o % 2 * 2] + sums[set][o / 2][o % 2 * 2 + 1];
        sum += __shfl_xor_sync(kWholeWarp, sum, 1);
        sum += __shfl_xor_sync(kWholeWarp, sum, 2);
        shared[o * STRIDE + lane] = sum;  // row lane / 4, column 0; the other columns are nobody's
      }
      return;
    }
#pragma unroll
    for (int o = 0; o < OCTETS; ++o) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int q = o % 2 * 2 + e;
        const float sum = kSets == 2 ? sums[0][o / 2][q] + sums[kSets - 1][o / 2][q] : sums[0][o / 2][q];
        const bool is_transposed = OCTETS % 2 == 1 && o == OCTETS - 1;
        shared[o * STRIDE + (is_transposed ? sum_index(lane % 4 * 2 + e, lane / 4) : e * 32 + lane)] = sum;
      }
    }
  }

  // First look at the first states of a wave of `count` tiles; base and reads as for run().
  template <class Base, class Reads>
  __device__ __forceinline__ void ask(const Base& base, const Reads& reads, int count) {
    begin<0>(0, base(0), reads(0));
    if (chunks > 1) {
      begin<1>(1, base(0), reads(0));
    } else if (count > 1) {
      begin<1>(0, base(1), reads(1));
    }
  }

  // The products of a wave of up to WAVE tiles. `base(tile)` and `reads(tile)` are begin()'s arguments for tile 0 ..
  // count - 1 of the wave, and, where `follows`, for the first two of the next wave, count and count + 1. The first
  // chunks have been asked for, by ask() or by the wave before. Returns whether those of what follows have been.
  template <int WAVE, class Base, class Reads>
  __device__ __forceinline__ bool run(int count, bool follows, const Base& base, const Reads& reads, int* fault,
                                      bool& gave_up, float* shared, int tile_floats) {
    if (chunks <= 1) return run_one_chunk<WAVE>(count, follows, base, reads, fault, gave_up, shared, tile_floats);
    const bool looks_ahead = chunks == 2;  // the two slots hold one tile
#pragma unroll 1
    for (int j = 0; j < (WAVE == 1 ? 1 : count); ++j) {
      Sums sums = {};
      const char* const here = base(j);
      const bool goes_on = looks_ahead && (j + 1 < count || follows);
      const char* const ahead = base(j + 1);
      const bool ahead_reads = reads(j + 1);
      finish<0>(0, here, fault, gave_up);
      multiply<0, 0>(0, sums);
      if (goes_on) begin<0>(0, ahead, ahead_reads);
      finish<1>(1, here, fault, gave_up);
      multiply<1, kChunkPairs>(1, sums);
      if (goes_on) begin<1>(1, ahead, ahead_reads);
      if (!looks_ahead) {
#pragma unroll 1
        for (int chunk = 2; chunk < chunks; chunk += 2) {
          begin<0>(chunk, here, reads(j));
          begin<1>(chunk + 1, here, reads(j));
          finish<0>(chunk, here, fault, gave_up);
          multiply<0, -1>(chunk, sums);
          finish<1>(chunk + 1, here, fault, gave_up);
          multiply<1, -1>(chunk + 1, sums);
        }
        if (j + 1 < count) {
          begin<0>(0, ahead, ahead_reads);
          begin<1>(1, ahead, ahead_reads);
        }
      }
      store(sums, shared + j * tile_floats);
    }
    return looks_ahead && follows;
  }

 private:
  template <int SLOT, int FIRST_PAIR>
  __device__ __forceinline__ void multiply_lone(int chunk, Sums& sums) const {
#pragma unroll
    for (int i = 0; i < kChunkPairs; ++i) {
      const int known = FIRST_PAIR < 0 ? kInRegisters : FIRST_PAIR + i;
      const int pair = FIRST_PAIR < 0 ? chunk * kChunkPairs + i : FIRST_PAIR + i;
      if (known >= kInRegisters && pair >= pairs) continue;
      const uint4 b = states[SLOT][i];
      const uint4* const from = more_weights + (pair - kInRegisters) * OCTETS * kResidentThreads;
#pragma unroll
      for (int o = 0; o < OCTETS; o += 2) {
        const bool is_alone = o + 1 == OCTETS;
        uint4 low, high;  // of row lane / 4 of two octets
        if (known < kInRegisters) {
          low = weights[known < kInRegisters ? known : 0][o];
          high = weights[known < kInRegisters ? known : 0][is_alone ? o : o + 1];
        } else {
          low = from[o * kResidentThreads];
          if (!is_alone) {
            const uint4 first = low, second = from[(o + 1) * kResidentThreads];
            low = {first.x, first.z, second.x, second.z};
            high = {first.y, first.w, second.y, second.w};
          }
        }
        float (&sum)[4] = sums[i % kSets][o / 2];
        add_products(sum[0], sum[1], low, b);
        if (!is_alone) add_products(sum[2], sum[3], high, b);
      }
    }
  }

  static __device__ __forceinline__ void add_products(float& even, float& odd, const uint4& a, const uint4& b) {
    even = fmaf(__uint_as_float(a.x), __uint_as_float(b.x), even);
    odd = fmaf(__uint_as_float(a.y), __uint_as_float(b.y), odd);
    even = fmaf(__uint_as_float(a.z), __uint_as_float(b.z), even);
    odd = fmaf(__uint_as_float(a.w), __uint_as_float(b.w), odd);
  }

  // With one chunk the slots hold two tiles.
  template <int WAVE, class Base, class Reads>
  __device__ __forceinline__ bool run_one_chunk(int count, bool follows, const Base& base, const Reads& reads,
                                                int* fault, bool& gave_up, float* shared, int tile_floats) {
    if (WAVE > 1 && count == 1 && follows) begin<1>(0, base(2), reads(2));
#pragma unroll 1
    for (int j = 0; j < (WAVE == 1 ? 1 : count); j += 2) {
      {
        Sums sums = {};
        finish<0>(0, base(j), fault, gave_up);
        multiply<0, 0>(0, sums);
        const int ahead = WAVE > 1 && j + 2 < count ? j + 2 : count;
        if (ahead < count || follows) begin<0>(0, base(ahead), reads(ahead));
        store(sums, shared + j * tile_floats);
      }
      if (WAVE > 1 && j + 1 < count) {
        Sums sums = {};
        finish<1>(0, base(j + 1), fault, gave_up);
        multiply<1, 0>(0, sums);
        const int ahead = j + 3 < count ? j + 3 : count + 1;
        if (ahead < count || follows) begin<1>(0, base(ahead), reads(ahead));
        store(sums, shared + (j + 1) * tile_floats);
      }
    }
    return follows;
  }
};

// Sum over the warps of element `index` of their sums.
__device__ __forceinline__ float sum_over_warps(const float* sums, int floats_per_warp, int index) {
  float value[kResidentWarps];
#pragma unroll
  for (int w = 0; w < kResidentWarps; ++w) value[w] = sums[w * floats_per_warp + index];
#pragma unroll
  for (int step = 1; step < kResidentWarps; step *= 2) {
#pragma unroll
    for (int w = 0; w < kResidentWarps; w += 2 * step) value[w] += value[w + step];
  }
  return value[0];
}

__device__ __forceinline__ float4 sum4_over_warps(const float* sums, int floats_per_warp, int index) {
  float4 total = {0, 0, 0, 0};
#pragma unroll
  for (int w = 0; w < kResidentWarps; ++w) {
    const float4 value = *reinterpret_cast<const float4*>(sums + w * floats_per_warp + index);
    total.x += value.x;
    total.y += value.y;
    total.z += value.z;
    total.w += value.w;
  }
  return total;
}

// Publishes the values of 8 units of one sequence: lane unit * 4 + sub has the one of `unit`. `row` is where unit 0
// goes.
template <class T>
__device__ __forceinline__ void publish_octet(T* row, int lane, float value, bool valid) {
  if constexpr (Element<T>::kPerWord == 2) {
    const int from = lane % 4 * 8;  // lane s of the first four stores units 2 s and 2 s + 1
    const float first = __shfl_sync(kWholeWarp, value, from), second = __shfl_sync(kWholeWarp, value, from + 4);
    publish_word(valid && lane < 4, row + 2 * lane, Element<T>::pack(first, second));
  } else {
    publish_word(valid && lane % 4 == 0, row + lane / 4, Element<T>::pack(value, 0));
  }
}

// The same where every `sub` has a row of its own: `row` is that of this lane.
template <class T>
__device__ __forceinline__ void publish_four_octets(T* row, int lane, float value, bool valid) {
  const int unit = lane / 4;
  if constexpr (Element<T>::kPerWord == 2) {
    const float next = __shfl_down_sync(kWholeWarp, value, 4);
    publish_word(valid && unit % 2 == 0, row + unit, Element<T>::pack(value, next));
  } else {
    publish_word(valid, row + unit, Element<T>::pack(value, 0));
  }
}

template <class T>
__device__ __forceinline__ float load_float(const void* base, int64_t index) {
  return Element<T>::to_float(static_cast<const T*>(base)[index]);
}

template <class T>
__device__ __forceinline__ void store_float(void* base, int64_t index, float value) {
  static_cast<T*>(base)[index] = Element<T>::from_float(value);
}

// Four values of one unit, in one access.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T value[4];
};

constexpr int gate_count(prnnRNNMode_t mode) { return mode == PRNN_LSTM ? 4 : mode == PRNN_GRU ? 3 : 1; }

// 16 bytes of a row-major matrix from element `index`, whose first `available` elements count and the rest are zeros.
template <class T>
__device__ __forceinline__ uint4 load_row_fragment(const T* matrix, int64_t index, int available) {
  constexpr int kElements = 16 / sizeof(T);
  if (available <= 0) return {0, 0, 0, 0};
  const T* from = matrix + index;
  if (available >= kElements && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    return *reinterpret_cast<const uint4*>(from);
  }
  alignas(16) T elements[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) elements[i] = i < available ? from[i] : Element<T>::from_float(0);
  return *reinterpret_cast<const uint4*>(elements);
}

// The same down a column: elements `stride` apart.
template <class T>
__device__ __forceinline__ uint4 load_column_fragment(const T* matrix, int64_t index, int64_t stride, int available) {
  constexpr int kElements = 16 / sizeof(T);
  alignas(16) T elements[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    elements[i] = i < available ? matrix[index + i * stride] : Element<T>::from_float(0);
  }
  return *reinterpret_cast<const uint4*>(elements);
}

}  // namespace prnn
