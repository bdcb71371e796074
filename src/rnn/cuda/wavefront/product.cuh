// The product of the wavefront kernels: a block's rows times two states, its own layer's of the timestep before and the
// neighbouring layer's of the same timestep. The weights of both stay on the chip.
#pragma once

#include <type_traits>

#include "rnn/cuda/mma/product.cuh"
#include "rnn/cuda/wavefront/params.h"

namespace prnn {

// Loads in flight while the states are: predicated, and into whole registers, so that no instruction waits for them
// where they are issued. Zeros where not wanted.
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

// BYTES, or 0, of ForwardDropout::kept.
template <int BYTES>
__device__ __forceinline__ uint32_t load_kept(bool wanted, const uint8_t* address) {
  uint32_t bits;
  if constexpr (BYTES == 4) {
    asm volatile("{.reg .pred p; setp.ne.u32 p,%1,0; mov.u32 %0,0; @p ld.global.nc.u32 %0,[%2];}"
                 : "=&r"(bits)
                 : "r"(static_cast<uint32_t>(wanted)), "l"(address));
  } else if constexpr (BYTES == 2) {
    asm volatile("{.reg .pred p; setp.ne.u32 p,%1,0; mov.u32 %0,0; @p ld.global.nc.u16 %0,[%2];}"
                 : "=&r"(bits)
                 : "r"(static_cast<uint32_t>(wanted)), "l"(address));
  } else {
    asm volatile("{.reg .pred p; setp.ne.u32 p,%1,0; mov.u32 %0,0; @p ld.global.nc.u8 %0,[%2];}"
                 : "=&r"(bits)
                 : "r"(static_cast<uint32_t>(wanted)), "l"(address));
  }
  return bits;
}

// The part of a published state that goes to the layer above.
template <class T>
__device__ __forceinline__ float dropped_state(float state, bool is_kept, float scale) {
  return is_kept ? Element<T>::to_float(Element<T>::from_float(state)) * scale : 0;
}

// The two parts of K. The neighbour's state is usually there already, and is multiplied while the own one travels.
enum WavefrontPart { kOwn = 0, kNeighbour = 1 };

// Which rows a block's row tiles are. A part of the weights has kRowTiles row tiles; 16-row tile m of a part is added
// to tile sum_tile(part, m) of the sums, and row tile a of the sums lies at position(a) in shared memory.
//
// Forward, the sums of 8 units are 4 row tiles that lie one after the other: the gates of an LSTM; r, z, R h of the
// candidate and W x of the candidate for a GRU, whose parts have 3 of them each.
template <prnnRNNMode_t MODE, int UNIT_TILES>
struct WavefrontForwardRows {
  static_assert(MODE != PRNN_GRU || UNIT_TILES % 2 == 0, "a tile holds one gate of 16 units");
  static constexpr bool kTight = false;
  static constexpr int kRowTiles = UNIT_TILES * gate_count(MODE);
  static constexpr int kSumRowTiles = MODE == PRNN_RNN_TANH ? UNIT_TILES : UNIT_TILES * 4;
  static constexpr int kStride = kTileFloats + 1;  // the 4 subs of a unit read different banks

