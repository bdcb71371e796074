// Made by `python -m prnn.bench.rnn_ratios table bench/results/rnn_backends_*.csv`.
#include "rnn/plan/faster.h"

namespace prnn {
namespace {

// {cell, precision, stack, T, H, {{N, percent in inference, in training}, ...}}
// clang-format off
constexpr MeasuredRatios kH200[] = {
#include "rnn/plan/measured_ratios/gru.inc"
#include "rnn/plan/measured_ratios/gru_few_timesteps.inc"
#include "rnn/plan/measured_ratios/lstm.inc"
#include "rnn/plan/measured_ratios/lstm_few_timesteps.inc"
#include "rnn/plan/measured_ratios/rnn.inc"
#include "rnn/plan/measured_ratios/rnn_few_timesteps.inc"
};
// clang-format on

}  // namespace

const GpuRatios kGpuRatios[] = {{"H200", kH200, sizeof kH200 / sizeof kH200[0]}};
const int kGpuRatiosCount = sizeof kGpuRatios / sizeof kGpuRatios[0];

}  // namespace prnn
