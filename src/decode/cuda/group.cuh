// Shared parts of the resident searches: a group of blocks that holds a whole predictor and joiner, the slots of
// its predictor states, and the columns of its output layer. docs/decoder_kernel.md has the order of exchanges and why
// each array may be written again when it is.
#pragma once

#include <cmath>

#include "decode/cuda/exchange.cuh"
#include "decode/cuda/product.cuh"
#include "decode/cuda/slot.cuh"
#include "decode/cuda/summary.cuh"
#include "rnn/cuda/common/cell.cuh"

namespace prnn::decode_cuda {

// PARAMS: SearchParams or BeamParams. SLOT: a SlotState and what a search adds. SLOT_TILES: column tiles of slots.
template <class T, class PARAMS, class SLOT, int COLUMN_TILES, int SLOT_TILES>
struct Group {
  static constexpr Digits kDigits = digits_of<T>();
  static constexpr int kPerWord = Element<T>::kPerWord;
  static constexpr int kColumns = COLUMN_TILES * kTileColumns;
  static constexpr int kSlotRoom = SLOT_TILES * kTileColumns;
  static constexpr int kGatesStride = kSlotRoom + 1;
  static constexpr int kHalves = SLOT::kHasParents ? 1 : 2;  // sums of a recurrent product, each over a part of K

  struct alignas(4 * sizeof(T)) Gates {
    T of[4];
  };

  const PARAMS& p;
  char* const memory;
  const int group, block, warp, lane;
  BlockTiles* const tiles;  // [matrix]
  SLOT* const slots;
  int next_utterance;  // of the threads that take utterances
  uint32_t round = 0;
  bool timed_out = false;
  typename SLOT::Windows windows;                // of the round
  unsigned stepping = 0;                         // slots that step in this round, a bit each
  int stepping_count = 0, stepping_of_lane = 0;  // columns of the predictors' products; of a beam search
  // Weights of the next product. More k-tiles leave too few registers.
  PassWeights<sizeof(T) == sizeof(float) && COLUMN_TILES >= 3 ? 2 : 3> ahead;

  __device__ __forceinline__ Group(const PARAMS& params, char* shared)
      : p(params),
        memory(shared),
        group(blockIdx.x / params.blocks),
        block(blockIdx.x % params.blocks),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        tiles(reinterpret_cast<BlockTiles*>(shared + params.shared.tiles)),
        slots(reinterpret_cast<SLOT*>(shared + params.shared.slots)),
        next_utterance(group),
        windows(params) {}

  __device__ __forceinline__ int slot_of(int column) const { return windows.slot_of(column); }

  __device__ __forceinline__ float* floats(int at) const { return reinterpret_cast<float*>(memory + at); }
  __device__ __forceinline__ float* sums() const { return floats(p.shared.sums); }
  __device__ __forceinline__ bool is_recurrent() const { return p.layers > 0; }
  __device__ __forceinline__ int top() const { return p.layers > 1 ? 1 : 0; }
  __device__ __forceinline__ int words(int elements) const { return elements / kPerWord; }
  // Whether this block writes the results of a slot, or of what a search has in place of slots.
  __device__ __forceinline__ bool writes(int slot) const { return block == slot % p.blocks; }
  __device__ __forceinline__ bool advances(int s) const { return slots[s].step > Step::kResume; }
  __device__ __forceinline__ const BlockTiles& units_of(int layer) const {
    return tiles[layer == 0 ? kRecurrent : kUpperRecurrent];
  }
  // The slots of which something is true, a bit each; by whole warps.
  template <class Is>
  __device__ __forceinline__ unsigned slots_that(const Is& is) const {
    return __ballot_sync(kWholeWarp, lane < p.slots && is(slots[lane]));
  }

  // ---- before the first round ----