  static constexpr int gate(int row_tile) {
    return MODE == PRNN_LSTM ? row_tile % 4 : MODE == PRNN_GRU ? row_tile / 2 % 3 : 0;
  }
  static constexpr int unit_tile(int row_tile) {
    return MODE == PRNN_LSTM ? row_tile / 4 : MODE == PRNN_GRU ? row_tile / 6 * 2 + row_tile % 2 : row_tile;
  }
  static constexpr int sum_tile(int part, int tile) {
    if (MODE != PRNN_GRU) return tile;
    return tile / 3 * 4 + (tile % 3 < 2 ? tile % 3 : part == kOwn ? 2 : 3);
  }
  static constexpr int position(int row_tile) {
    return MODE == PRNN_GRU ? (row_tile / 8 * 2 + row_tile % 2) * 4 + row_tile / 2 % 4 : row_tile;
  }
};

template <int ROW_TILES, int STRIDE, bool EXTRAS>
struct WavefrontBackwardRows {
  static constexpr bool kTight = EXTRAS;  // fewer registers are left for weights
  static constexpr int kRowTiles = ROW_TILES, kSumRowTiles = ROW_TILES, kStride = STRIDE;
  static constexpr int sum_tile(int, int tile) { return tile; }
  static constexpr int position(int row_tile) { return row_tile; }
};

// K_TILES: of K, in each part, of a warp; k-tile i of warp w is w + 8 i, as in MmaProduct. A fragment is what one
// matrix instruction takes of the weights: 16 rows, half a k-tile. The own part's come first: they are the ones in
// registers if not all are.
// Apart from MmaProduct: that one takes any number of k-tiles, in chunks through two stages, and keeps whole k-tiles of
// weights in registers; here all states of both parts are in flight at once, which is what lets the neighbour's be
// multiplied while the own ones travel, and registers end within a k-tile.
template <class T, class Rows, int K_TILES>
struct WavefrontProduct {
  static_assert(Rows::kRowTiles % 2 == 0, "fragments are of two row tiles");
  static constexpr int kTiles = Rows::kRowTiles / 2, kSumTiles = Rows::kSumRowTiles / 2;
  static constexpr int kFragments = 2 * K_TILES * kTiles * 2;
  static constexpr int kRoom = wavefront_register_fragments(K_TILES, Rows::kRowTiles, Rows::kTight);
  static constexpr int kInRegisters = kFragments < kRoom ? kFragments : kRoom;
  static constexpr int kSets = kTiles <= 2 ? 2 : 1;  // independent chains of sums, to hide their latency
  static constexpr int kSumFloats = Rows::kSumRowTiles * Rows::kStride;
  static constexpr int kKTileBytes = 64 * kResidentWarps;

  using Sums = float[kSets][kSumTiles][4];

  uint4 weights[kInRegisters];
  uint4* more_weights;  // shared memory: [fragment - kInRegisters][warp][lane]
  uint4 states[2][K_TILES];
  const char* source[2];  // of the states
  int k_tiles;            // of this warp

  // `load` is a function (part, row tile, k-tile) -> uint4, as for MmaProduct.
  template <class Load>
  __device__ __forceinline__ void load_weights(int total_k_tiles, void* shared, const Load& load) {
    const int warp = threadIdx.x / 32;
    k_tiles = k_tiles_of_warp(total_k_tiles);
    more_weights = static_cast<uint4*>(shared) + threadIdx.x;
#pragma unroll
    for (int f = 0; f < kFragments; f += 2) {
      const int part = f / (2 * kTiles) / K_TILES, i = f / (2 * kTiles) % K_TILES, row_tile = f % (2 * kTiles);
      uint4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
      if (i < k_tiles) {
        low = load(part, row_tile, warp + i * kResidentWarps);
        high = load(part, row_tile + 1, warp + i * kResidentWarps);
      }
      const WeightOperands a = operands_of(low, high);
      keep(f, a.first);
      keep(f + 1, a.second);
    }
  }

  // Issues the first loads of the states of a part. `base` is where this lane's 16 bytes of the warp's first k-tile
  // are; lanes that are not to read get zeros.
  template <int PART, int FROM = 0, int TO = K_TILES>
  __device__ __forceinline__ void prefetch(const char* base, bool reads) {
    source[PART] = base;
#pragma unroll
    for (int i = FROM; i < TO; ++i) states[PART][i] = load_or_zeros(reads && i < k_tiles, base + i * kKTileBytes);
  }

  // Waits until the loads of the part's k-tiles FROM up to TO have arrived.
  template <int PART, int FROM = 0, int TO = K_TILES>
  __device__ __forceinline__ void wait_loads(int* fault, bool& timed_out) {
    uint4(&words)[TO - FROM] = reinterpret_cast<uint4(&)[TO - FROM]>(states[PART][FROM]);
    poll_words(words, [&](int i) { return source[PART] + (FROM + i) * kKTileBytes; }, fault, timed_out);
  }

