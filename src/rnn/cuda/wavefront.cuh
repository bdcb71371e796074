// The product of the wavefront kernels: a block's rows times two states, its own layer's of the timestep before and the
// neighbouring layer's of the same timestep. The weights of both stay on the chip.
#pragma once

#include <iterator>
#include <utility>

#include "rnn/cuda/resident.cuh"
#include "rnn/cuda/resident_launch.cuh"
#include "rnn/cuda/wavefront_params.h"

namespace prnn {

// Loads that are on their way while the states are: predicated, and into whole registers, so that nothing waits for
// them where they are asked for. Zeros where not wanted.
template <class T>
__device__ __forceinline__ uint32_t load_element(bool wanted, const T* address) {
  uint32_t bits;
  asm volatile("{.reg .pred p; setp.ne.u32 p,%1,0; mov.u32 %0,0; @p ld.global.cs.u16 %0,[%2];}"
               : "=&r"(bits)
               : "r"(static_cast<uint32_t>(wanted)), "l"(address)
               : "memory");
  return bits;
}

template <class T>
__device__ __forceinline__ uint2 load_four_elements(bool wanted, const T* address) {
  uint2 bits;
  asm volatile("{.reg .pred p; setp.ne.u32 p,%2,0; mov.u32 %0,0; mov.u32 %1,0; @p ld.global.cs.v2.u32 {%0,%1},[%3];}"
               : "=&r"(bits.x), "=&r"(bits.y)
               : "r"(static_cast<uint32_t>(wanted)), "l"(address)
               : "memory");
  return bits;
}

template <class T>
__device__ __forceinline__ float element_to_float(uint32_t bits) {
  const uint16_t low = static_cast<uint16_t>(bits);
  return Element<T>::to_float(reinterpret_cast<const T&>(low));
}

// The two parts of K. The neighbour's state is usually there already, and is multiplied while the own one travels.
enum WavefrontPart { kOwn = 0, kNeighbour = 1 };

// Which rows a block's octets are. A part of the weights has kOctets octets; 16-row tile m of a part is added to tile
// sum_tile(part, m) of the sums, and octet a of the sums lies at position(a) in shared memory.
//
// Forward, the sums of 8 units are 4 octets that lie one after the other: the gates of an LSTM; r, z, R h of the
// candidate and W x of the candidate for a GRU, whose parts have 3 of them each.
template <prnnRNNMode_t MODE, int UNIT_OCTETS>
struct WavefrontForwardRows {
  static_assert(MODE != PRNN_GRU || UNIT_OCTETS % 2 == 0, "a tile holds one gate of 16 units");
  static constexpr int kOctets = UNIT_OCTETS * gate_count(MODE);
  static constexpr int kSumOctets = MODE == PRNN_RNN_TANH ? UNIT_OCTETS : UNIT_OCTETS * 4;
  static constexpr int kStride = kOctetFloats + 1;  // the 4 subs of a unit read different banks

  static constexpr int gate(int octet) { return MODE == PRNN_LSTM ? octet % 4 : MODE == PRNN_GRU ? octet / 2 % 3 : 0; }
  static constexpr int unit_octet(int octet) {
    return MODE == PRNN_LSTM ? octet / 4 : MODE == PRNN_GRU ? octet / 6 * 2 + octet % 2 : octet;
  }
  static constexpr int sum_tile(int part, int tile) {
    if (MODE != PRNN_GRU) return tile;
    return tile / 3 * 4 + (tile % 3 < 2 ? tile % 3 : part == kOwn ? 2 : 3);
  }
  static constexpr int position(int octet) {
    return MODE == PRNN_GRU ? (octet / 8 * 2 + octet % 2) * 4 + octet / 2 % 4 : octet;
  }
};

template <int OCTETS, int STRIDE>
struct WavefrontBackwardRows {
  static constexpr int kOctets = OCTETS, kSumOctets = OCTETS, kStride = STRIDE;
  static constexpr int sum_tile(int, int tile) { return tile; }
  static constexpr int position(int octet) { return octet; }
};

// PAIRS: of K, in each part, of a warp; pair i of warp w is w + 8 i, as in ResidentProduct. A fragment is what one
// matrix instruction takes of the weights: 16 rows, half a pair. The own part's come first: they are the ones in
// registers if not all are.
template <class T, class Rows, int PAIRS>
struct WavefrontProduct {
  static_assert(Rows::kOctets % 2 == 0, "fragments are of two octets");
  static constexpr int kTiles = Rows::kOctets / 2, kSumTiles = Rows::kSumOctets / 2;
  static constexpr int kFragments = 2 * PAIRS * kTiles * 2;
  static constexpr int kRoom = wavefront_register_fragments(PAIRS);
  static constexpr int kInRegisters = kFragments < kRoom ? kFragments : kRoom;
  static constexpr int kSets = kTiles <= 2 ? 2 : 1;  // independent chains of sums, to hide their latency
  static constexpr int kSumFloats = Rows::kSumOctets * Rows::kStride;
  static constexpr int kPairBytes = 64 * kResidentWarps;

