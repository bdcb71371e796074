// The functions of this folder in a build without CUDA. Not reached: nobody gets a CUDA handle.
#include "core/cuda/no_cuda.h"
#include "layer_norm_lstm/layer_norm_lstm.h"

namespace prnn {

const LayerNormLstmBackend& cuda_layer_norm_lstm_backend() { fail_without_cuda(); }

}  // namespace prnn
