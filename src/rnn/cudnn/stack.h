// A problem as cuDNN sees it: its descriptors and the sizes that follow from them, kept from call to call.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/cuda/cudnn.h"
#include "rnn/cudnn/device.h"
#include "rnn/cudnn/weights.h"
#include "rnn/plan/cudnn_algorithm.h"
#include "rnn/problem.h"

namespace prnn {

// Neighbouring layers that run as one cuDNN RNN, whatever the sequences.
class CudnnLayers {
 public:
  // dropout_states: some random states of cuDNN's, which then drops out between the layers; NULL: it does not.
  CudnnLayers(prnnContext& context, const RnnProblem& problem, int64_t first, int64_t count, CudnnAlgorithm algorithm,
              const DeviceMemory* dropout_states);

  // Has the next forward training call draw its masks from cuDNN's random states at `states`.
  void draw_from(prnnContext& context, void* states, size_t size);

  int64_t first() const { return first_; }
  int64_t count() const { return count_; }
  CudnnAlgorithm algorithm() const { return algorithm_; }
  void* rnn() const { return rnn_.get(); }
  const CudnnWeights& weights() const { return *weights_; }

 private:
  void set(void* dropout) const;

  RnnProblem problem_;
  int64_t first_, count_;
  CudnnAlgorithm algorithm_;
  CudnnObject rnn_;
  std::optional<CudnnObject> dropout_;
  std::unique_ptr<CudnnWeights> weights_;
};

// The lengths of a call's sequences, on which it depends besides the layers.
class CudnnSequences {
 public:
  CudnnSequences(prnnContext& context, const RnnProblem& problem, const CudnnLayers& layers);

  void* x() const { return x_.get(); }
  void* y() const { return y_.get(); }
  void* h() const { return h_.get(); }
  void* c() const { return c_.get(); }
  size_t workspace_size() const { return workspace_size_; }
  size_t reserve_size() const { return reserve_size_; }

 private:
  CudnnObject x_, y_, h_, c_;
  size_t workspace_size_ = 0, reserve_size_ = 0;
};

// Layers that one cuDNN call runs, and their sequences.
struct CudnnPart {
  std::shared_ptr<CudnnLayers> layers;
  CudnnSequences sequences;
};

// A whole problem: one part, or, where prnn drops out between the layers itself, a part for each layer.
struct CudnnStack {
  RnnProblem problem;
  std::vector<CudnnPart> parts;
  size_t dropout_states_size = 0;  // bytes of cuDNN's random states; 0: cuDNN does not drop out
};

// The stack for a problem: the handle's own copy, valid until its next one. A handle keeps those of its last calls.
CudnnStack& cudnn_stack(prnnContext& context, const RnnProblem& problem);

}  // namespace prnn