  // Adds k-tiles FROM up to TO of a part.
  template <int PART, int FROM = 0, int TO = K_TILES>
  __device__ __forceinline__ void multiply(Sums& sums) const {
#pragma unroll
    for (int i = FROM; i < TO; ++i) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const int f = 2 * ((PART * K_TILES + i) * kTiles + m), tile = Rows::sum_tile(PART, m);
        multiply_k_tile<T, false>(sums[0][tile], sums[kSets - 1][tile], weight(f), weight(f + 1), states[PART][i]);
      }
    }
  }

  // The warp's sums for one tile into `shared`, row tile a at position(a) * kStride.
  static __device__ __forceinline__ void store(const Sums& sums, float* shared) {
    float* const of_lane = shared + threadIdx.x % 32;
#pragma unroll
    for (int o = 0; o < Rows::kSumRowTiles; ++o) {
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

// Where a lane finds the states of one part: the 16 bytes of the warp's first k-tile, of the lane's column of the
// replica's first tile, in this step and in the next one, and how many columns have states there. NULL: the part is
// zero in that step.
struct WavefrontStates {
  const char *here = nullptr, *next = nullptr;
  int tile_bytes = 0;  // from a tile to the next
  int columns = 0, next_columns = 0;

  // Moves on; `after` is the step after the next.
  __device__ __forceinline__ void advance(const char* after) {
    here = next;
    next = after;
  }
};

constexpr int kPairSums = kPairColumns / 2;  // from sum_index() of a column to that of the column kPairColumns further

// Which of a pair's two timesteps a lane reads, and which column of it.
struct WavefrontPair {
  const int step = threadIdx.x % 32 / 4 / kPairColumns, column = threadIdx.x % 32 / 4 % kPairColumns;
};

// Leaves the sums of the neighbour's part as they are.
struct NoMask {
  __device__ __forceinline__ void load(int) const {}
  template <class Sums>
  __device__ __forceinline__ void apply(Sums&) const {}
};

// Backward, the layer above got y after dropout: the sums of its part are multiplied by the mask, in each warp by
// itself. A lane has rows 8 o + lane / 4 and columns 2 sub and 2 sub + 1 of a tile.
template <int ROW_TILES>
struct DropoutMask {
  static constexpr int kWordTiles = ROW_TILES % 4 == 0 ? 4 : 2;

  const uint8_t* kept;  // this lane's first column of the replica's first tile, row tile 0; NULL: no dropout
  const float& scale;
  int row_bytes, columns, row_tiles;  // from a column to the next; of the step; of units that exist
  uint32_t words[2][ROW_TILES / kWordTiles];

  __device__ __forceinline__ void load(int tile) {
    if (kept == nullptr) return;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = tile * kTileColumns + e;
#pragma unroll
      for (int o = 0; o < ROW_TILES; o += kWordTiles) {
        const bool wanted = column + static_cast<int>(threadIdx.x) % 4 * 2 < columns && o < row_tiles;
        words[e][o / kWordTiles] = load_kept<kWordTiles>(wanted, kept + column * row_bytes + o);
      }
    }
  }
  template <int SETS, int TILES>
  __device__ __forceinline__ void apply(float (&sums)[SETS][TILES][4]) const {
    static_assert(TILES * 2 == ROW_TILES, "row tiles of the sums");
    if (kept == nullptr) return;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int o = 0; o < ROW_TILES; ++o) {
        const uint32_t bits = words[e][o / kWordTiles] >> (threadIdx.x % 32 / 4);
        const float factor = bits >> (o % kWordTiles * 8) & 1 ? scale : 0;
#pragma unroll
        for (int set = 0; set < SETS; ++set) sums[set][o / 2][o % 2 * 2 + e] *= factor;
      }
    }
  }
};

// The products of a wave of tiles of one step: for each tile waits for its states, multiplies, and puts the warp's sums
// into shared memory. A tile's states are first polled at the end of the tile before, when they may have arrived. WAVE:
// tiles of a wave, which has one barrier for all of them.
template <class Product, int WAVE>
struct WavefrontTiles {
  static constexpr int kPairVecs = Product::kSets * Product::kSumTiles;  // of kPairFloats, where there are pairs
  Product& product;
  WavefrontStates own, neighbour;
  bool has_neighbour;
  int tiles = 1;  // of this step
  bool own_prefetched = false, neighbour_prefetched = false;
  float4* parked = nullptr;  // run_pairs(): this thread's in shared memory, kPairVecs, kResidentThreads apart

