// The kernels that run_layer_norm runs: of clusters up to H = 128, and with two column tiles, whose blocks have as many
// units as those of the GPU's for H = 512; and those of single timesteps, of any H.
#pragma once

#include "instructions.h"
#include "rnn/cuda/common/tf32.cuh"
#include "rnn/cuda/layer_norm/cluster_backward.cuh"
#include "rnn/cuda/layer_norm/cluster_forward.cuh"
#include "rnn/cuda/layer_norm/steps_backward.cuh"
#include "rnn/cuda/layer_norm/steps_forward.cuh"

namespace prnn {

constexpr int kLargest[] = {128, 256};  // H
constexpr int kCluster = 8;             // blocks

// `LINKAGE`: extern, but in the file that has them.
#define PRNN_KERNELS_OF(LINKAGE, T, TILES)                                                                     \
  LINKAGE template void layer_norm_lstm_forward<T, kLargest[TILES - 1], kCluster, TILES>(LayerNormLstmFloats); \
  LINKAGE template void layer_norm_lstm_backward<T, kLargest[TILES - 1], kCluster, TILES>(LayerNormLstmFloats);
#define PRNN_STEPS_OF(LINKAGE, T, V, IS_HELD)                                                                     \
  LINKAGE template void forward_step<T, float, V, IS_HELD>(LayerNormLstmParams<float>, int, const float*, float*, \
                                                           void*);                                                \
  LINKAGE template void backward_step<T, float, V, IS_HELD>(LayerNormLstmParams<float>, int, const float*, int,   \
                                                            float*, float*);
#define PRNN_LAYER_NORM_KERNELS(LINKAGE)   \
  PRNN_KERNELS_OF(LINKAGE, float, 1)       \
  PRNN_KERNELS_OF(LINKAGE, float, 2)       \
  PRNN_KERNELS_OF(LINKAGE, Tf32, 1)        \
  PRNN_KERNELS_OF(LINKAGE, Tf32, 2)        \
  PRNN_KERNELS_OF(LINKAGE, __half, 1)      \
  PRNN_KERNELS_OF(LINKAGE, __half, 2)      \
  PRNN_STEPS_OF(LINKAGE, float, 1, true)   \
  PRNN_STEPS_OF(LINKAGE, float, 1, false)  \
  PRNN_STEPS_OF(LINKAGE, float, 4, true)   \
  PRNN_STEPS_OF(LINKAGE, float, 4, false)  \
  PRNN_STEPS_OF(LINKAGE, __half, 1, true)  \
  PRNN_STEPS_OF(LINKAGE, __half, 1, false) \
  PRNN_STEPS_OF(LINKAGE, __half, 4, true)  \
  PRNN_STEPS_OF(LINKAGE, __half, 4, false)

}  // namespace prnn
