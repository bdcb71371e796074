#include "rnn/cuda/layer_norm/grid_launch.cuh"

#include "rnn/cuda/common/tf32.cuh"  // last: its __ldcs would hide those of other types

PRNN_INSTANTIATE_LAYER_NORM_LSTM_GRID(prnn::Tf32)
