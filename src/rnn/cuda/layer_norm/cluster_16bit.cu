#include "rnn/cuda/layer_norm/cluster_launch.cuh"

PRNN_INSTANTIATE_LAYER_NORM_LSTM(__half)
PRNN_INSTANTIATE_LAYER_NORM_LSTM(__nv_bfloat16)