  template <int PART>
  __device__ __forceinline__ void prefetch(const WavefrontStates& states, bool of_next, int tile) {
    const char* const base = of_next ? states.next : states.here;
    const int columns = of_next ? states.next_columns : states.columns;
    const bool reads = base != nullptr && tile * kTileColumns + static_cast<int>(threadIdx.x) % 32 / 4 < columns;
    product.template prefetch<PART>(base + tile * states.tile_bytes, reads);
  }

  // Before run(): issues the loads of the own states, unless the wave before has.
  __device__ __forceinline__ void begin_wave(int first_tile, unsigned published, const ResidentSizes& sizes) {
    if (own_prefetched) return;
    wait_poll_delay(published, sizes.poll_delay_cycles);
    prefetch<kOwn>(own, false, first_tile);
    own_prefetched = true;
  }

  // A step of a replica with one tile. The neighbour's states arrived long before; loads of the own ones are issued
  // when PREFETCH k-tiles of them have been multiplied, and not before `poll_delay` cycles since `published`: earlier
  // ones would return before the data and be issued again. `mask`: a DropoutMask, or kNoMask.
  template <int K_TILES, int PREFETCH, class Mask>
  __device__ __forceinline__ void run_single(bool goes_on, unsigned published, int poll_delay, int* fault,
                                             bool& timed_out, float* shared, Mask&& mask) {
    typename Product::Sums sums = {};
    const auto prefetch_own = [&] {
      wait_poll_delay(published, poll_delay);
      prefetch<kOwn>(own, false, 0);
    };
    if (has_neighbour) {
      if (!neighbour_prefetched) prefetch<kNeighbour>(neighbour, false, 0);
      mask.load(0);
      product.template wait_loads<kNeighbour>(fault, timed_out);
      product.template multiply<kNeighbour, 0, PREFETCH>(sums);
      prefetch_own();
      product.template multiply<kNeighbour, PREFETCH, K_TILES>(sums);
      mask.apply(sums);
      neighbour_prefetched = goes_on;
      if (goes_on) prefetch<kNeighbour>(neighbour, true, 0);
    } else {
      prefetch_own();
    }
    product.template wait_loads<kOwn>(fault, timed_out);
    product.template multiply<kOwn>(sums);
    Product::store(sums, shared);
  }

  // The first pair, `neighbour.next`. FIRST: k-tiles of a pair that are multiplied in the step before it.
  template <int K_TILES, int FIRST>
  __device__ __forceinline__ void begin_pairs(int* fault, bool& timed_out) {
    if (!has_neighbour) return;
    if constexpr (FIRST > 0) {
      prefetch_pair<0, FIRST>();
      product.template wait_loads<kNeighbour, 0, FIRST>(fault, timed_out);
      typename Product::Sums sums = {};
      product.template multiply<kNeighbour, 0, FIRST>(sums);
      park(sums);
    }
    prefetch_pair<FIRST, K_TILES>();
  }

  // A step with pairs. `is_second`: of a pair's timesteps; `neighbour.next` is the pair that follows.
  template <int K_TILES, int PREFETCH, int FIRST, class Mask>
  __device__ __forceinline__ void run_pairs(bool is_second, bool goes_on, unsigned published, int poll_delay,
                                            int* fault, bool& timed_out, float* shared, Mask&& mask) {
    typename Product::Sums sums = {};
    const auto prefetch_own = [&] {
      wait_poll_delay(published, poll_delay);
      prefetch<kOwn>(own, false, 0);
    };
    const auto add_part = [&](typename Product::Sums& pair, auto from, auto to) {
      constexpr int kFrom = decltype(from)::value, kTo = decltype(to)::value;
      constexpr int kMiddle = kFrom + (kTo - kFrom) * PREFETCH / K_TILES;
      product.template wait_loads<kNeighbour, kFrom, kTo>(fault, timed_out);
      product.template multiply<kNeighbour, kFrom, kMiddle>(pair);
      prefetch_own();
      product.template multiply<kNeighbour, kMiddle, kTo>(pair);
    };
    using First = std::integral_constant<int, FIRST>;
    if (!has_neighbour) {
      prefetch_own();
    } else if (is_second) {
      if constexpr (FIRST > 0) {
        typename Product::Sums next = {};
        add_part(next, std::integral_constant<int, 0>(), First());
        park(next);
      } else {
        prefetch_own();
      }
      if (goes_on) prefetch_pair<FIRST, K_TILES>();
    } else {
      mask.load(0);
      if constexpr (FIRST > 0) unpark(sums);
      add_part(sums, First(), std::integral_constant<int, K_TILES>());
      mask.apply(sums);
      if (goes_on) prefetch_pair<0, FIRST>();
    }
    product.template wait_loads<kOwn>(fault, timed_out);
    product.template multiply<kOwn>(sums);
    Product::store(sums, shared);
  }

