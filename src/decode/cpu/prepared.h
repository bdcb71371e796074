// A prepared model on the CPU: its matrices packed for GemmKernels, and all biases, zeros where there are none. T:
// float or double.
#pragma once

#include <algorithm>

#include "core/cpu/gemm/gemm.h"
#include "core/cuda/arena.h"
#include "decode/decode.h"

namespace prnn {

// `rows` of a matrix, each k long, packed in panels.
template <class T>
T* take_panels(Arena& arena, int64_t rows, int64_t k) {
  const int64_t width = gemm_kernels<T>().width;
  return arena.take<T>((rows + width - 1) / width * width * k);
}

template <class T>
struct PreparedLayer {
  PreparedLayer(Arena& arena, const TransducerModel& m, int64_t layer);

  int64_t input;      // size: I, or H
  T* input_panels;    // {G H, input}
  T* recurrent;       // panels in the order of unit blocks, of each its G gates: what ForwardCell reads together
  T* gate_bias;       // {G H}: both biases; of a GRU's gate n that of the input alone
  T* candidate_bias;  // {H}: GRU: the recurrent bias of gate n
};

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
