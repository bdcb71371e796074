#if defined(__x86_64__)
#include "rnn/cpu/layer_norm/kernels_impl.h"

const prnn::LayerNormLstmTables& prnn::layer_norm_lstm_tables_avx2() {
  return PRNN_ISA_NAMESPACE::kLayerNormLstmTables;
}
#endif