  __device__ __forceinline__ void load_weights() {
    if (threadIdx.x == 0) {
      const uint4* shared = reinterpret_cast<const uint4*>(memory + p.shared.weights);
      int room = p.weight_bytes / static_cast<int>(sizeof(uint4));
#pragma unroll 1
      for (int m = 0; m < kMatrices; ++m) {
        const int vecs = p.tiles[m].k_tiles * kTileVecs;
        const Share share = share_of(p.tiles[m], p.blocks, block);
        const int resident = min(share.count, room / vecs);
        tiles[m] = {share,
                    share.first / p.tiles[m].together,
                    p.tiles[m].k_tiles,
                    resident,
                    shared,
                    p.prepared.fragments[m] + static_cast<int64_t>(share.first) * vecs};
        shared += resident * vecs;
        room -= resident * vecs;
      }
    }
    sync_threads();
#pragma unroll 1
    for (int m = 0; m < kMatrices; ++m) {
      const BlockTiles& own = tiles[m];
      uint4* const to = const_cast<uint4*>(own.shared);
#pragma unroll 1
      for (int i = threadIdx.x; i < own.resident * own.k_tiles * kTileVecs; i += kThreads)
        copy_vec(to + i, own.global + i);
    }
  }

  __device__ __forceinline__ void copy_bias(int matrix, const float* bias, float* to) const {
    const Share own = tiles[matrix].share;
#pragma unroll 1
    for (int i = threadIdx.x; i < own.count * kTileRows; i += kThreads) to[i] = bias[own.first * kTileRows + i];
  }

  __device__ __forceinline__ void begin() {
    // Columns beyond the sizes of the layers stay zero, and what is multiplied without being used is a number.
#pragma unroll 1
    for (int i = p.shared.activations + 16 * threadIdx.x; i < p.shared.sums; i += 16 * kThreads)
      *reinterpret_cast<uint4*>(memory + i) = {0, 0, 0, 0};
#pragma unroll 1
    for (int layer = 0; layer < p.layers; ++layer) {
      const int units = units_of(layer).share.count * kTileUnits;
#pragma unroll 1
      for (int i = threadIdx.x; i < units * kSlotRoom; i += kThreads) floats(p.shared.cells[layer])[i] = 0;
    }
    copy_bias(kOutput, p.prepared.output_bias, floats(p.shared.output_bias));
    copy_bias(kProjection, p.prepared.projection_bias, floats(p.shared.projection_bias));
    if (threadIdx.x < kSlotRoom) {
      slots[threadIdx.x] = {};
      slots[threadIdx.x].utterance = -1;
    }
    wait_for_copies();
    sync_threads();
  }

  // ---- states ----

  // Writes the states of utterances that end, each block its own units.
  __device__ __forceinline__ void write_states() {
#pragma unroll 1
    for (int layer = 0; layer < p.layers; ++layer) {
      const Share own = units_of(layer).share;
#pragma unroll 1
      for (int i = threadIdx.x; i < own.count * kTileUnits * p.slots; i += kThreads) {
        const int s = i % p.slots, own_unit = i / p.slots, unit = own.first * kTileUnits + own_unit;
        if (!slots[s].closes || !slots[s].has_changed || unit >= p.model.hiddenSize) continue;
        slots[s].for_streams_after([&](int stream) {
          const int64_t at = (static_cast<int64_t>(stream) * p.layers + layer) * p.model.hiddenSize + unit;
          static_cast<T*>(p.state.h)[at] = reinterpret_cast<const T*>(state_row(layer, s))[unit];
          if (p.model.predictor == PRNN_PREDICTOR_LSTM)
            static_cast<float*>(p.state.c)[at] = floats(p.shared.cells[layer])[own_unit * kSlotRoom + s];
        });
      }
    }
  }

  // ---- the predictor: group_predictor.cuh ----

  __device__ __forceinline__ char* state_row(int layer, int s) const {
    return memory + p.shared.states[layer] + s * p.state_stride;
  }

