// Whether cuDNN is faster than the resident kernels: measurements on a GPU, interpolated. prnn/bench/rnn_backends.py
// measures, the build makes the table of its file (site_scons/ratio_tables.py); docs/adding_a_gpu.md says how.
#pragma once

#include <cstdint>

#include "core/gpu_table.h"
#include "rnn/plan/plan.h"
#include "rnn/problem.h"

namespace prnn {

// A layer or stack whose input has H values.
struct MeasuredPoint {
  prnnDataType_t type;
  int8_t layers, directions;
  int16_t hidden, projection, batch, steps;  // at most kManySteps timesteps
  float inference, training;                 // logarithms of cuDNN's time over the resident kernels'
  float microseconds;                        // logarithm of the resident kernels' training step, of a layer's timestep
};

// Points that say something of each other.
struct MeasuredKind {
  const char* gpu;           // a row of gpu_table.cc
  prnnRNNMode_t mode;        // PRNN_RNN_TANH for both RNNs
  bool is_float, tf32;       // neither: both 16-bit types
  bool is_projected, apart;  // kernels that keep the projection and the recurrent matrix apart
  const MeasuredPoint* points;
  int count;
};

// The measurements of each bench/results/rnn_backends_*.csv. GPUs that are not here go by the first one's until
// somebody measures them.
extern const MeasuredKind kMeasuredKinds[];
extern const int kMeasuredKindCount;

// cuDNN 9 refuses some layers for longer sequences.
constexpr int64_t kMostCudnnSteps = 65535;

// Compares them for the problem's T, sequences and layers; cuDNN is never faster where it does not serve the problem.
CudnnVerdict compare_with_cudnn(const GpuRow& row, const RnnProblem& problem, const RnnPlan& plan);

}  // namespace prnn
