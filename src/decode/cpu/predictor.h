// Steps of a predictor for a few utterances at a time. T: float or double.
#pragma once

#include "decode/cpu/prepared.h"

namespace prnn {

// What the predictor knows of an utterance after its symbols so far; arrays that its kind has no use for are NULL.
template <class T>
struct PredictorState {
  T* h;  // {layers, H}
  T* c;  // {layers, H}, LSTM
  int* context;
};

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
