// The seam between the API of the LSTM with layer normalisation and what computes it: the API layer validates a call; a
// backend (cpu/, cuda/) answers sizes and runs. Backends do not validate sizes or options.
#pragma once

#include <cstddef>

#include "core/handle.h"
#include "prnn_layer_norm_lstm.h"

namespace prnn {

using LayerNormLstmOptions = prnnLayerNormLSTMOptions_t;
using LayerNormLstmInputs = prnnLayerNormLSTMInputs_t;
using LayerNormLstmGradients = prnnLayerNormLSTMGradients_t;

struct LayerNormLstmForwardArgs {
  void* y;
  void* cy;
  void* workspace;
  void* reserve;  // NULL: nothing is kept
};

struct LayerNormLstmBackwardArgs {
  const void* y;
  const void* dy;
  const void* dcy;
  LayerNormLstmGradients gradients;
  void* workspace;
  const void* reserve;
};

// c[m, n] = a[m, k] b[k, n]: row-major matrices of the options' type, or transposed ones, each without gaps.
struct LayerNormLstmProduct {
  int64_t m, n, k;
  const void* a;
  bool a_transposed;
  const void* b;
  bool b_transposed;
  void* c;

  int64_t a_stride() const { return a_transposed ? m : k; }
  int64_t b_stride() const { return b_transposed ? k : n; }
};

class LayerNormLstmBackend {
 public:
  virtual ~LayerNormLstmBackend() = default;
  virtual void require_supported(prnnHandle_t, const LayerNormLstmOptions&) const = 0;  // or throws NOT_SUPPORTED
  virtual prnnLayerNormLSTMInfo_t plan(prnnHandle_t, const LayerNormLstmOptions&) const = 0;
  virtual size_t workspace_size(prnnHandle_t, const LayerNormLstmOptions&) const = 0;
  virtual size_t reserve_size(prnnHandle_t, const LayerNormLstmOptions&) const = 0;
  virtual void forward(prnnHandle_t, const LayerNormLstmOptions&, const LayerNormLstmInputs&,
                       const LayerNormLstmForwardArgs&) const = 0;
  virtual void backward(prnnHandle_t, const LayerNormLstmOptions&, const LayerNormLstmInputs&,
                        const LayerNormLstmBackwardArgs&) const = 0;
  virtual void multiply(prnnHandle_t, const LayerNormLstmOptions&, const LayerNormLstmProduct&) const = 0;
};

const LayerNormLstmBackend& cpu_layer_norm_lstm_backend();   // cpu/
const LayerNormLstmBackend& cuda_layer_norm_lstm_backend();  // cuda/

// Rows of H elements that gateGain (4), gateBias (4), cellGain and cellBias have together, in this order: the layout of
// sums for their gradients.
constexpr int kLayerNormLstmParameterRows = 10;

}  // namespace prnn
