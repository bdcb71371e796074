// Steps of a predictor for a few utterances at a time. T: float or double.
#pragma once

#include "decode/cpu/prepared.h"

namespace prnn {

// The predictor's state of an utterance after its symbols so far; arrays that its kind does not use are NULL.
template <class T>
struct PredictorState {
  T* h;  // {layers, H}
  T* c;  // {layers, H}, LSTM
  int* context;
};

// States of `count` utterances one after the other; returns the first.
template <class T>
PredictorState<T> take_states(Arena& arena, const TransducerModel& m, int64_t count) {
  const int64_t size = is_recurrent(m) ? count * m.layers * m.hiddenSize : 0;
  return {arena.take<T>(size), arena.take<T>(m.predictor == PRNN_PREDICTOR_LSTM ? size : 0),
          arena.take<int>(is_recurrent(m) ? 0 : count * m.context)};
}

// The i-th of such states.
template <class T>
PredictorState<T> state_at(const TransducerModel& m, const PredictorState<T>& first, int64_t i) {
  if (!is_recurrent(m)) return {nullptr, nullptr, first.context + i * m.context};
  const int64_t at = i * m.layers * m.hiddenSize;
  return {first.h + at, m.predictor == PRNN_PREDICTOR_LSTM ? first.c + at : nullptr, nullptr};
}

template <class T>
void copy_state(const TransducerModel& m, const PredictorState<T>& from, const PredictorState<T>& to) {
  const int64_t size = m.layers * m.hiddenSize;
  if (to.h != nullptr) std::copy_n(from.h, size, to.h);
  if (to.c != nullptr) std::copy_n(from.c, size, to.c);
  if (to.context != nullptr) std::copy_n(from.context, m.context, to.context);
}

// The state before the blank that the predictor reads first.
template <class T>
void begin_state(const TransducerModel& m, const PredictorState<T>& state) {
  const int64_t size = m.layers * m.hiddenSize;
  if (state.h != nullptr) std::fill_n(state.h, size, T(0));
  if (state.c != nullptr) std::fill_n(state.c, size, T(0));
  if (state.context != nullptr) std::fill_n(state.context, m.context, static_cast<int>(m.blank));
}

template <class T>
class PredictorSteps {
 public:
  // scratch: of gemm_scratch(), the thread's.
  PredictorSteps(Arena& arena, const TransducerModel& m, const PreparedTransducer<T>& prepared);

  // Elements of a row of projections, of which the first J are used: whole panels.
  static int64_t projection_stride(const TransducerModel& m);

  // Utterance i reads symbols[i], unless that is -1, and its state is written. projections[i], {J}: what the joiner
  // adds to its frames. At most kLanes utterances.
  void run(const int* symbols, const PredictorState<T>* states, int64_t count, T* const* projections,
           char* scratch) const;

 private:
  void run_layer(int64_t layer, const PredictorState<T>* const* states, int64_t count, char* scratch) const;
  void sum_embeddings(const PredictorState<T>& state, T* out) const;

  const TransducerModel& m_;
  const PreparedTransducer<T>& prepared_;
  T *input_, *gates_, *h_prev_, *h_, *c_, *projected_;
};

}  // namespace prnn
