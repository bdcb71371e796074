// What the two cluster kernels of the LSTM with layer normalisation share. Lanes in groups of UNITS have the units of a
// block for one sequence; a warp has one group or two.
#pragma once

#include "layer_norm_lstm/cuda/cluster.h"
#include "layer_norm_lstm/layer_norm_lstm.h"
#include "rnn/cuda/common/activations.cuh"
#include "rnn/cuda/common/dsmem.cuh"
#include "rnn/cuda/common/launch.cuh"
#include "rnn/cuda/common/shared_memory.cuh"
#include "rnn/cuda/common/step_io.cuh"
#include "rnn/cuda/common/weights.cuh"
#include "rnn/plan/cluster.h"

namespace prnn {

using LayerNormLstmFloats = LayerNormLstmParams<float>;

// The cluster that a block belongs to, and its sequences.
struct LayerNormLstmPlace {
  int rank;  // of the block in its cluster
  int replica;
  int first_column, columns;
};

template <int CLUSTER>
__device__ __forceinline__ LayerNormLstmPlace place_in_cluster(const LayerNormLstmFloats& params) {
  const int replica = blockIdx.x / CLUSTER, first = replica * params.sizes.columns_per_replica;
  return {static_cast<int>(cluster_rank()), replica, first,
          min(params.sizes.columns_per_replica, params.sizes.batch - first)};
}

// The gains and biases of a block's units, from gate_gain to cell_bias; zeros for units that do not exist.
template <class T, int UNITS, int THREADS>
__device__ __forceinline__ void load_parameters(const LayerNormLstmFloats& params, int first_unit,
                                                float (&to)[kLayerNormLstmParameterRows][UNITS]) {
  for (int i = threadIdx.x; i < kLayerNormLstmParameterRows * UNITS; i += THREADS) {
    const int row = i / UNITS, unit = first_unit + i % UNITS, hidden = params.sizes.hidden;
    const void* const from = row < 4   ? params.gate_gain
                             : row < 8 ? params.gate_bias
                             : row < 9 ? params.cell_gain
                                       : params.cell_bias;
    const int64_t at = int64_t{row < 8 ? row % 4 : 0} * hidden + unit;
    to[row][i % UNITS] = unit < hidden ? load_float<T>(from, at) : 0;
  }
}

// Sums over the lanes of a group, in all of them.
template <int LANES, int COUNT>
__device__ __forceinline__ void sum_over_lanes(float (&values)[COUNT]) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) values[i] += __shfl_xor_sync(kWholeWarp, values[i], step);
  }
}

// Sends two floats to a block of the cluster; the barrier there counts them.
__device__ __forceinline__ void send_pair(uint32_t address, uint32_t barrier, float first, float second) {
#if PRNN_HAS_CLUSTERS
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0],{%1,%2},[%3];" ::"r"(address),
               "f"(first), "f"(second), "r"(barrier)
               : "memory");
#endif
}

}  // namespace prnn
