// Whether cuDNN is faster than the resident kernels: measurements on a GPU, interpolated. prnn/bench/rnn_backends.py
// measures, the build makes the table of its file (site_scons/ratio_tables.py); docs/adding_a_gpu.md says how.
#pragma once

#include <cstdint>
#include <string>

#include "core/gpu_table.h"
#include "rnn/plan/plan.h"
#include "rnn/problem.h"

namespace prnn {

// The two backends' times depend on these in different ways.
enum class Precision : int8_t { kBfloat16, kHalf, kTf32, kFloat32 };
// With a projection: the kernels multiply with merged matrices, or keep the two apart.
enum class Stack : int8_t {
  kOneLayer,
  kSeveralLayers,
  kTwoDirections,
  kProjected,
  kProjectedLayers,
  kProjectedApart,
  kProjectedApartLayers
};

// cuDNN's time in percent of the resident kernels', at most 255, of inference and of a training step.
struct MeasuredBatch {
  uint16_t batch;
  uint8_t inference, training;
};

// Measurements of layers of one kind.
struct MeasuredRatios {
  prnnRNNMode_t mode;  // PRNN_RNN_TANH for both RNNs
  Precision precision;
  Stack stack;
  int16_t steps;              // of kMeasuredSteps
  int16_t hidden;             // of one kind of layer and number of timesteps in increasing order
  MeasuredBatch batches[48];  // increasing, then zeros
};

struct GpuRatios {
  const char* gpu;  // a row of gpu_table.cc
  const MeasuredRatios* rows;
  int count;
};

// One entry a file of bench/results/rnn_backends_*.csv. GPUs that are not here go by the first until somebody measures
// them.
extern const GpuRatios kGpuRatios[];
extern const int kGpuRatiosCount;

// cuDNN 9 refuses some layers for longer sequences.
constexpr int64_t kMostCudnnSteps = 65535;

// Compares them for the problem's T, sequences and layers; cuDNN is never faster where it does not serve the problem.
CudnnVerdict compare_with_cudnn(const GpuRow& row, const RnnProblem& problem, const RnnPlan& plan);

}  // namespace prnn
