// Inference over a few timesteps: a launch for each, which reads all weights from global memory. Resident kernels load
// them once a call, which takes as long as some timesteps.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "persistent_rnn.h"

namespace prnn {

// One timestep of one direction of a layer. Types: void is the problem's. Sequence n's values at n * the stride.
struct StepParams {
  const void *x, *h;  // inputs; states before the timestep, NULL: zeros
  int64_t x_stride, h_stride;
  int inputs, states;                       // elements of each
  const void *input, *recurrent;            // [G H, inputs], [G H, states]
  const void *input_bias, *recurrent_bias;  // [G H]
  const void* initial;   // [N, H], c (LSTM) or h (GRU) before a sequence's first timestep; NULL: zeros
  const float* carried;  // [N, H], the same before another timestep; NULL: this is the first one
  float* carries;        // [N, H], after the timestep; NULL: not wanted. May be `carried`
  void* out;             // h, or what is projected
  int64_t out_stride;
  void *hy, *cy;  // [N, H] or NULL
  int hidden, batch;
};
// LSTM and GRU; in 16 bits up to 16 sequences.
cudaError_t run_step(prnnDataType_t type, prnnRNNMode_t mode, const StepParams& params, cudaStream_t stream);

// h <- weights m.
struct ProjectionParams {
  const void* m;  // [N, hidden], sequence n at n * m_stride
  int64_t m_stride;
  const void* weights;  // [states, hidden]
  void* h;
  int64_t h_stride;
  void* hy;  // [N, states] or NULL: h, too
  int hidden, states, batch;
};
cudaError_t run_projection(prnnDataType_t type, const ProjectionParams& params, cudaStream_t stream);

}  // namespace prnn
