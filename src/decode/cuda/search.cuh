// The resident greedy search: groups of blocks that each hold a whole predictor and joiner search their utterances,
// several at once, in rounds. A round advances the predictor of the utterances that have emitted a symbol, scores a
// window of frames of each, and takes what it found. docs/decoder_kernel.md has the order of exchanges and why each
// array may be written again when it is.
#pragma once

#include <cmath>

#include "decode/cuda/exchange.cuh"
#include "decode/cuda/product.cuh"
#include "rnn/cuda/common/cell.cuh"

namespace prnn::decode_cuda {

// What the predictor of a slot's utterance does in a round: nothing; reads the blank from a zero state; takes the state
// of a stream; reads the symbol that was emitted.
enum class Step : int { kNone, kBegin, kResume, kAdvance };

// An utterance that is being searched. Every block of a group has the same ones and comes to the same decisions.
struct Slot {
  int utterance;  // -1: none
  int stream;     // its state's slot in the pool
  int frame, length;
  int in_frame;  // symbols emitted at this frame
  int count;     // symbols emitted
  Step step;
  int symbol;       // the last one
  int node;         // of the bias
  int closes;       // it has no frames left, and its state is written in this round
  int has_changed;  // its predictor's state
  int context[PRNN_MAX_PREDICTOR_CONTEXT];
  double score;
};
static_assert(sizeof(Slot) <= kSlotBytes);

// What a frame of an utterance says.
struct Column {
  int symbol;  // -1: a blank
  int duration;
  float log_prob, confidence, duration_log_prob, gain;
};
static_assert(sizeof(Column) <= kColumnBytes);

constexpr float kNever = -INFINITY;

__device__ __forceinline__ float add_logs(float a, float b) {
  const float larger = fmaxf(a, b);
  if (larger == kNever) return a + b;  // NaN stays NaN
  return larger + logf(expf(a - larger) + expf(b - larger));
}

// What rows or blocks say of a column, put together: the candidate with the highest value, of equal ones the lowest
// class, and the logarithm of a sum of exponentials, which is NaN once a value is NaN or +infinity.
struct Summary {
  float value = kNever, logit = kNever;
  int place = 0x7FFFFFFF;
  float largest = kNever, sum = 0;

  __device__ __forceinline__ void take(float other, float other_logit, int other_place) {
    if (other > value || (other == value && other_place < place)) {
      value = other, logit = other_logit, place = other_place;
    }
  }
  __device__ __forceinline__ void add(float log_value) {
    if (log_value == kNever) return;
    const float before = largest;
    largest = fmaxf(largest, log_value);
    sum = (before == kNever ? sum : sum * expf(before - largest)) + expf(log_value - largest);
  }
  __device__ __forceinline__ float log_sum() const { return largest + logf(sum); }
};

// The summaries of groups of LANES lanes, in each of these lanes. Those of several columns, so that one's shuffles fill
// the other's latencies.
template <int LANES, int COUNT>
__device__ __forceinline__ void summarise_over_lanes(Summary (&summaries)[COUNT]) {
  float own[COUNT];
#pragma unroll
  for (int c = 0; c < COUNT; ++c) own[c] = summaries[c].largest;
#pragma unroll
  for (int bits = LANES / 2; bits > 0; bits /= 2) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) {
      Summary& s = summaries[c];
      s.largest = fmaxf(s.largest, __shfl_xor_sync(kWholeWarp, s.largest, bits));
      const float value = __shfl_xor_sync(kWholeWarp, s.value, bits);
      const float logit = __shfl_xor_sync(kWholeWarp, s.logit, bits);
      s.take(value, logit, __shfl_xor_sync(kWholeWarp, s.place, bits));
    }
  }
#pragma unroll
  for (int c = 0; c < COUNT; ++c) {
    if (own[c] != kNever) summaries[c].sum *= expf(own[c] - summaries[c].largest);
  }
#pragma unroll
  for (int bits = LANES / 2; bits > 0; bits /= 2) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) summaries[c].sum += __shfl_xor_sync(kWholeWarp, summaries[c].sum, bits);
  }
}

