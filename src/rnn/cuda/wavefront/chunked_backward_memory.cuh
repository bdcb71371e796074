// Memory of the backward kernel of wavefronts by chunks: its sizes, what its blocks exchange, and where its
// weights, sums and copies lie. How it works: chunked_backward.cuh.
#pragma once

#include "rnn/cuda/common/sequence.cuh"
#include "rnn/cuda/wavefront/chunked_exchange.cuh"
#include "rnn/cuda/wavefront/chunked_product.cuh"

namespace prnn {

// Sizes that do not depend on the columns of a kernel. The other block's rows come first.
template <prnnRNNMode_t MODE>
struct ChunkedBackwardSizes {
  static constexpr int kUnits = kChunkedBackwardUnits, kRows = kChunkedBackwardCluster * kUnits;
  static constexpr int kTiles = kRows / 16;               // of the instruction
  static constexpr int kFirstTiles = (kUnits + 15) / 16;  // multiplied first; half of the last is the own block's
  static constexpr int kLastTiles = kTiles - kFirstTiles;
  static constexpr int kGates = Cell<MODE>::kGates, kKTiles = chunked_backward_k_tiles(kGates);
  static constexpr int kOperands = kKTiles * kTiles * 2, kFirstOperands = kKTiles * kFirstTiles * 2;
  static constexpr int kFinishing = kUnits * 4;                   // threads: a unit and a quarter of the columns each
  static constexpr int kCopying = kResidentThreads - kFinishing;  // the other threads
  static constexpr int kStages = kChunkedBackwardSaved, kOctets = kUnits / 8;
  static constexpr int kTableSteps = kChunkedBackwardTable;
  static_assert(kTableSteps >= kChunkedMostSteps + 2 && (kTableSteps & (kTableSteps - 1)) == 0);
  // A thread copies, of what the forward pass saved, 16 bytes of a column and of every kCopiedColumns-th one after it.
  static constexpr int kCopyParts = 6 * kOctets, kCopiedColumns = kCopying / kCopyParts;
  static_assert(kRows == kChunkedColumns && kOperands == chunked_backward_operands(kGates) && kFinishing % 32 == 0 &&
                kUnits % 8 == 0);
};

// The exchange between blocks in a step: k-tiles of 64 bytes a column, those of the K of the cluster's first block in
// the first half. A word is two gates' gradients of a unit: of an LSTM, i and f in the first half, g and o in the
// second, 16 units a k-tile. Of a GRU, whose halves are units, 32 units have three k-tiles: r and z of 16 units each,
// and the gradients of R h of the candidate, two units' in a word.
template <prnnRNNMode_t MODE>
struct ChunkedBackwardExchange {
  static constexpr bool kByUnits = MODE == PRNN_GRU;
  static constexpr int kReadAfter = kByUnits ? 3 : 2;  // steps after which all blocks have read a step's words
  int hidden;