  using Sums = float[kSets][kSumTiles][4];

  uint4 weights[kInRegisters];
  uint4* more_weights;  // shared memory: [fragment - kInRegisters][warp][lane]
  uint4 states[2][PAIRS];
  const char* source[2];  // of the states
  int pairs;              // of this warp

  // `load` is a function (part, octet, pair) -> uint4, as for ResidentProduct.
  template <class Load>
  __device__ __forceinline__ void load_weights(int k_pairs, void* shared, const Load& load) {
    const int warp = threadIdx.x / 32;
    pairs = warp < k_pairs ? (k_pairs - warp + kResidentWarps - 1) / kResidentWarps : 0;
    more_weights = static_cast<uint4*>(shared) + threadIdx.x;
#pragma unroll
    for (int f = 0; f < kFragments; f += 2) {
      const int part = f / (2 * kTiles) / PAIRS, i = f / (2 * kTiles) % PAIRS, octet = f % (2 * kTiles);
      uint4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
      if (i < pairs) {
        low = load(part, octet, warp + i * kResidentWarps);
        high = load(part, octet + 1, warp + i * kResidentWarps);
      }
      keep(f, {low.x, high.x, low.y, high.y});
      keep(f + 1, {low.z, high.z, low.w, high.w});
    }
  }

  // First look at the states of a part. `base` is where this lane's 16 bytes of the warp's first pair are; lanes that
  // are not to read get zeros.
  template <int PART>
  __device__ __forceinline__ void ask(const char* base, bool reads) {
    source[PART] = base;
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) states[PART][i] = load_or_zeros(reads && i < pairs, base + i * kPairBytes);
  }

  // Waits until all that was asked for has arrived.
  template <int PART>
  __device__ __forceinline__ void finish(int* fault, bool& gave_up) {
    Patience patience;
    while (!gave_up) {
      uint32_t largest = 0;
#pragma unroll
      for (int i = 0; i < PAIRS; ++i) largest = max(largest, largest_word(states[PART][i]));
      if (!__any_sync(kWholeWarp, largest == kEmpty)) return;
      if (!__all_sync(kWholeWarp, patience.lasts(fault))) gave_up = true;
#pragma unroll
      for (int i = 0; i < PAIRS; ++i) reload_if_missing(states[PART][i], source[PART] + i * kPairBytes);
    }
  }

  // Adds pairs FROM up to TO of a part.
  template <int PART, int FROM = 0, int TO = PAIRS>
  __device__ __forceinline__ void multiply(Sums& sums) const {
    constexpr int kTogether = kTiles % 3 == 0 ? 3 : 2;  // independent products between two to the same sums
    static_assert(kTiles % kTogether == 0, "whole groups of tiles");
#pragma unroll
    for (int i = FROM; i < TO; ++i) {
      const uint4 b = states[PART][i];
#pragma unroll
      for (int m = 0; m < kTiles; m += kTogether) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int j = 0; j < kTogether; ++j) {
            const uint4 a = weight(2 * ((PART * PAIRS + i) * kTiles + m + j) + half);
            float (&sum)[4] = sums[half * (kSets - 1)][Rows::sum_tile(PART, m + j)];
            Element<T>::mma(sum, a.x, a.y, a.z, a.w, half == 0 ? b.x : b.z, half == 0 ? b.y : b.w);
          }
        }
      }
    }
  }

  // The warp's sums for one tile into `shared`, octet a at position(a) * kStride.
  static __device__ __forceinline__ void store(const Sums& sums, float* shared) {
    float* const of_lane = shared + threadIdx.x % 32;
#pragma unroll
    for (int o = 0; o < Rows::kSumOctets; ++o) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int q = o % 2 * 2 + e;
        const float sum = kSets == 2 ? sums[0][o / 2][q] + sums[kSets - 1][o / 2][q] : sums[0][o / 2][q];
        of_lane[Rows::position(o) * Rows::kStride + e * 32] = sum;
      }
    }
  }

 private:
  __device__ __forceinline__ void keep(int f, const uint4& weight) {
    if (f < kInRegisters) {
      weights[f < kInRegisters ? f : 0] = weight;
    } else {
      more_weights[(f - kInRegisters) * kResidentThreads] = weight;
    }
  }
  __device__ __forceinline__ uint4 weight(int f) const {
    return f < kInRegisters ? weights[f < kInRegisters ? f : 0] : more_weights[(f - kInRegisters) * kResidentThreads];
  }
};

