#include "layer_norm_lstm/cuda/grid_launch.cuh"
#include "rnn/cuda/common/tf32.cuh"

PRNN_INSTANTIATE_LAYER_NORM_LSTM_GRID(prnn::Tf32)
