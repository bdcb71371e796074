#include "rnn/cuda/layer_norm/grid_launch.cuh"

PRNN_INSTANTIATE_LAYER_NORM_LSTM_GRID(float)
