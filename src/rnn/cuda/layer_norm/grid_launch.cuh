// The launch function of the grid kernels, for the files that instantiate it for a type.
#pragma once

#include "rnn/cuda/layer_norm/grid_backward.cuh"
#include "rnn/cuda/layer_norm/grid_forward.cuh"

namespace prnn {

using LayerNormLstmGridKernel = void (*)(LayerNormLstmGridParams);

inline cudaError_t launch_grid(LayerNormLstmGridKernel one_tile, LayerNormLstmGridKernel tiles,
                               const LayerNormLstmGridPass& pass, const LayerNormLstmGridParams& params,
                               cudaStream_t stream) {
  ResidentShape shape;
  shape.blocks = pass.blocks;
  shape.cluster = pass.cluster;
  shape.shared_bytes = pass.shared_bytes;
  return launch_resident(params.sizes.columns_per_replica <= kTileColumns ? one_tile : tiles, shape, params, stream);
}

template <class T>
cudaError_t launch_layer_norm_lstm_grid(const LayerNormLstmGrid& plan, bool is_backward,
                                        const LayerNormLstmGridParams& params, cudaStream_t stream) {
  using std::integral_constant;
  if (!is_backward) {
    const auto launch = [&](auto unit_tiles) {
      constexpr int kUnitTiles = decltype(unit_tiles)::value;
      constexpr int kTiles = layer_norm_lstm_grid_forward_tiles(sizeof(T) == 4, kUnitTiles);
      return launch_grid(layer_norm_lstm_grid_forward<T, kUnitTiles, 1>,
                         layer_norm_lstm_grid_forward<T, kUnitTiles, kTiles>, plan.forward, params, stream);
    };
    if constexpr (sizeof(T) == 2) {
      if (plan.forward.unit_tiles == 2) return launch(integral_constant<int, 2>());
    }
    return launch(integral_constant<int, 1>());
  }
  if (params.normalizes != 0 && params.first_partial == 0) {
    const unsigned rows = static_cast<unsigned>(params.sizes.steps) * static_cast<unsigned>(params.sizes.batch);
    using Stored = std::conditional_t<sizeof(T) == 4, float, T>;  // tf32 has no memory of its own
    layer_norm_lstm_grid_kept_sums<Stored><<<rows, kResidentThreads, 0, stream>>>(params);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  const auto launch = [&](auto unit_tiles, auto cluster) {
    constexpr int kUnitTiles = decltype(unit_tiles)::value, kCluster = decltype(cluster)::value;
    constexpr int kTiles = layer_norm_lstm_grid_backward_tiles(kUnitTiles, kCluster);
    return launch_grid(layer_norm_lstm_grid_backward<T, kUnitTiles, kCluster, 1>,
                       layer_norm_lstm_grid_backward<T, kUnitTiles, kCluster, kTiles>, plan.backward, params, stream);
  };
  if constexpr (sizeof(T) == 2) {
    if (plan.backward.cluster == 4) return launch(integral_constant<int, 2>(), integral_constant<int, 4>());
    if (plan.backward.unit_tiles == 2) return launch(integral_constant<int, 2>(), integral_constant<int, 2>());
  }
  return launch(integral_constant<int, 1>(), integral_constant<int, 2>());
}

#define PRNN_INSTANTIATE_LAYER_NORM_LSTM_GRID(T)                                                  \
  template cudaError_t prnn::launch_layer_norm_lstm_grid<T>(const prnn::LayerNormLstmGrid&, bool, \
                                                            const prnn::LayerNormLstmGridParams&, cudaStream_t);

}  // namespace prnn
