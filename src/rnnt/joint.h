// The seam between the API of the RNN-T loss with its joiner and what computes it, as rnnt.h is for the other losses.
#pragma once

#include <cstddef>

#include "core/handle.h"
#include "prnn_losses.h"

namespace prnn {

// Pointers as prnn_losses.h describes them. NULL where the call does not have them.
struct JointParams {
  prnnJointRNNTLossOptions_t options;
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
  virtual size_t workspace_size(prnnHandle_t, const prnnJointRNNTLossOptions_t&) const = 0;
  virtual size_t reserve_size(const prnnJointRNNTLossOptions_t&) const = 0;
  virtual void forward(prnnHandle_t, const JointParams&, void* costs, void* reserve) const = 0;
  virtual void backward(prnnHandle_t, const JointParams&, const void* cost_gradients, const JointGradients&,
                        const void* reserve) const = 0;
};

const JointBackend& cuda_joint_backend();  // src/rnnt/cuda/

}  // namespace prnn
