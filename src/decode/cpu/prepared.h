// A prepared model on the CPU: its matrices packed for GemmKernels, and all biases, zeros where there are none. T:
// float or double.
#pragma once

#include <algorithm>

#include "decode/cpu/layer.h"
#include "decode/decode.h"

namespace prnn {

template <class T>
struct PreparedTransducer {
  PreparedTransducer(const TransducerModel& m, void* base);

  void write(const TransducerModel& m, const prnnTransducerWeights_t& weights);

  Arena arena;
  int* has_encoder;  // {1}: whether frames are multiplied
  T* encoder_panels;
  T* encoder_bias;
  T* embedding;  // as prnnTransducerWeights_t has it
  PreparedLayer<T> layers[PRNN_MAX_PREDICTOR_LAYERS];
  T* predictor_panels;
  T* predictor_bias;
  T* output_panels;
  T* output_bias;
};

}  // namespace prnn
