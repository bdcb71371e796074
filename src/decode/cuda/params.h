// Parameters of the kernels of the transducer searches.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "decode/cuda/search_plan.h"

namespace prnn::decode_cuda {

// A prepared model. T: the model's type.
struct Prepared {
  uint4* fragments[kMatrices];  // [row tile][k-tile][operand][lane]
  void* embedding;              // STATELESS: T {context, V, H}
  void* table;                  // LSTM, GRU: T {V, units, 4}: the lower layer's input product and biases of a symbol
  void* table_weights;     // LSTM, GRU: T {units, 4, I}: the lower layer's weights of the input; of prepare() alone
  float* upper_bias;       // {units, 4}, of the upper layer
  float* projection_bias;  // {row tiles, 16}
  float* output_bias;      // {row tiles, 16}
};

// Division by a number that the host knows, of numbers below 2^16: the kernel's way to an array's row and column.
struct Divisor {
  uint32_t divisor, factor;  // factor: 2^32 / divisor, rounded up; 0: by 1

  Divisor() = default;
  explicit Divisor(int by)
      : divisor(static_cast<uint32_t>(by)),
        factor(by == 1 ? 0 : static_cast<uint32_t>((UINT64_C(1) << 32) / divisor) + 1) {}
};

// A word of an exchange, T or two T, with the number of the round in which it was published.
using TaggedWord = unsigned long long;

// 16 bytes that blocks publish of a column: in a beam search, what a piece of the output layer or all pieces together
// say of it is one head and a list of candidates, two in each ListPart. A hypothesis of the utterance may spell what a
// column's own one is with a symbol: the logit of that way is published with the column of the longer one. In a greedy
// search a piece has one ListPart, for the log-probabilities.
struct alignas(16) ListPart {
  float first;    // head: the logarithm of the sum of exponentials of the logits without the blank's; else the first
                  // candidate's logit and gain
  float second;   // head: the blank's logit, greedy: that of the best candidate; else the second candidate's logit and
                  // gain
  uint32_t more;  // head: the bits of the logit and gain of the way to the same symbols; else both classes, the first's
                  // in the lower half
  uint32_t round;
};

// A symbol of a hypothesis. It is number frame x K + the hypothesis' slot of its utterance; by levels they are numbered
// as they come.
struct alignas(16) HistoryEntry {
  int before;  // the symbol before it; -1: none in this call
  int symbol, frame;
  float confidence;
};

// OPTIONS, STATE, OUTPUTS: of a search, as prnn_decode.h has them.
template <class OPTIONS, class STATE, class OUTPUTS>
struct GroupParams {
  prnnTransducerModel_t model;
  Prepared prepared;
  OPTIONS options;
  prnnTransducerInputs_t inputs;
  prnnTransducerBias_t bias;  // nodes: 0: none
  STATE state;
  bool has_state;
  OUTPUTS outputs;

  RowTiles tiles[kMatrices];
  SharedLayout shared;
  int weight_bytes;  // of resident weights
  int joiner_stride, state_stride;
  struct {
    int replicas, directions;  // groups, and 1
  } sizes;
  int blocks, slots, window;  // blocks: of a group
  int entries;                // of a column: pieces of the output layer, or blocks where there are more
  int class_tiles;            // row tiles of the output layer before that of the durations
  int layers, units;          // units: a multiple of kTileUnits
  bool copies_frames;         // frames begin at multiples of 16 bytes
  // Divisors of an index of 16-byte pieces: exchanged states and projections, two words a piece; columns of
  // activations; parts of columns. The last divides a column's number.
  Divisor state_pieces, projection_pieces, activation_pieces, parts_of_column, frames_of_slot;

  TaggedWord* states[2];   // {groups, slots, words of h}
  TaggedWord* projection;  // {groups, slots, words of the joiner's size}
  int* timed_out;
};

struct SearchParams : GroupParams<prnnTransducerSearchOptions_t, prnnTransducerState_t, prnnTransducerOutputs_t> {
  TaggedWord* keys;  // {groups, kPlaces, columns, keys_of_column}: search_scores.cuh
  ListPart* parts;   // {groups, kPlaces, columns, entries + 1}; the last one is of the durations
  int keys_of_column;
};

struct BeamParams : GroupParams<prnnTransducerBeamOptions_t, prnnTransducerBeamState_t, prnnTransducerBeamOutputs_t> {
  int utterances;         // that a group has at once
  int width;              // slots of an utterance
  int list_parts;         // of a list of K candidates
  int list_room;          // parts of a head, such a list and the durations' logits, two in each part
  int waiting;            // by levels: most hypotheses of an utterance that wait; else 0
  Divisor hypotheses;     // divides a slot's number by K
  Divisor parts_of_list;  // and a part's of lists by list_room
  int64_t history_room;   // most symbols of an utterance's hypotheses
  ListPart* parts;        // {groups, 2, columns, entries, list_parts + 1}
  ListPart* lists;        // {groups, 2, columns, list_room}
  HistoryEntry* history;  // {groups, utterances, history_room}
};

// Elements of the exchange, per group.
inline int words_of(int elements, int element_bytes) { return elements * element_bytes / 4; }

// The kernels. T is float, __half or __nv_bfloat16.
template <class T>
cudaError_t run_search(const SearchParams& params, int column_tiles, cudaStream_t stream);

template <class T>
cudaError_t run_beam_search(const BeamParams& params, int column_tiles, int slot_tiles, cudaStream_t stream);
template <class T>
cudaError_t run_level_beam_search(const BeamParams& params, int slot_tiles, cudaStream_t stream);

// Writes all arrays; to the table it writes the biases, to which the product of the embeddings and the table's weights
// is to be added.
template <class T>
cudaError_t run_prepare(const prnnTransducerModel_t& model, const prnnTransducerWeights_t& weights,
                        const SearchPlan& plan, const Prepared& prepared, cudaStream_t stream);

}  // namespace prnn::decode_cuda