  template <prnnRNNMode_t MODE>
  __device__ __forceinline__ void step_cells(int layer);
  __device__ __forceinline__ void list_stepping();
  // The slot of a column of the predictors' products; by whole warps. Those behind the last have a slot, too.
  __device__ __forceinline__ int stepping_slot(int column) const {
    return SLOT::kHasParents ? __shfl_sync(kWholeWarp, stepping_of_lane, column) : column;
  }
  // -1 for columns behind the last.
  __device__ __forceinline__ int column_of_product(int column) const {
    const int s = stepping_slot(column);
    return column < stepping_count ? s : -1;
  }
  __device__ __forceinline__ int used_slot_tiles() const { return (stepping_count + kTileColumns - 1) / kTileColumns; }
  __device__ __forceinline__ LaneColumns<SLOT_TILES> columns_of_states(int layer) const;
  __device__ __forceinline__ void publish_elements(TaggedWord* rows, int row_words, int s, int element, float value,
                                                   bool valid) const;
  __device__ __forceinline__ bool gather_rows(const TaggedWord* rows, const Divisor& pieces, char* to, int stride,
                                              unsigned wanted);
  __device__ __forceinline__ void step_cells_of(int layer);
  __device__ __forceinline__ bool gather_states(int layer, unsigned advancing);
  __device__ __forceinline__ void resume_states();
  __device__ __forceinline__ void sum_embeddings();
  // Begins to load what the product with a matrix needs first, before its columns are there.
  __device__ __forceinline__ void load_ahead(int matrix) { ahead.load(tiles[matrix], 0); }
  __device__ __forceinline__ void multiply_states(int matrix, int layer, float* results);
  __device__ __forceinline__ void multiply_recurrent(int layer, int own_warp, int warps);
  __device__ __forceinline__ void project(TaggedWord* published, int row_words, unsigned projected);
  template <class Meanwhile>
  __device__ __forceinline__ bool step_predictors(const Meanwhile& meanwhile);

  // ---- the output layer's input: group_columns.cuh ----

  __device__ __forceinline__ char* column_row(int column) const {
    return memory + p.shared.activations + column * p.joiner_stride;
  }
  __device__ __forceinline__ LaneColumns<COLUMN_TILES> columns_of_scores() const {
    return {memory + p.shared.activations, p.joiner_stride, [](int column) { return column; }};
  }

  __device__ __forceinline__ bool has_frame(int column) const {
    const int s = slot_of(column);
    return s < p.slots && slots[s].is_live() && slots[s].frame + column - windows.first_column(s) < slots[s].length;
  }

  __device__ __forceinline__ void copy_frames();
  template <bool RELU>
  static __device__ __forceinline__ uint32_t activate_word(uint32_t frame, uint32_t projection);
  template <bool RELU>
  __device__ __forceinline__ void activate_with();
  __device__ __forceinline__ void activate_columns();

  // The bias's gain of a symbol, no blank, after a slot's, and after that of a column.
  __device__ __forceinline__ float gain_of_slot(int s, int symbol) const {
    if (p.bias.nodes == 0) return 0;
    return static_cast<const float*>(p.bias.gains)[slots[s].node * p.model.classes + symbol];
  }
  __device__ __forceinline__ float gain(int column, int symbol) const {
    if (p.bias.nodes == 0) return 0;
    const int s = slot_of(column);
    return s < p.slots && symbol != p.model.blank ? gain_of_slot(s, symbol) : 0;
  }

  // Up to the output layer's input. meanwhile(): the recurrent products, if there are new ones, and other work that is
  // not on the way to the next symbol. False: give up.
  template <class Meanwhile>
  __device__ __forceinline__ bool make_columns(const Meanwhile& meanwhile) {
    ++round;
    const bool arrived = step_predictors(meanwhile);
    if (arrived) activate_columns();
    return arrived;
  }
};

}  // namespace prnn::decode_cuda

#include "decode/cuda/group_columns.cuh"
#include "decode/cuda/group_predictor.cuh"