  template <int FROM, int TO>  // k-tiles
  __device__ __forceinline__ void prefetch_pair() {
    product.template prefetch<kNeighbour, FROM, TO>(neighbour.next, neighbour.next_columns > 0);
  }
  // The sums of a pair's first part of K, from a step to the next: registers do not suffice.
  __device__ __forceinline__ void park(const typename Product::Sums& sums) {
    static_assert(kPairVecs * 4 * kResidentThreads == kPairFloats, "all sums have a place");
    const float4* const vecs = reinterpret_cast<const float4*>(sums);
#pragma unroll
    for (int i = 0; i < kPairVecs; ++i) parked[i * kResidentThreads] = vecs[i];
  }
  __device__ __forceinline__ void unpark(typename Product::Sums& sums) const {
    float4* const vecs = reinterpret_cast<float4*>(sums);
#pragma unroll
    for (int i = 0; i < kPairVecs; ++i) vecs[i] = parked[i * kResidentThreads];
  }

  // `goes_on`: another step follows.
  template <class Mask>
  __device__ __forceinline__ void run(int first_tile, int count, bool goes_on, int* fault, bool& timed_out,
                                      float* shared, int tile_floats, Mask&& mask) {
#pragma unroll 1
    for (int j = 0; j < (WAVE == 1 ? 1 : count); ++j) {
      const int tile = WAVE == 1 ? 0 : first_tile + j;
      const bool is_last = WAVE == 1 || tile + 1 == tiles;
      const int next_tile = is_last ? 0 : tile + 1;
      typename Product::Sums sums = {};
      if (has_neighbour) {
        if (!neighbour_prefetched) prefetch<kNeighbour>(neighbour, false, tile);
        product.template wait_loads<kNeighbour>(fault, timed_out);
        product.template multiply<kNeighbour>(sums);
        mask.load(tile);  // no earlier: there are no registers
        mask.apply(sums);
        neighbour_prefetched = !is_last || goes_on;
        if (neighbour_prefetched) prefetch<kNeighbour>(neighbour, is_last, next_tile);
      }
      if (!own_prefetched) prefetch<kOwn>(own, false, tile);
      product.template wait_loads<kOwn>(fault, timed_out);
      product.template multiply<kOwn>(sums);
      // The next step's first tile depends on this step's first wave, which is done if this is not it.
      own_prefetched = WAVE > 1 && (!is_last || (first_tile > 0 && goes_on));
      if (own_prefetched) prefetch<kOwn>(own, is_last, next_tile);
      Product::store(sums, shared + j * tile_floats);
    }
  }
};

// Launches kernel_of(single, pairs), two constants: the kernel for one tile of sequences a replica, up to half a tile,
// or more. ALWAYS_SINGLE: none takes more than one tile. HAS_PAIRS: there is one for half a tile.
template <bool ALWAYS_SINGLE, bool HAS_PAIRS, class Params, class KernelOf>
cudaError_t launch_wavefront(const ResidentShape& shape, const Params& params, cudaStream_t stream,
                             const KernelOf& kernel_of) {
  constexpr std::true_type yes{};
  constexpr std::false_type no{};
  const int columns = params.sizes.columns_per_replica;
  if constexpr (HAS_PAIRS) {
    if (columns <= kPairColumns) return launch_resident(kernel_of(yes, yes), shape, params, stream);
  }
  if (columns <= kTileColumns) return launch_resident(kernel_of(yes, no), shape, params, stream);
  if constexpr (ALWAYS_SINGLE) return cudaErrorInvalidValue;
  return launch_resident(kernel_of(std::bool_constant<ALWAYS_SINGLE>(), no), shape, params, stream);
}

}  // namespace prnn
