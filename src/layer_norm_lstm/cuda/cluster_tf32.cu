#include "layer_norm_lstm/cuda/cluster_launch.cuh"
#include "rnn/cuda/common/tf32.cuh"

PRNN_INSTANTIATE_LAYER_NORM_LSTM(prnn::Tf32)
