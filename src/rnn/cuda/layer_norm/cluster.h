// The kernels of Engine::kNormCluster: all timesteps in one launch, R in the registers of a thread-block
// cluster.
#pragma once

#include "rnn/cuda/layer_norm/params.h"
#include "rnn/plan/layer_norm.h"

namespace prnn {

struct Tf32;

// The forward or the backward kernel. T: float, Tf32 (float, whose products may be of tf32 numbers), __half,
// __nv_bfloat16.
template <class T>
cudaError_t launch_layer_norm_lstm_cluster(const LayerNormLstmClusters&, bool is_backward,
                                           const LayerNormLstmParams<float>&, cudaStream_t);

}  // namespace prnn
