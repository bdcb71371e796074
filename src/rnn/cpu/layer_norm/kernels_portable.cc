#include "rnn/cpu/layer_norm/kernels_impl.h"

const prnn::LayerNormLstmTables& prnn::layer_norm_lstm_tables_portable() {
  return PRNN_ISA_NAMESPACE::kLayerNormLstmTables;
}