template <class T, int COLUMN_TILES>
struct Search {
  static constexpr Digits kDigits = digits_of<T>();
  static constexpr int kPerWord = Element<T>::kPerWord;
  static constexpr int kColumns = COLUMN_TILES * kTileColumns;
  static constexpr int kResultsStride = kColumns + 1;  // of the output layer's, odd against bank conflicts
  static constexpr int kGatesStride = kTileColumns + 1;

  struct alignas(4 * sizeof(T)) Gates {
    T of[4];
  };

  const SearchParams& p;
  char* const memory;
  const int group, block, warp, lane;
  BlockTiles* const tiles;  // [matrix]
  Slot* slots;
  Column* columns;
  int next_utterance;  // of the first thread
  uint32_t round = 0;
  bool timed_out = false;

  __device__ __forceinline__ Search(const SearchParams& params, char* shared)
      : p(params),
        memory(shared),
        group(blockIdx.x / params.blocks),
        block(blockIdx.x % params.blocks),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        tiles(reinterpret_cast<BlockTiles*>(shared + params.shared.tiles)),
        slots(reinterpret_cast<Slot*>(shared + params.shared.slots)),
        columns(reinterpret_cast<Column*>(shared + params.shared.columns)),
        next_utterance(group) {}

  static __device__ __forceinline__ int quotient(int number, const Divisor& by) {
    return by.factor == 0 ? number : static_cast<int>(__umulhi(static_cast<unsigned>(number), by.factor));
  }
  __device__ __forceinline__ int slot_of(int column) const { return quotient(column, p.frames_of_slot); }

