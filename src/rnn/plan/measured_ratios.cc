// Made by `python -m prnn.bench.rnn_ratios table bench/results/rnn_backends_*.csv`.
#include "rnn/plan/faster.h"

namespace prnn {

// {cell, precision, stack, training, T, H, percent for each of kMeasuredBatches}
// clang-format off
const std::vector<GpuRatios> kGpuRatios = {{"H200", {
#include "rnn/plan/measured_ratios/gru.inc"
#include "rnn/plan/measured_ratios/gru_few_timesteps.inc"
#include "rnn/plan/measured_ratios/lstm.inc"
#include "rnn/plan/measured_ratios/lstm_few_timesteps.inc"
#include "rnn/plan/measured_ratios/rnn.inc"
#include "rnn/plan/measured_ratios/rnn_few_timesteps.inc"
}}};
// clang-format on

}  // namespace prnn
