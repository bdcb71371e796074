// The product of the wgmma kernels: a block's 64 rows of weights times a tile of up to 64 sequences. 16-bit types,
// gated cells. docs/resident_kernels.md explains the design.
#pragma once

#include "rnn/cuda/wgmma/finish.cuh"
#include "rnn/cuda/wgmma/operands.cuh"

namespace prnn {

// The two warpgroups of a block split the block's share of K by chunks, alternately. A warpgroup fetches and multiplies
// batches of chunks; the next batch is on its way while one is multiplied, and a ring of two sets in shared memory
// holds them.
template <class T, int COLUMNS>
struct WgmmaProduct {
  static constexpr int kBatch = wgmma_batch(COLUMNS);  // chunks
  using Loads = StateLoads<T, COLUMNS, kBatch>;
  static constexpr int kSetBytes = Loads::kSetBytes;
  static constexpr int kRingBytes = 4 * kSetBytes;  // two sets of two warpgroups
  static constexpr int kRegisterChunks = wgmma_register_chunks(COLUMNS);
  static constexpr int kRegisterBatches = kRegisterChunks / kBatch;
  static_assert(kRegisterBatches % 2 == 0 && COLUMNS * 256 <= 2 * kSetBytes && 8192 <= 2 * kSetBytes);

  using Sums = float[COLUMNS / 2];

  const Warpgroup warpgroup;
  Loads loads;
  uint32_t weights[kRegisterChunks][4][4];
  uint32_t ring, more_weights;     // shared addresses: of this warpgroup's two sets, and of its chunks beyond the
                                   // registers
  int chunks, batches;             // of a warpgroup: the same for both, so that no branch around wgmma diverges
  uint4 states[2][Loads::kLoads];  // of two batches on their way

  // `share`: elements of K of this block; shared addresses of the ring and of the room for weights beyond the
  // registers, both aligned to 1024 bytes. `load(chunk, row, vec)` as for load_weight_tiles().
  template <bool TRANSPOSED, class Load>
  __device__ __forceinline__ void load_weights(int share, uint32_t ring_of_block, uint32_t more, const Load& load) {
    chunks = (share + 2 * kWgmmaChunk - 1) / (2 * kWgmmaChunk);
    batches = (chunks + kBatch - 1) / kBatch;
    ring = ring_of_block + warpgroup.index * 2 * kSetBytes;
    more_weights = more + warpgroup.index * max(chunks - kRegisterChunks, 0) * 8192;
    load_weight_tiles<TRANSPOSED>(weights, chunks, ring, more_weights, warpgroup,
                                  [&](int c, int row, int vec) { return load(2 * c + warpgroup.index, row, vec); });
    warpgroup.sync();
  }

  // Multiplies a batch whose loads have been issued, and issues those of the one after the next.
  template <int STAGE, class Multiply>
  __device__ __forceinline__ void step(int batch, int* fault, bool& timed_out, const Multiply& multiply) {
    const uint32_t set = ring + STAGE * kSetBytes;
    loads.wait_and_store(states[STAGE], batch, set, fault, timed_out);
    loads.issue(states[STAGE], batch + 2);
    fence_for_wgmma();
    warpgroup.sync();
    wgmma_begin();
    multiply(matrix_descriptor(set));
    wgmma_commit();
    wgmma_wait<0>();
  }

  template <int BATCH>
  __device__ __forceinline__ void step_with_registers(Sums& sums, int* fault, bool& timed_out) {
    step<BATCH % 2>(BATCH, fault, timed_out, [&](uint64_t states_at) {
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        multiply_chunk<T>(sums, weights[BATCH * kBatch + c], states_at + c * COLUMNS * 8);
      }
    });
    if constexpr (BATCH + 1 < kRegisterBatches) {
      if (BATCH + 1 < batches) step_with_registers<BATCH + 1>(sums, fault, timed_out);
    }
  }

