#include "rnn/cpu/layer_norm/kernels.h"

#include "core/cpu/isa.h"

namespace prnn {

template <>
const LayerNormLstmKernels<float>& layer_norm_lstm_kernels<float>() {
  return PRNN_FOR_ISA(layer_norm_lstm_tables).single;
}

template <>
const LayerNormLstmKernels<double>& layer_norm_lstm_kernels<double>() {
  return PRNN_FOR_ISA(layer_norm_lstm_tables).twice;
}

}  // namespace prnn
