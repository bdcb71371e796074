// The kernels of PRNN_LAYER_NORM_LSTM_CLUSTER: all timesteps in one launch, R in the registers of a thread-block
// cluster.
#pragma once

#include "layer_norm_lstm/cuda/params.h"
#include "layer_norm_lstm/plan.h"

namespace prnn {

struct Tf32;

// The forward or the backward kernel. T: float, Tf32 (float, whose products may be of tf32 numbers), __half,
// __nv_bfloat16.
template <class T>
cudaError_t launch_layer_norm_lstm_cluster(const LayerNormLstmClusters&, bool is_backward,
                                           const LayerNormLstmParams<float>&, cudaStream_t);

}  // namespace prnn
