// The launch function of the cluster kernels, for the files that instantiate it for a type.
#pragma once

#include "rnn/cuda/layer_norm/cluster_backward.cuh"
#include "rnn/cuda/layer_norm/cluster_forward.cuh"

namespace prnn {

// Calls function(H at most, blocks, column tiles), constants, with those of the plan.
template <class T, class Function>
cudaError_t with_cluster_shape(const LayerNormLstmClusters& plan, Function&& function) {
  using std::integral_constant;
  using One = integral_constant<int, 1>;
  if constexpr (sizeof(T) == 2) {
    if (plan.hidden == 512 && plan.cluster == 8)
      return function(integral_constant<int, 512>(), integral_constant<int, 8>(), One());
  }
  switch (plan.hidden) {
    case 128: return function(integral_constant<int, 128>(), integral_constant<int, 8>(), One());
    case 256: return function(integral_constant<int, 256>(), integral_constant<int, 8>(), One());
    default: break;
  }
  if (plan.columns_per_cluster > kTileColumns)
    return function(integral_constant<int, 512>(), integral_constant<int, 16>(), integral_constant<int, 2>());
  return function(integral_constant<int, 512>(), integral_constant<int, 16>(), One());
}

template <class T>
cudaError_t launch_layer_norm_lstm_cluster(const LayerNormLstmClusters& plan, bool is_backward,
                                           const LayerNormLstmFloats& params, cudaStream_t stream) {
  return with_cluster_shape<T>(plan, [&](auto hidden, auto cluster, auto tiles) {
    const auto launch = [&](auto* kernel, auto layout) {
      using Layout = decltype(layout);
      return launch_cluster(kernel, cluster(), Layout::kThreads, sizeof(typename Layout::Shared), params, stream);
    };
    return is_backward ? launch(layer_norm_lstm_backward<T, hidden(), cluster(), tiles()>,
                                LayerNormLstmBackwardLayout<T, hidden(), cluster(), tiles()>())
                       : launch(layer_norm_lstm_forward<T, hidden(), cluster(), tiles()>,
                                LayerNormLstmForwardLayout<T, hidden(), cluster(), tiles()>());
  });
}

#define PRNN_INSTANTIATE_LAYER_NORM_LSTM(T)                                                              \
  template cudaError_t prnn::launch_layer_norm_lstm_cluster<T>(const prnn::LayerNormLstmClusters&, bool, \
                                                               const prnn::LayerNormLstmFloats&, cudaStream_t);

}  // namespace prnn
