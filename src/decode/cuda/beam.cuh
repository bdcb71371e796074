// The resident beam search of at most one symbol a frame, with a slot for every hypothesis. A hypothesis that goes on
// with a blank keeps its slot, and with it all that its predictor has; one with a symbol takes a slot that has become
// free, and reads the state of its parent's. A round scores a window of frames, and takes them up to the first with
// which a hypothesis gains a symbol. docs/decoder_kernel.md has the order of exchanges.
#pragma once

#include "decode/cuda/group.cuh"
#include "decode/cuda/hypothesis.cuh"

namespace prnn::decode_cuda {

template <class T, int COLUMN_TILES, int SLOT_TILES>
struct BeamSearch : Group<T, BeamParams, Hypothesis, COLUMN_TILES, SLOT_TILES> {
  using Base = Group<T, BeamParams, Hypothesis, COLUMN_TILES, SLOT_TILES>;
  using Base::block, Base::floats, Base::gain, Base::gain_of_slot, Base::group, Base::has_frame, Base::is_recurrent,
      Base::kColumns, Base::lane, Base::memory, Base::next_utterance, Base::p, Base::round, Base::slot_of, Base::slots,
      Base::slots_that, Base::sums, Base::tiles, Base::timed_out, Base::warp, Base::writes;

  ListPart* const lists;  // [column][list_room]
  const int beam;

  __device__ __forceinline__ BeamSearch(const BeamParams& params, char* shared)
      : Base(params, shared),
        lists(reinterpret_cast<ListPart*>(shared + params.shared.columns)),
        beam(static_cast<int>(params.options.beam)) {}

  // ---- utterances: beam_utterances.cuh ----

  __device__ __forceinline__ int rank_of(double score) const;
  __device__ __forceinline__ Beginning begin_hypotheses(Hypothesis* own, int n) const;
  __device__ __forceinline__ void begin_utterance(Hypothesis* own, int n);
  template <class Begin>
  __device__ __forceinline__ void take_utterances(const Begin& begin);
  __device__ __forceinline__ void write_results(const Results& h, int place) const;
  __device__ __forceinline__ void write_stream(int stream, uint64_t hash, const Hypothesis& h) const;
  __device__ __forceinline__ void write_missing(int utterance, int pool, int count) const;
  __device__ __forceinline__ void end_utterance(Hypothesis* own, int place);
  __device__ __forceinline__ HistoryEntry* history_of(int place) const {
    return p.history + (static_cast<int64_t>(group) * p.utterances + place) * p.history_room;
  }

  // ---- scores: beam_scores.cuh ----

  // The lists of a column's pieces of the output layer, one after the other.
  __device__ __forceinline__ ListPart* parts_of(int column) const {
    const int64_t row = (static_cast<int64_t>(group) * 2 + round % 2) * kColumns + column;
    return p.parts + row * p.entries * (p.list_parts + 1);
  }
  __device__ __forceinline__ ListPart* lists_of_round() const {
    return p.lists + (static_cast<int64_t>(group) * 2 + round % 2) * kColumns * p.list_room;
  }
  __device__ __forceinline__ int entry_of(int symbol) const { return symbol / kTileRows / p.tiles[kOutput].together; }

  __device__ __forceinline__ void publish_list(ListPart* to, float log_sum, float blank, float pair, float value,
                                               int symbol) const;
  __device__ __forceinline__ void publish_durations(const PassSums<COLUMN_TILES>& of_pass, int first_row) const;
  __device__ __forceinline__ void score_columns();
  __device__ __forceinline__ bool merge_lists();
  __device__ __forceinline__ void merge_column(const ListPart* parts, int column) const;
  __device__ __forceinline__ bool gather_lists();
  // Up to the output layer's input, and the recurrent products. False: give up.
  __device__ __forceinline__ bool make_scored_columns() {
    return this->make_columns([&](bool has_stepped) {
#pragma unroll 1
      for (int layer = 0; has_stepped && layer < p.layers; ++layer) this->multiply_recurrent(layer, warp, kWarps);
    });
  }

  // From the columns to their lists, and writes the states of utterances that end. False: give up.
  __device__ __forceinline__ bool find_lists() {
    score_columns();
    if (!merge_lists() || !gather_lists()) return false;
    if (p.has_state) this->write_states();
    sync_threads();
    return true;
  }

  // ---- ways on: beam_take.cuh ----

  __device__ __forceinline__ void find_pairs(Hypothesis* own) const;
  // The list of the k-th hypothesis of an utterance for a frame of the window.
  __device__ __forceinline__ const ListPart* list_of(const Hypothesis* own, int k, int frame) const {
    return lists + ((own - slots + k) * p.window + frame) * p.list_room;
  }
  __device__ __forceinline__ Way way_with_blank(const Hypothesis* own, int k, const ListPart& head, float all) const;
  static constexpr int kKeptAll = -1;
  __device__ __forceinline__ bool keep_all(Hypothesis* own, const Way& way) const;
  __device__ __forceinline__ int choose_ways(Hypothesis* own, int frame, Way& chosen, float& others) const;
  __device__ __forceinline__ void take_ways(Hypothesis* own, int place, int count, const Way& way, float others);
  __device__ __forceinline__ void take_frames(int place);

  __device__ __forceinline__ void run() {
    this->load_weights();
    this->begin();
    for (;;) {
      if (warp == 0) {
        take_utterances([&](int place, int n) { begin_utterance(slots + place * beam, n); });
      }
      sync_threads();
      if (slots_that([](const Hypothesis& h) { return h.utterance >= 0; }) == 0) return;
      if (!make_scored_columns()) return;
      if (!find_lists()) return;
      for (int place = warp; place < p.utterances; place += kWarps) take_frames(place);
      sync_threads();
    }
  }
};

template <class T, int COLUMN_TILES, int SLOT_TILES>
__global__ void __launch_bounds__(kThreads, 1) beam_kernel(const __grid_constant__ BeamParams params) {
  extern __shared__ __align__(128) char memory[];
  BeamSearch<T, COLUMN_TILES, SLOT_TILES>(params, memory).run();
}

}  // namespace prnn::decode_cuda

#include "decode/cuda/beam_scores.cuh"
#include "decode/cuda/beam_take.cuh"
#include "decode/cuda/beam_utterances.cuh"