// Where a lane finds the states of one part: the 16 bytes of the warp's first pair, of the lane's column of the group's
// first tile, in this step and in the next one. NULL: the part is zero in that step.
struct WavefrontStates {
  const char *here, *next;
  int tile_bytes;  // from a tile to the next

  // Moves on; `after` is the step after the next.
  __device__ __forceinline__ void advance(const char* after) {
    here = next;
    next = after;
  }
};

// The products of a wave of tiles of one step: for each tile waits for its states, multiplies, and puts the warp's sums
// into shared memory. The first look at a tile's states is at the end of the tile before, where they may be there by
// then. WAVE: tiles of a wave, which has one barrier for all of them.
template <class Product, int WAVE>
struct WavefrontTiles {
  Product& product;
  WavefrontStates own, neighbour;
  int tiles, columns;  // of a step
  bool has_neighbour;
  bool own_asked = false, neighbour_asked = false;

  template <int PART>
  __device__ __forceinline__ void ask(const WavefrontStates& states, bool of_next, int tile) {
    const char* const base = of_next ? states.next : states.here;
    const bool reads = base != nullptr && tile * kTileColumns + static_cast<int>(threadIdx.x) % 32 / 4 < columns;
    product.template ask<PART>(base + tile * states.tile_bytes, reads);
  }

  // A step of a group with one tile. The neighbour's states have been here for long; the own ones are asked for when
  // ASK pairs of them have been multiplied, and not before `pause` cycles since `published`: asked for earlier, they
  // would be asked for twice.
  template <int PAIRS, int ASK>
  __device__ __forceinline__ void run_single(bool goes_on, long long published, int pause, int* fault, bool& gave_up,
                                             float* shared) {
    typename Product::Sums sums = {};
    const auto ask_own = [&] {
      while (clock64() - published < pause) {
      }
      ask<kOwn>(own, false, 0);
    };
    if (has_neighbour) {
      if (!neighbour_asked) ask<kNeighbour>(neighbour, false, 0);
      product.template finish<kNeighbour>(fault, gave_up);
      product.template multiply<kNeighbour, 0, ASK>(sums);
      ask_own();
      product.template multiply<kNeighbour, ASK, PAIRS>(sums);
      neighbour_asked = goes_on;
      if (goes_on) ask<kNeighbour>(neighbour, true, 0);
    } else {
      ask_own();
    }
    product.template finish<kOwn>(fault, gave_up);
    product.template multiply<kOwn>(sums);
    Product::store(sums, shared);
  }

  // `goes_on`: another step follows.
  __device__ __forceinline__ void run(int first_tile, int count, bool goes_on, int* fault, bool& gave_up, float* shared,
                                      int tile_floats) {
#pragma unroll 1
    for (int j = 0; j < (WAVE == 1 ? 1 : count); ++j) {
      const int tile = WAVE == 1 ? 0 : first_tile + j;
      const bool is_last = WAVE == 1 || tile + 1 == tiles;
      const int next_tile = is_last ? 0 : tile + 1;
      typename Product::Sums sums = {};
      if (has_neighbour) {
        if (!neighbour_asked) ask<kNeighbour>(neighbour, false, tile);
        product.template finish<kNeighbour>(fault, gave_up);
        product.template multiply<kNeighbour>(sums);
        neighbour_asked = !is_last || goes_on;
        if (neighbour_asked) ask<kNeighbour>(neighbour, is_last, next_tile);
      }
      if (!own_asked) ask<kOwn>(own, false, tile);
      product.template finish<kOwn>(fault, gave_up);
      product.template multiply<kOwn>(sums);
      // The next step's first tile depends on this step's first wave, which is done if this is not it.
      own_asked = WAVE > 1 && (!is_last || (first_tile > 0 && goes_on));
      if (own_asked) ask<kOwn>(own, is_last, next_tile);
      Product::store(sums, shared + j * tile_floats);
    }
  }
};

// Calls launch(index) for the entry of KERNELS that has the shape's layout.
template <const auto& KERNELS, class Launch, size_t... INDEX>
cudaError_t launch_one_of(const ResidentShape& shape, const Launch& launch, std::index_sequence<INDEX...>) {
  cudaError_t error = cudaErrorInvalidValue;
  const auto is_shape = [&](const WavefrontKernel& kernel) {
    return kernel.unit_octets == shape.unit_octets && kernel.cluster == shape.cluster && kernel.pairs == shape.pairs;
  };
  (void)((is_shape(KERNELS[INDEX]) && ((error = launch(std::integral_constant<size_t, INDEX>())), true)) || ...);
  return error;
}

template <const auto& KERNELS, class Launch>
cudaError_t launch_wavefront(const ResidentShape& shape, const Launch& launch) {
  return launch_one_of<KERNELS>(shape, launch, std::make_index_sequence<std::size(KERNELS)>());
}

}  // namespace prnn
