// A recurrent layer on the CPU whose weights are packed once for many calls of few timesteps. T: float or double.
#pragma once

#include "core/cpu/gemm/gemm.h"
#include "core/cuda/arena.h"
#include "persistent_rnn.h"

namespace prnn {

constexpr int64_t kLanes = 16;  // sequences that a thread has in hand at a time

// C = A B' + bias of one thread: `rows` of A, each k long, times a packed matrix of `columns`.
template <class T>
void multiply_rows(const T* a, int64_t rows, int64_t k, const T* panels, const T* bias, int64_t columns, T* c,
                   char* scratch);

// `rows` of a matrix, each k long, packed in panels.
template <class T>
T* take_panels(Arena& arena, int64_t rows, int64_t k) {
  const int64_t width = gemm_kernels<T>().width;
  return arena.take<T>((rows + width - 1) / width * width * k);
}
template <class T>
void pack(const void* matrix, int64_t rows, int64_t k, T* panels);

template <class T>
void copy_or_zeros(const void* from, int64_t count, T* to);

struct LayerShape {
  prnnRNNMode_t mode;  // PRNN_LSTM or PRNN_GRU
  int64_t input, hidden, projection;

  int64_t gates() const { return mode == PRNN_LSTM ? 4 : 3; }
  int64_t state() const { return projection > 0 ? projection : hidden; }
};

struct LayerWeights {
  const void* input;           // {G H, input}
  const void* recurrent;       // {G H, state}
  const void* input_bias;      // {G H}, or NULL
  const void* recurrent_bias;  // {G H}, or NULL
  const void* projection;      // {projection, H}, or NULL
};

template <class T>
struct PreparedLayer {
  PreparedLayer(Arena& arena, const LayerShape& shape);
  void write(const LayerWeights& weights);

  // Computes the inputs' part of the gates of `rows` timesteps: {rows, G H}.
  void multiply_input(const T* input, int64_t rows, T* gates, char* scratch) const;

  // A timestep of at most kLanes sequences: h and h_prev {n, state}; c {n, H}, in and out, and unprojected {n, H}, of
  // layers that have them; gates from multiply_input().
  void step(const T* h_prev, int64_t n, T* gates, T* c, T* unprojected, T* h) const;

  LayerShape shape;
  T* input_panels;
  T* recurrent;  // panels in the order of unit blocks, of each its G gates: what ForwardCell reads together
  T* projection_panels;
  T* gate_bias;       // {G H}: both biases; of a GRU's gate n that of the input alone
  T* candidate_bias;  // {H}: GRU: the recurrent bias of gate n
};

}  // namespace prnn
