// The launch function of the cluster kernels, for the files that instantiate it for a type.
#pragma once

#include "layer_norm_lstm/cuda/cluster_backward.cuh"
#include "layer_norm_lstm/cuda/cluster_forward.cuh"

namespace prnn {

// Calls function(H at most, blocks), constants, with those of the plan.
template <class T, class Function>
cudaError_t with_cluster_shape(const LayerNormLstmClusters& plan, Function&& function) {
  using std::integral_constant;
  if constexpr (sizeof(T) == 2) {
    if (plan.hidden == 512 && plan.cluster == 8)
      return function(integral_constant<int, 512>(), integral_constant<int, 8>());
  }
  switch (plan.hidden) {
    case 128: return function(integral_constant<int, 128>(), integral_constant<int, 8>());
    case 256: return function(integral_constant<int, 256>(), integral_constant<int, 8>());
    default: return function(integral_constant<int, 512>(), integral_constant<int, 16>());
  }
}

template <class T>
cudaError_t launch_layer_norm_lstm_cluster(const LayerNormLstmClusters& plan, bool is_backward,
                                           const LayerNormLstmFloats& params, cudaStream_t stream) {
  return with_cluster_shape<T>(plan, [&](auto hidden, auto cluster) {
    const auto launch = [&](auto* kernel, auto layout) {
      using Layout = decltype(layout);
      return launch_cluster(kernel, cluster(), Layout::kThreads, sizeof(typename Layout::Shared), params, stream);
    };
    return is_backward ? launch(layer_norm_lstm_backward<T, hidden(), cluster()>,
                                LayerNormLstmBackwardLayout<T, hidden(), cluster()>())
                       : launch(layer_norm_lstm_forward<T, hidden(), cluster()>,
                                LayerNormLstmForwardLayout<T, hidden(), cluster()>());
  });
}

#define PRNN_INSTANTIATE_LAYER_NORM_LSTM(T)                                                              \
  template cudaError_t prnn::launch_layer_norm_lstm_cluster<T>(const prnn::LayerNormLstmClusters&, bool, \
                                                               const prnn::LayerNormLstmFloats&, cudaStream_t);

}  // namespace prnn
