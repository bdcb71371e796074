// The kernels of PRNN_LAYER_NORM_LSTM_CLUSTER: all timesteps in one launch, R in the registers of a thread-block
// cluster.
#pragma once

#include "core/gpu_table.h"
#include "core/handle.h"
#include "layer_norm_lstm/cuda/params.h"

namespace prnn {

// How a layer lies on clusters. `clusters` 0: it does not.
struct LayerNormLstmClusters {
  int k_tiles, cluster;  // of the kernel: H up to 32 k_tiles; blocks
  int clusters, columns_per_cluster;
};

// 16-bit types, H up to 512, and as many sequences as four launches of all clusters that a whole GPU keeps resident.
LayerNormLstmClusters plan_layer_norm_lstm_clusters(const GpuRow& row, prnnDataType_t type, int64_t hidden,
                                                    int64_t batch);

// T: __half, __nv_bfloat16.
template <class T>
cudaError_t launch_layer_norm_lstm_cluster_forward(const LayerNormLstmClusters&, const LayerNormLstmParams<float>&,
                                                   cudaStream_t);
template <class T>
cudaError_t launch_layer_norm_lstm_cluster_backward(const LayerNormLstmClusters&, const LayerNormLstmParams<float>&,
                                                    cudaStream_t);

}  // namespace prnn
