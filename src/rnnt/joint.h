// The seam between the API of the losses with their joiner, RNN-T and TDT, and what computes them, as rnnt.h is for the
// other losses.
#pragma once

#include <cstddef>

#include "core/handle.h"
#include "prnn_losses.h"

namespace prnn {

// The options of either loss. `classes` does not count the duration logits, which the output layer has after them.
struct JointOptions : prnnJointRNNTLossOptions_t {
  prnnDurationRNNTLossOptions_t durations;  // TDT: as DurationArcs takes them; RNN-T: durationCount is 0

  bool is_tdt() const { return durations.durationCount > 0; }
  int64_t rows_of_weight() const { return classes + durations.durationCount; }
};

// Pointers as prnn_losses.h describes them. NULL where the call does not have them.
struct JointParams {
  JointOptions options;
  const void* encoder;
  const void* predictor;
  const void* weight;
  const void* bias;
  const int* targets;
  const int* frame_lengths;
  const int* target_lengths;
  const int* range_begins;
  const unsigned long long* dropout_seed;
  void* workspace;
};

struct JointGradients {
  void* encoder;
  void* predictor;
  void* weight;
  void* bias;
};

class JointBackend {
 public:
  virtual ~JointBackend() = default;
  virtual size_t workspace_size(prnnHandle_t, const JointOptions&) const = 0;
  virtual size_t reserve_size(const JointOptions&) const = 0;
  virtual void forward(prnnHandle_t, const JointParams&, void* costs, void* reserve) const = 0;
  virtual void backward(prnnHandle_t, const JointParams&, const void* cost_gradients, const JointGradients&,
                        const void* reserve) const = 0;
};

const JointBackend& cuda_joint_backend();  // src/rnnt/cuda/

}  // namespace prnn