  template <int STAGE>
  __device__ __forceinline__ void step_with_shared(int batch, Sums& sums, int* fault, bool& timed_out) {
    step<STAGE>(batch, fault, timed_out, [&](uint64_t states_at) {
      uint64_t weights_at = matrix_descriptor(more_weights) + (batch * kBatch - kRegisterChunks) * 512;
      const int count = min(kBatch, chunks - batch * kBatch);
#pragma unroll 1
      for (int c = 0; c < count; ++c) {
        wgmma_begin();
        multiply_chunk<T>(sums, weights_at + c * 512, states_at + c * COLUMNS * 8);
      }
    });
  }

  // Issues the first loads of the first batches.
  __device__ __forceinline__ void prefetch() {
    loads.issue(states[0], 0);
    loads.issue(states[1], 1);
  }

  // The product with the states whose loads prefetch() has issued.
  __device__ __forceinline__ void run(Sums& sums, int* fault, bool& timed_out) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = 0;
    step_with_registers<0>(sums, fault, timed_out);
#pragma unroll 1
    for (int b = kRegisterBatches; b < batches; b += 2) {
      step_with_shared<0>(b, sums, fault, timed_out);
      if (b + 1 < batches) step_with_shared<1>(b + 1, sums, fault, timed_out);
    }
    if (batches % 2 == 1) warpgroup.sync();  // the next product begins with the same set
  }

  // The sums of a warpgroup lie where its states were.
  static __device__ __forceinline__ int sums_offset(int warpgroup) { return warpgroup * 2 * kSetBytes; }
  // Index of a row's and a column's sum there; different banks for what a warp stores and loads together.
  static __device__ __forceinline__ int sum_at(int row, int column) {
    return column * 64 + (row ^ (column / 2 % 4 * 8));
  }

  __device__ __forceinline__ void store_sums(const Sums& sums, char* shared) const {
    float* const to = reinterpret_cast<float*>(shared + sums_offset(warpgroup.index));
    warpgroup.sync();  // the last products have read them
    const int thread = warpgroup.thread, row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
    unroll<COLUMNS / 8, 4>(
        [&](int j, int i) { to[sum_at(row + i / 2 * 8, j * 8 + column + i % 2)] = sums[j * 4 + i]; });
  }

  // The other way of adding up: each warpgroup finishes half of the columns, kEighths times 8 of them; of 8 columns the
  // first one all.
  static constexpr int kEighths = COLUMNS > 8 ? COLUMNS / 16 : 1;
  static constexpr int kExchangeBytes = 2 * kEighths * kWarpgroupThreads * 16;
  using OwnSums = float[kEighths][4];

  // Adds up the two warpgroups' sums of what this one finishes, of 16 columns or more: of each eighth's rows
  // 16 w + lane / 4 and 8 more, columns lane % 4 * 2 and one more, as wgmma has them. `shared` has kExchangeBytes; two
  // such places are used in turn.
  __device__ __forceinline__ void exchange_sums(const Sums& sums, uint32_t shared, OwnSums& own) const {
    const uint32_t here = shared + warpgroup.thread * 16;
    constexpr int kWarpgroupBytes = kEighths * kWarpgroupThreads * 16;
#pragma unroll
    for (int r = 0; r < kEighths; ++r) {
      float given[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = sums[r * 4 + i], high = sums[(kEighths + r) * 4 + i];
        own[r][i] = warpgroup.index == 0 ? low : high;
        given[i] = warpgroup.index == 0 ? high : low;
      }
      store_shared(true, here + (1 - warpgroup.index) * kWarpgroupBytes + r * 2048,
                   float4{given[0], given[1], given[2], given[3]});
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kEighths; ++r) {
      float4 other;
      load_shared(here + warpgroup.index * kWarpgroupBytes + r * 2048, other);
      own[r][0] += other.x, own[r][1] += other.y, own[r][2] += other.z, own[r][3] += other.w;
    }
  }
};

}  // namespace prnn
