// Whether cuDNN is faster than the resident kernels: measurements on a GPU, interpolated. prnn/bench/rnn_backends.py
// makes them, and writes the rows of measured_ratios/; docs/adding_a_gpu.md says how.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/gpu_table.h"
#include "rnn/plan/plan.h"
#include "rnn/problem.h"

namespace prnn {

// Of which the two backends' times depend in different ways.
enum class Precision : int8_t { kBfloat16, kHalf, kTf32, kFloat32 };
enum class Stack : int8_t { kOneLayer, kSeveralLayers, kTwoDirections, kProjected, kProjectedLayers };

// Batches that were measured: 8 more than 128, 256 and 512 often take another pass over the weights.
constexpr int kMeasuredBatches[] = {1,   4,   8,   16,  32,  48,  64,  96,   128,  136,
                                    192, 256, 264, 384, 512, 520, 768, 1024, 1536, 2048};
constexpr int kMeasuredBatchCount = sizeof kMeasuredBatches / sizeof kMeasuredBatches[0];

// cuDNN's time in percent of the resident kernels', at most 255, for each of the batches.
struct MeasuredRatios {
  prnnRNNMode_t mode;  // PRNN_RNN_TANH for both RNNs
  Precision precision;
  Stack stack;
  bool training;  // a training step; else inference
  int steps;      // of kMeasuredSteps
  int hidden;     // of one kind of layer in increasing order
  uint8_t percent[kMeasuredBatchCount];
};

struct GpuRatios {
  const char* gpu;  // a row of gpu_table.cc
  std::vector<MeasuredRatios> rows;
};

// GPUs that are not here go by the first until somebody measures them.
extern const std::vector<GpuRatios> kGpuRatios;

CudnnTime estimate_cudnn_time(const GpuRow& row, const RnnProblem& problem);

// Whether PRNN_BEST_BACKEND goes to cuDNN, where there is one, for the problem's mode of training or inference: the
// same for all calls of a training step.
bool is_cudnn_faster(const RnnProblem& problem, const RnnPlan& plan);

// One sentence where it is, in training or in inference; else "".
std::string why_cudnn_is_faster(const RnnProblem& problem, const RnnPlan& plan);

}  // namespace prnn