  __device__ __forceinline__ int k_tiles() const { return kByUnits ? hidden / 64 * 3 : hidden / 16; }  // of a half
  // Bytes from the beginning of a step to the word of gates 2 * pair and 2 * pair + 1 of a unit, of column 0; of a GRU
  // with `pair` 1, the word of the candidate. `tile`: bytes of a k-tile.
  __device__ __forceinline__ int place(int unit, int pair, int tile) const {
    if constexpr (!kByUnits) return (pair * k_tiles() + unit / 16) * tile + unit % 16 * 4;
    const bool is_second = unit >= hidden / 2;
    const int of_half = is_second ? unit - hidden / 2 : unit, k_tile = of_half / 32 * 3 + of_half % 32 / 16;
    const int first = ((is_second ? k_tiles() : 0) + k_tile) * tile + of_half % 16 * 4;
    return pair == 0 ? first : first + to_candidate(unit, tile);
  }
  // From a unit's word of r and z to that of the candidate.
  __device__ __forceinline__ int to_candidate(int unit, int tile) const {
    const int of_group = (unit >= hidden / 2 ? unit - hidden / 2 : unit) % 32;
    return (2 - of_group / 16) * tile + (of_group / 2 - of_group % 16) * 4;
  }
  // The elements of [G, H] that the two halves of a word are, of word w of k-tile q of a block.
  __device__ __forceinline__ void elements(int rank, int q, int w, int (&at)[2]) const {
    if constexpr (kByUnits) {
      const int unit = rank * (hidden / 2) + q / 3 * 32, kind = q % 3;
      at[0] = kind == 2 ? 2 * hidden + unit + w * 2 : unit + kind * 16 + w;
      at[1] = at[0] + (kind == 2 ? 1 : hidden);
    } else {
      at[0] = 2 * rank * hidden + q * 16 + w;
      at[1] = at[0] + hidden;
    }
  }
};

// Which operands are in registers: spread evenly, so that loads of the others overlap with all products.
template <prnnRNNMode_t MODE, int IN_REGISTERS>
struct ChunkedBackwardOperands {
  static constexpr int kCount = ChunkedBackwardSizes<MODE>::kOperands, kInShared = kCount - IN_REGISTERS;
  // The number of operands before this one that are in registers.
  static constexpr __host__ __device__ int before(int operand) { return operand * IN_REGISTERS / kCount; }
  static constexpr __host__ __device__ bool in_register(int operand) { return before(operand + 1) > before(operand); }
  static constexpr __host__ __device__ int shared_index(int operand) { return operand - before(operand); }
  // The inverse.
  static constexpr __host__ __device__ int register_operand(int i) {
    return ((i + 1) * kCount + IN_REGISTERS - 1) / IN_REGISTERS - 1;
  }
  static constexpr __host__ __device__ int shared_operand(int i) { return i * kCount / kInShared; }
};

template <class T, int COLUMNS>
struct alignas(16) ChunkedSaved {
  T gates[COLUMNS][kChunkedBackwardUnits][4];
  T cells[COLUMNS][kChunkedBackwardUnits];
  T dy[COLUMNS][kChunkedBackwardUnits];
};

struct alignas(16) ChunkedCopy {
  const char* from;  // in row 0 of the data; NULL: nothing
  int row_bytes;
  int to;  // bytes from the start of a stage
};

// Where a thread stores rows of dgates: two gates of eight units and a column.
struct alignas(16) ChunkedRowsOut {
  int column;     // kTileColumns: nothing
  int exchange;   // bytes from the start of a step
  uint32_t from;  // shared address
  int to;         // elements from the start of a row
};

struct alignas(16) ChunkedDerived {
  static constexpr int kFinishing = kChunkedBackwardUnits * 4;
  float4 gates[kFinishing];
  float4 others[kFinishing];  // d h / d c, forget gate (GRU: z), dy; where in the exchange buffer the unit goes:
                              // negative: nowhere
};

template <class T, prnnRNNMode_t MODE, int COLUMNS>
struct ChunkedBackwardMemory : ChunkedBackwardSizes<MODE> {
  using Sizes = ChunkedBackwardSizes<MODE>;
  using Sizes::kRows, Sizes::kUnits, Sizes::kStages, Sizes::kOperands, Sizes::kFinishing, Sizes::kCopying,
      Sizes::kTableSteps;
  struct OfStep {
    float sums[kResidentWarps][kRows * COLUMNS];
    ChunkedDerived derived[COLUMNS / 4];
    ChunkedSaved<T, COLUMNS> saved[kStages];
    uint32_t published[2][2][COLUMNS][kUnits];  // of even and odd steps: pairs of gates, for the rows of dgates
  };

  uint4 weights[kOperands - chunked_backward_registers(COLUMNS)][kResidentThreads];
  union {
    OfStep step;
    uint4 stages[kChunkedColumnsStages * chunked_columns_stage_bytes() / 16];  // between chunks
  };
  // The other block's sums of this block's units, in even and odd steps: kEmpty until they have arrived. They are made
  // empty again after they have been read, before this block's next barrier, and so before the other block can have
  // what it needs for the step after the next.
  float partial[2][kUnits * COLUMNS];
  float carried[COLUMNS / 4][kFinishing];  // dc from the step before; dcy before a sequence's first one
  float4 biases[kFinishing];
  ChunkedCopy copies[kCopying];
  ChunkedRowsOut rows[kCopying];
  uint64_t multiplied;         // counts the warps whose sums of the other block's units are there
  int chunk_first, chunk_end;  // steps of the pass: [first, end)
  // The table of sequences of different lengths: step s of the pass is at s % kTableSteps, from the one before the
  // chunk to that after it; no sequences outside the timesteps.
  StepSizes table[kTableSteps];
};

}  // namespace prnn