  __device__ __forceinline__ float* floats(int at) const { return reinterpret_cast<float*>(memory + at); }
  __device__ __forceinline__ float4* sums() const { return reinterpret_cast<float4*>(memory + p.shared.sums); }
  __device__ __forceinline__ bool is_recurrent() const { return p.layers > 0; }
  __device__ __forceinline__ int top() const { return p.layers > 1 ? 1 : 0; }
  __device__ __forceinline__ int words(int elements) const { return elements / kPerWord; }
  // Whose arrays of results this block writes.
  __device__ __forceinline__ bool writes(int slot) const { return block == slot % p.blocks; }
  __device__ __forceinline__ bool advances(int s) const {
    return slots[s].step == Step::kBegin || slots[s].step == Step::kAdvance;
  }
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
        tiles[m] = {share, p.tiles[m].k_tiles, resident, shared,
                    p.prepared.fragments[m] + static_cast<int64_t>(share.first) * vecs};
        shared += resident * vecs;
        room -= resident * vecs;
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int m = 0; m < kMatrices; ++m) {
      const BlockTiles& own = tiles[m];
      uint4* const to = const_cast<uint4*>(own.shared);
      for (int i = threadIdx.x; i < own.resident * own.k_tiles * kTileVecs; i += kThreads) to[i] = own.global[i];
    }
  }

  __device__ __forceinline__ void begin() {
    // Columns beyond the sizes of the layers stay zero, and what is multiplied without being used is a number.
    for (int i = p.shared.activations + 4 * threadIdx.x; i < p.shared.sums; i += 4 * kThreads)
      *reinterpret_cast<uint32_t*>(memory + i) = 0;
#pragma unroll 1
    for (int layer = 0; layer < p.layers; ++layer) {
      const int units = units_of(layer).share.count * kTileUnits;
      for (int i = threadIdx.x; i < units * kSlots; i += kThreads) floats(p.shared.cells[layer])[i] = 0;
    }
    const Share output = tiles[kOutput].share;
    for (int i = threadIdx.x; i < output.count * kTileRows; i += kThreads)
      floats(p.shared.output_bias)[i] = p.prepared.output_bias[output.first * kTileRows + i];
    if (threadIdx.x < kSlots) {
      slots[threadIdx.x] = {};
      slots[threadIdx.x].utterance = -1;
    }
    __syncthreads();
  }

  // ---- utterances ----

  // By the first thread: free slots take the next utterances of the group.
  __device__ __forceinline__ void take_utterances() {
    for (int s = 0; s < p.slots; ++s) {
      Slot& taken = slots[s];
      if (taken.utterance >= 0 || next_utterance >= p.options.batch) continue;
      const int n = next_utterance;
      next_utterance += p.sizes.replicas;
      const int frames = static_cast<int>(p.options.maxFrames);
      taken.utterance = n;
      taken.stream = p.has_state && p.state.slots != nullptr ? p.state.slots[n] : n;
      taken.length = p.inputs.lengths != nullptr ? max(0, min(p.inputs.lengths[n], frames)) : frames;
      const int ahead = p.has_state ? p.state.ahead[taken.stream] : -1;
      const bool has_begun = ahead >= 0;
      taken.frame = has_begun ? ahead : 0;
      taken.closes = taken.frame >= taken.length;
      taken.step = has_begun ? (taken.closes ? Step::kNone : Step::kResume) : Step::kBegin;
      taken.has_changed = !has_begun;
      taken.in_frame = taken.count = taken.node = 0;
      taken.score = has_begun && p.state.score != nullptr ? p.state.score[taken.stream] : 0;
      taken.symbol = static_cast<int>(p.model.blank);
      if (has_begun && p.bias.nodes > 0) taken.node = p.state.node[taken.stream];
      if (!is_recurrent()) {
        for (int i = 0; i < p.model.context; ++i)
          taken.context[i] = has_begun ? p.state.context[taken.stream * p.model.context + i] : taken.symbol;
      }
    }
  }

  __device__ __forceinline__ bool is_live(int s) const { return slots[s].utterance >= 0 && !slots[s].closes; }

  // Writes the states of utterances that end, each block its own units.
  __device__ __forceinline__ void write_states() {
#pragma unroll 1
    for (int layer = 0; layer < p.layers; ++layer) {
      const Share own = units_of(layer).share;
      for (int i = threadIdx.x; i < own.count * kTileUnits * p.slots; i += kThreads) {
        const int s = i % p.slots, own_unit = i / p.slots, unit = own.first * kTileUnits + own_unit;
        if (!slots[s].closes || !slots[s].has_changed || unit >= p.model.hiddenSize) continue;
        const int64_t at = (static_cast<int64_t>(slots[s].stream) * p.layers + layer) * p.model.hiddenSize + unit;
        static_cast<T*>(p.state.h)[at] = reinterpret_cast<const T*>(state_row(layer, s))[unit];
        if (p.model.predictor == PRNN_PREDICTOR_LSTM)
          static_cast<float*>(p.state.c)[at] = floats(p.shared.cells[layer])[own_unit * kSlots + s];
      }
    }
  }

  // The rest of it, and what was found; by one thread.
  __device__ __forceinline__ void write_end(const Slot& slot) const {
    p.outputs.counts[slot.utterance] = slot.count;
    if (p.outputs.scores != nullptr) p.outputs.scores[slot.utterance] = slot.score;
    if (!p.has_state) return;
    p.state.ahead[slot.stream] = max(0, slot.frame - slot.length);
    if (p.state.score != nullptr) p.state.score[slot.stream] = slot.score;
    if (p.bias.nodes > 0) p.state.node[slot.stream] = slot.node;
    if (!is_recurrent()) {
      for (int i = 0; i < p.model.context; ++i) p.state.context[slot.stream * p.model.context + i] = slot.context[i];
    }
  }

  // ---- the predictor ----

  __device__ __forceinline__ char* state_row(int layer, int s) const {
    return memory + p.shared.states[layer] + s * p.state_stride;
  }

  // Units of a layer that this block has, of the utterances whose predictors read a symbol. The upper layer's input
  // products are in `results`.
  template <prnnRNNMode_t MODE>
  __device__ __forceinline__ void step_cells(int layer) {
    const Share own = units_of(layer).share;
    const float* const recurrent = floats(p.shared.recurrent[layer]);
    const float* const inputs = floats(p.shared.results);
    float* const cells = floats(p.shared.cells[layer]);
    TaggedWord* const published = p.states[layer] + static_cast<int64_t>(group) * p.slots * words(p.units);
#pragma unroll 1
    for (int i = threadIdx.x; i < own.count * kTileUnits * kSlots; i += kThreads) {  // whole warps
      const int own_unit = i / kSlots, s = i % kSlots, unit = own.first * kTileUnits + own_unit;
      const bool steps = s < p.slots && advances(s);
      float h = 0;
      if (steps && unit < p.model.hiddenSize) {
        const bool begins = slots[s].step == Step::kBegin;
        const Gates of_symbol =
            static_cast<const Gates*>(p.prepared.table)[static_cast<int64_t>(slots[s].symbol) * p.units + unit];
        float gate[4];
#pragma unroll
        for (int g = 0; g < 4; ++g) {
          const int row = own_unit * 4 + g;
          const float input = layer == 0 ? Element<T>::to_float(of_symbol.of[g])
                                         : inputs[row * kGatesStride + s] + p.prepared.upper_bias[unit * 4 + g];
          const float sum = input + (begins ? 0 : recurrent[row * kGatesStride + s]);
          gate[g] = Cell<MODE>::template activate<kDigits>(sum, g, 0);
        }
        float before = 0;
        if (!begins) {
          before = Cell<MODE>::kHasCellState
                       ? cells[i]
                       : Element<T>::to_float(reinterpret_cast<const T*>(state_row(layer, s))[unit]);
        }
        const UnitForward result = Cell<MODE>::template forward<kDigits>(gate, before);
        if (Cell<MODE>::kHasCellState) cells[i] = result.carried;
        h = result.h;
      }
      publish_elements(published, words(p.units), s, unit, h, steps);
    }
  }

  // Elements of a slot's row, of which lane + kSlots has the next one.
  __device__ __forceinline__ void publish_elements(TaggedWord* rows, int row_words, int s, int element, float value,
                                                   bool valid) const {
    const float next = kPerWord == 2 ? __shfl_down_sync(kWholeWarp, value, kSlots) : 0;
    publish_tagged(valid && element % kPerWord == 0, rows + s * row_words + element / kPerWord,
                   Element<T>::pack(value, next), round);
  }

  // Waits for the rows of these slots into shared memory. False: give up.
  __device__ __forceinline__ bool gather_rows(const TaggedWord* rows, const Divisor& pieces, char* to, int stride,
                                              unsigned wanted) {
    gather(
        p.slots * static_cast<int>(pieces.divisor),
        [&](int i) -> const void* { return (wanted >> quotient(i, pieces) & 1) != 0 ? rows + 2 * i : nullptr; },
        [](const void* from) { return load_tagged(from); },
        [&](const TwoLongs& v) {
          return static_cast<uint32_t>(v.first >> 32) == round && static_cast<uint32_t>(v.second >> 32) == round;
        },
        [&](int i, const TwoLongs& v) {
          const int row = quotient(i, pieces), piece = i - row * static_cast<int>(pieces.divisor);
          *reinterpret_cast<uint2*>(to + row * stride + piece * 8) = {static_cast<uint32_t>(v.first),
                                                                      static_cast<uint32_t>(v.second)};
        },
        p.timed_out, timed_out);
    return __syncthreads_or(timed_out) == 0;
  }

  __device__ __forceinline__ bool step_layer(int layer, unsigned advancing) {
    if (p.model.predictor == PRNN_PREDICTOR_LSTM) {
      step_cells<PRNN_LSTM>(layer);
    } else {
      step_cells<PRNN_GRU>(layer);
    }
    return gather_rows(p.states[layer] + static_cast<int64_t>(group) * p.slots * words(p.units), p.state_pieces,
                       memory + p.shared.states[layer], p.state_stride, advancing);
  }

  // States of streams that go on: h of all units, c of the own ones.
  __device__ __forceinline__ void resume_states() {
    const int hidden = static_cast<int>(p.model.hiddenSize);
    for (int s = 0; s < p.slots; ++s) {
      if (slots[s].step != Step::kResume) continue;
#pragma unroll 1
      for (int layer = 0; layer < p.layers; ++layer) {
        const int64_t row = (static_cast<int64_t>(slots[s].stream) * p.layers + layer) * hidden;
        for (int i = threadIdx.x; i < hidden; i += kThreads)
          reinterpret_cast<T*>(state_row(layer, s))[i] = static_cast<const T*>(p.state.h)[row + i];
        if (p.model.predictor != PRNN_PREDICTOR_LSTM) continue;
        const Share own = units_of(layer).share;
        for (int i = threadIdx.x; i < own.count * kTileUnits; i += kThreads) {
          const int unit = own.first * kTileUnits + i;
          if (unit < hidden)
            floats(p.shared.cells[layer])[i * kSlots + s] = static_cast<const float*>(p.state.c)[row + unit];
        }
      }
    }
  }

  // The output of a stateless predictor, by every block for itself.
  __device__ __forceinline__ void sum_embeddings() {
    const int hidden = static_cast<int>(p.model.hiddenSize), context = static_cast<int>(p.model.context);
    for (int i = threadIdx.x; i < p.slots * hidden; i += kThreads) {
      const int s = i / hidden, element = i % hidden;
      if (slots[s].step == Step::kNone) continue;
      float sum = 0;
      for (int k = 0; k < context; ++k) {
        const int64_t row = k * p.model.classes + slots[s].context[k];
        sum += Element<T>::to_float(static_cast<const T*>(p.prepared.embedding)[row * hidden + element]);
      }
      if (p.model.predictorRelu != 0 && sum < 0) sum = 0;
      reinterpret_cast<T*>(state_row(0, s))[element] = Element<T>::from_float(sum);
    }
    __syncthreads();
  }

  // The product of a matrix and the states of a layer.
  __device__ __forceinline__ void multiply_states(int matrix, int layer, int results) {
    multiply_rows<T, 1, true>(tiles[matrix], shared_address(memory + p.shared.states[layer]), p.state_stride, sums(),
                              floats(results), kGatesStride, [](int, int) {});
  }

  // One round's steps of the predictors, up to their projections in shared memory.
  __device__ __forceinline__ bool step_predictors() {
    const unsigned advancing =
        slots_that([](const Slot& slot) { return slot.step == Step::kBegin || slot.step == Step::kAdvance; });
    const unsigned projected =
        slots_that([](const Slot& slot) { return slot.step != Step::kNone && slot.closes == 0; });
    if (is_recurrent()) {
      resume_states();
#pragma unroll 1
      for (int layer = 0; layer < p.layers; ++layer) {
        if (layer > 0) multiply_states(kUpperInput, 0, p.shared.results);
        if (!step_layer(layer, advancing)) return false;
      }
    } else {
      sum_embeddings();
    }
    // The projection, and while it is on its way, the recurrent products for the next symbol.
    const int row_words = words(p.tiles[kProjection].count * kTileRows);
    TaggedWord* const published = p.projection + static_cast<int64_t>(group) * p.slots * row_words;
#pragma unroll 1
    for (int i = -1; i < p.layers; ++i) {
      const bool projects = i < 0;
      const int matrix = projects ? kProjection : i == 0 ? kRecurrent : kUpperRecurrent;
      multiply_states(matrix, projects ? top() : i, projects ? p.shared.results : p.shared.recurrent[i]);
      if (projects) publish_projections(published, row_words, projected);
    }
    return gather_rows(published, p.projection_pieces, memory + p.shared.projection, p.joiner_stride, projected);
  }

  __device__ __forceinline__ void publish_projections(TaggedWord* published, int row_words, unsigned projected) const {
    const Share own = tiles[kProjection].share;
    const float* const results = floats(p.shared.results);
#pragma unroll 1
    for (int i = threadIdx.x; i < own.count * kTileRows * kSlots; i += kThreads) {  // whole warps
      const int own_row = i / kSlots, s = i % kSlots, row = own.first * kTileRows + own_row;
      publish_elements(published, row_words, s, row,
                       results[own_row * kGatesStride + s] + p.prepared.projection_bias[row],
                       (projected >> s & 1) != 0);
    }
  }

  // ---- scores ----

  __device__ __forceinline__ char* column_row(int column) const {
    return memory + p.shared.activations + column * p.joiner_stride;
  }

  // Starts to copy the frames of the round's windows. After an utterance's last frame comes that frame again.
  __device__ __forceinline__ void copy_frames() {
    const int joiner = static_cast<int>(p.model.joinerSize);
    constexpr int kPerCopy = 16 / sizeof(T);
    for (int column = warp; column < p.slots * p.window; column += kWarps) {
      const int s = slot_of(column);
      if (!is_live(s)) continue;
      const int frame = min(slots[s].frame + column - s * p.window, slots[s].length - 1);
      const int64_t row = slots[s].utterance * p.options.maxFrames + frame;
      const T* const from = static_cast<const T*>(p.inputs.frames) + row * joiner;
      T* const to = reinterpret_cast<T*>(column_row(column));
      if (p.copies_frames) {
        for (int i = lane * kPerCopy; i < joiner; i += 32 * kPerCopy) {
          asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(shared_address(to + i)), "l"(from + i)
                       : "memory");
        }
      } else {
        for (int i = lane; i < joiner; i += 32) to[i] = from[i];
      }
    }
  }

  __device__ __forceinline__ float activate(float x) const {
    if (p.model.activation == PRNN_JOINT_RELU) return x < 0 ? 0 : x;  // NaN stays NaN
    return hyperbolic_tangent<kDigits>(x);
  }

  __device__ __forceinline__ uint32_t activate_word(uint32_t frame, uint32_t projection) const {
    const T* const frames = reinterpret_cast<const T*>(&frame);
    const T* const projections = reinterpret_cast<const T*>(&projection);
    float value[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < kPerWord; ++k)
      value[k] = activate(Element<T>::to_float(frames[k]) + Element<T>::to_float(projections[k]));
    return Element<T>::pack(value[0], value[1]);
  }

  // From frames and projections to the output layer's input, in place.
  __device__ __forceinline__ void activate_columns() {
    const int pieces = static_cast<int>(p.activation_pieces.divisor);
    for (int i = threadIdx.x; i < p.slots * p.window * pieces; i += kThreads) {
      const int column = quotient(i, p.activation_pieces), piece = i - column * pieces, s = slot_of(column);
      if (!is_live(s)) continue;
      uint4* const at = reinterpret_cast<uint4*>(column_row(column)) + piece;
      const uint4 x = *at;
      const uint4 g = reinterpret_cast<const uint4*>(memory + p.shared.projection + s * p.joiner_stride)[piece];
      *at = {activate_word(x.x, g.x), activate_word(x.y, g.y), activate_word(x.z, g.z), activate_word(x.w, g.w)};
    }
    __syncthreads();
  }

  __device__ __forceinline__ ColumnPart* parts_of_round() const {
    return p.parts + (static_cast<int64_t>(group) * 2 + round % 2) * kColumns * (p.blocks + 2);
  }
  __device__ __forceinline__ uint32_t place_and_round(int place) const {
    return static_cast<uint32_t>(place) << 16 | (round & 0xFFFF);
  }

  // The most probable duration of a column, whose logits the warp's lanes have in their order; the others have
  // -infinity.
  __device__ __forceinline__ void publish_duration(ColumnPart* parts, float logit, int place) const {
    Summary all[1];
    all[0].add(logit);
    all[0].take(logit, logit, place);
    summarise_over_lanes<32>(all);
    const bool exists = all[0].place >= 0 && all[0].place < kTileRows;
    if (lane == 0)
      publish_part(parts + p.blocks + 1,
                   {all[0].value - all[0].log_sum(), 0, 0, place_and_round(exists ? all[0].place : 0)});
  }

  // The own rows of the output layer, and what they say of each column.
  __device__ __forceinline__ void score_columns() {
    const Share own = tiles[kOutput].share;
    const float* const results = floats(p.shared.results);
    const float* const bias = floats(p.shared.output_bias);
    const int classes = static_cast<int>(p.model.classes);
    ColumnPart* const parts = parts_of_round();
    Summary summaries[COLUMN_TILES];
    multiply_rows<T, COLUMN_TILES, false>(
        tiles[kOutput], shared_address(memory + p.shared.activations), p.joiner_stride, sums(),
        floats(p.shared.results), kResultsStride, [&](int tile, int rows) {
          const int own_row = tile * kTileRows + lane, row = own.first * kTileRows + own_row;
          const bool is_row = lane < rows, is_class = is_row && row < classes;
#pragma unroll
          for (int c = 0; c < COLUMN_TILES; ++c) {
            const int column = warp + c * kWarps;
            const float logit = is_row ? results[lane * kResultsStride + column] + bias[own_row] : 0;
            if (is_class && row == p.model.blank)
              publish_part(parts + column * (p.blocks + 2) + p.blocks, {logit, 0, 0, place_and_round(0)});
            if (is_class && row != p.model.blank) {
              summaries[c].add(logit);
              summaries[c].take(logit + gain(column, row), logit, row);
            }
          }
          if (own.first + tile + rows / kTileRows <= p.class_tiles) return;
          const int duration = row - p.class_tiles * kTileRows;
          const bool is_duration = is_row && duration >= 0 && duration < p.model.durationCount;
#pragma unroll 1
          for (int column = warp; column < kColumns; column += kWarps) {
            const float logit = is_duration ? results[lane * kResultsStride + column] + bias[own_row] : kNever;
            publish_duration(parts + column * (p.blocks + 2), logit, duration);
          }
        });
    summarise_over_lanes<32>(summaries);
#pragma unroll
    for (int c = 0; c < COLUMN_TILES; ++c) {
      const Summary& own_part = summaries[c];
      if (lane == 0) {
        publish_part(parts + (warp + c * kWarps) * (p.blocks + 2) + block,
                     {own_part.value, own_part.logit, own_part.log_sum(), place_and_round(own_part.place & 0xFFFF)});
      }
    }
  }

  __device__ __forceinline__ float gain(int column, int row) const {
    if (p.bias.nodes == 0) return 0;
    const int s = slot_of(column);
    if (s >= p.slots || row == p.model.blank) return 0;
    return static_cast<const float*>(p.bias.gains)[slots[s].node * p.model.classes + row];
  }

  // Waits for what all blocks say of the columns that have frames, and of column 0, so that in every round every block
  // has heard of every other.
  __device__ __forceinline__ bool gather_parts() {
    const int of_column = static_cast<int>(p.parts_of_column.divisor);
    const ColumnPart* const parts = parts_of_round();
    gather(
        kColumns * of_column,
        [&](int i) -> const void* {
          const int column = quotient(i, p.parts_of_column);
          return column == 0 || has_frame(column) ? parts + i + column * (p.blocks + 2 - of_column) : nullptr;
        },
        [](const void* from) { return load_part(from); },
        [&](const TwoLongs& v) { return (static_cast<uint32_t>(v.second >> 32) & 0xFFFF) == (round & 0xFFFF); },
        [&](int i, const TwoLongs& v) {
          const int column = quotient(i, p.parts_of_column);
          reinterpret_cast<TwoLongs*>(memory + p.shared.sums)[i + column * (p.blocks + 2 - of_column)] = v;
        },
        p.timed_out, timed_out);
    return __syncthreads_or(timed_out) == 0;
  }

  __device__ __forceinline__ bool has_frame(int column) const {
    const int s = slot_of(column);
    return s < p.slots && is_live(s) && slots[s].frame + column - s * p.window < slots[s].length;
  }

  // What each column says, from all blocks' parts; kColumnLanes lanes for each, whatever the number of columns, so that
  // the sums have one order.
  __device__ __forceinline__ void read_columns() {
    constexpr int kColumnLanes = 8, kPerWarp = 32 / kColumnLanes;
    for (int first = warp; first < kColumns; first += kPerWarp * kWarps) {
      const int column = first + lane / kColumnLanes * kWarps;
      const bool is_wanted = column < kColumns && has_frame(column);
      const ColumnPart* const parts =
          reinterpret_cast<const ColumnPart*>(memory + p.shared.sums) + column * (p.blocks + 2);
      Summary summaries[1];
      Summary& summary = summaries[0];
      if (is_wanted) {
#pragma unroll 2
        for (int b = lane % kColumnLanes; b < p.blocks; b += kColumnLanes) {
          const ColumnPart part = parts[b];
          summary.take(part.best, part.logit, static_cast<int>(part.place_and_round >> 16));
          summary.largest = fmaxf(summary.largest, part.log_sum);
        }
#pragma unroll 2
        for (int b = lane % kColumnLanes; b < p.blocks; b += kColumnLanes) {
          const float log_sum = parts[b].log_sum;
          if (log_sum != kNever) summary.sum += expf(log_sum - summary.largest);
        }
      }
      summarise_over_lanes<kColumnLanes>(summaries);
      if (!is_wanted || lane % kColumnLanes != 0) continue;
      const float others = summary.log_sum(), blank = parts[p.blocks].best, all = add_logs(others, blank);
      Column found = {-1, 1, blank - all, 0, 0, 0};
      if (!(fabsf(all) < INFINITY)) {
        found.log_prob = kNever;
      } else {
        if (summary.value > blank || (summary.value == blank && summary.place < p.model.blank)) {
          found.symbol = summary.place;
          found.duration = 0;
          found.log_prob = summary.logit - all;
          found.confidence = summary.logit - others;
          found.gain = gain(column, summary.place);
        }
        if (p.model.durationCount > 0) {
          const ColumnPart part = parts[p.blocks + 1];
          const bool is_number = fabsf(part.best) < INFINITY;
          found.duration_log_prob = is_number ? part.best : kNever;
          const int duration = is_number ? p.model.durations[part.place_and_round >> 16] : 1;
          found.duration = found.symbol < 0 ? max(1, duration) : duration;
        }
      }
      columns[column] = found;
    }
  }

  // Goes through the window's frames up to a symbol; warp s for slot s.
  __device__ __forceinline__ void take_frames() {
    if (warp >= p.slots || lane != 0 || slots[warp].utterance < 0) return;
    Slot& slot = slots[warp];
    slot.step = Step::kNone;
    if (!slot.closes) {
      int at = 0, frame = slot.frame, in_frame = slot.in_frame;
      const int length = slot.length;
      double score = slot.score;
      bool emits = false;
      while (!emits && at < p.window && frame < length) {
        const Column& column = columns[warp * p.window + at];
        score += static_cast<double>(column.log_prob) + static_cast<double>(column.duration_log_prob);
        int duration = column.duration;
        if (column.symbol >= 0) {
          emits = true;
          ++in_frame;
          if (in_frame >= p.options.maxSymbols) duration = max(1, duration);
          score += static_cast<double>(column.gain);
          emit(slot, column, frame, duration);
        }
        if (duration > 0) in_frame = 0;
        frame += duration;
        at += duration;
      }
      slot.frame = frame;
      slot.in_frame = in_frame;
      slot.score = score;
      const bool ends = frame >= length;
      slot.closes = ends && p.has_state;
      if (emits && (!ends || p.has_state)) slot.step = Step::kAdvance;
      if (emits) slot.has_changed = 1;
      if (!ends || p.has_state) return;
    }
    if (writes(warp)) write_end(slot);
    slot.utterance = -1;
    slot.closes = 0;
  }

  __device__ __forceinline__ void emit(Slot& slot, const Column& column, int frame, int duration) const {
    if (writes(warp)) {
      const int64_t at = slot.utterance * p.options.maxFrames * p.options.maxSymbols + slot.count;
      p.outputs.symbols[at] = column.symbol;
      if (p.outputs.frames != nullptr) p.outputs.frames[at] = frame;
      if (p.outputs.durations != nullptr) p.outputs.durations[at] = duration;
      if (p.outputs.logProbs != nullptr) static_cast<float*>(p.outputs.logProbs)[at] = column.log_prob;
      if (p.outputs.confidences != nullptr) static_cast<float*>(p.outputs.confidences)[at] = column.confidence;
    }
    ++slot.count;
    slot.symbol = column.symbol;
    if (p.bias.nodes > 0) slot.node = p.bias.next[slot.node * p.model.classes + column.symbol];
    if (!is_recurrent()) {
      for (int i = 0; i + 1 < p.model.context; ++i) slot.context[i] = slot.context[i + 1];
      slot.context[p.model.context - 1] = column.symbol;
    }
  }

  // ---- rounds ----

  __device__ __forceinline__ void run() {
    load_weights();
    begin();
    for (;;) {
      if (threadIdx.x == 0) take_utterances();
      __syncthreads();
      if (slots_that([](const Slot& slot) { return slot.utterance >= 0; }) == 0) return;
      ++round;
      copy_frames();
      const bool steps = slots_that([](const Slot& slot) { return slot.step != Step::kNone; }) != 0;
      if (steps && !step_predictors()) return;
      asm volatile("cp.async.wait_all;" ::: "memory");
      __syncthreads();
      activate_columns();
      score_columns();
      if (!gather_parts()) return;
      if (p.has_state) write_states();
      read_columns();
      __syncthreads();
      take_frames();
      __syncthreads();
    }
  }
};

template <class T, int COLUMN_TILES>
__global__ void __launch_bounds__(kThreads, 1) search_kernel(const __grid_constant__ SearchParams params) {
  extern __shared__ __align__(128) char memory[];
  Search<T, COLUMN_TILES>(params, memory).run();
}

}  // namespace prnn::decode_cuda
