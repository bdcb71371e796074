// The small kernels around the resident ones: preparing their inputs, dropout, and what is left of the gradients.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "rnn/cuda/common/params.h"

namespace prnn {

// [N, hidden] -> [N, padded], padding with zeros; zeros alone where `from` is NULL. NaNs take the form that the
// resident kernels expect.
cudaError_t run_pad_states(prnnDataType_t type, const void* from, void* to, int64_t batch, int hidden, int padded,
                           cudaStream_t stream);

// The timesteps' sizes, as kernel arguments, so that nothing has to outlive the call and a CUDA graph replays them.
cudaError_t run_store_steps(const std::vector<int64_t>& batch, StepSizes* to, cudaStream_t stream);

// h of the timestep before, in rows: row(t) + n <- row(t - 1) + n of y (t + 1 in the reverse direction), else hx;
// reset_hx where `reset` says that the sequence starts anew.
struct PreviousStates {
  const void* y;
  int64_t y_row;
  const void* hx;   // [N, width] or NULL
  const void* add;  // added to them: row r at r * add_row; or NULL
  int64_t add_row;
  const uint8_t* reset;  // ForwardDirection::reset
  const void* reset_hx;  // [N, width] or NULL: zeros
  const void* mask;      // [N, width] or NULL: what they are multiplied with
  bool are_gradients;    // of the timestep after, and hx is dhy, which counts whatever `reset`
  void* out;             // [rows, width]
  const StepSizes* table;
  int steps, batch, width, reverse;
};
cudaError_t run_previous_states(prnnDataType_t type, const PreviousStates& params, cudaStream_t stream);

// The row of each sequence's first or last timestep in packed data of any width: of sequence n, at row * stride.
struct EdgeRows {
  void* rows;
  int64_t stride;
  int width;
  const StepSizes* table;
  int steps, batch;
  bool is_last;
  const uint8_t* reset;  // [rows] or NULL: where it is set, a copy has zeros, and nothing is added
};
cudaError_t run_copy_edge_rows(prnnDataType_t type, const EdgeRows& from, void* to, cudaStream_t stream);
// Adds products[N, width].
cudaError_t run_add_edge_rows(prnnDataType_t type, const float* products, const EdgeRows& to, cudaStream_t stream);

// The rows with which sequences start anew, in packed data of any width.
struct ResetRows {
  void* rows;
  int64_t stride;
  int width;
  const uint8_t* reset;  // ForwardDirection::reset
  const StepSizes* table;
  int steps, batch;
  bool reverse;
};
// Adds products[n] to those of sequence n.
cudaError_t run_add_reset_rows(prnnDataType_t type, const float* products, const ResetRows& to, cudaStream_t stream);
// sums[n] <- the sum of those of sequence n. [N, width]
cudaError_t run_sum_reset_rows(prnnDataType_t type, const ResetRows& from, void* sums, cudaStream_t stream);

// A gate's input products, row r at r * row, become `mark` where `mask`, row r at r * mask_row, is not 0; one that was
// `mark` before becomes `instead`.
struct ZonedGates {
  void* gate;
  int64_t row;
  const uint8_t* mask;
  int64_t mask_row, rows;
  int hidden;
  float mark, instead;
};
cudaError_t run_zone_out(prnnDataType_t type, const ZonedGates& params, cudaStream_t stream);

// to[k, gate * pitch + u] <- from[gate * hidden + u, k], with zeros for u from `hidden` to `pitch`; from [gates *
// hidden, width].
cudaError_t run_transpose_gates(const float* from, float* to, int gates, int hidden, int pitch, int width,
                                cudaStream_t stream);

// Floats, rounded to the type.
cudaError_t run_round(prnnDataType_t type, const float* from, void* to, int64_t count, cudaStream_t stream);

// out[row, u] (+)= sum over gates of gates[row, g * gate_stride + u]: the input's gradient with SKIP_INPUT. For a GRU
// the last gate is `candidate` [rows, hidden].
struct GateSum {
  const void* gates;
  int64_t row_stride, gate_stride;
  int count;
  const void* candidate;
  int64_t candidate_stride;
  void* out;
  int64_t rows;
  int hidden;
  bool accumulate;
};
cudaError_t run_sum_gates(prnnDataType_t type, const GateSum& params, cudaStream_t stream);

// to[row, gate, u] <- from[row, gate, u], each with strides of its own: the input's gradient with GATES_INPUT.
struct GateCopy {
  const void* from;
  int64_t from_row, from_gate;  // in elements, as the next two
  void* to;
  int64_t to_row, to_gate;
  int64_t rows;
  int gates, hidden;
};
cudaError_t run_copy_gates(prnnDataType_t type, const GateCopy& params, cudaStream_t stream);

// Adds the resident backward kernels' [partials, B, H] sums to the two bias gradients, each [G, H].
cudaError_t run_add_bias_gradients(prnnDataType_t type, prnnRNNMode_t mode, const float* sums, int partials, int hidden,
                                   void* input_bias, void* recurrent_bias, cudaStream_t stream);

// Dropout of a layer's elements [first, first + count), at which `in` and `out` point; first is a multiple of 4. The
// masks are those of the CPU (rnn/cpu/dropout.h): Philox of seed, call, layer, element. `draw` is {seed, call} in
// device memory. out = in * mask / (1 - probability); out may be in.
cudaError_t run_dropout(prnnDataType_t type, float probability, const uint64_t* draw, int64_t layer, int64_t first,
                        int64_t count, const void* in, void* out, cudaStream_t stream);
// The mask of those elements, a bit each: whether it is kept. `count` is a multiple of 8.
cudaError_t run_dropout_mask(float probability, const uint64_t* draw, int64_t layer, int64_t count, uint8_t* kept,
                             cudaStream_t stream);
// draw <- {states->seed, states->calls}, and counts the call.
cudaError_t run_begin_dropout(void* states, uint64_t* draw, cudaStream_t stream);

}  // namespace prnn
