// A call that prnn serves: cuDNN's arguments are brought into prnn's layouts, prnn computes, and the results go back.
#pragma once

#include "cudnn_standin/decision.h"

namespace prnn_cudnn {

// The handle of a call, its layer and sizes. Refers to objects that live until the call returns.
struct Context {
  const Cudnn& cudnn;
  const Prnn& prnn;
  void* cudnn_handle;
  prnnHandle_t prnn_handle;
  void* stream;
  const Configuration& configuration;
  const Sequences& sequences;
  const WeightLayout& weights;
};

struct Sizes {
  size_t workspace = 0, reserve = 0;
};

// Takes cuDNN's arrays in prnn's structs: sequences, states and weights lie as cuDNN has them, c is NULL but for an
// LSTM.
class TakenCall {
 public:
  // is_training: one of the three calls of a training step.
  TakenCall(const Context& context, bool is_training);

  // For these sequences, of the call in inference, or of each call of a training step.
  Sizes sizes() const;
  // Enough for all lengths that the sequences of such a descriptor can have: of data that lies batch-major, as a
  // program may ask for the sizes before it knows the lengths.
  Sizes sizes_for_any_lengths() const;

  // `padding`: the element that goes where y, or dx, has no timestep.
  void forward(const prnnRNNForwardArgs_t& given, const void* padding);
  void backward_data(const prnnRNNBackwardDataArgs_t& given, const void* padding);
  void backward_weights(bool adds, const prnnRNNBackwardWeightsArgs_t& given);

 private:
  struct Buffers;
  class Layouts;

  PreparedCall prepare(const std::vector<int>& batch_sizes) const;
  Buffers buffers(void* base, size_t prnn_workspace) const;
  const void* packed_weights(const void* weights, const Buffers& buffers) const;
  void draw_seed(const Buffers& buffers);

  const Context c_;
  const Configuration& config_;
  const bool is_training_;
  const DropoutDesc dropout_;
  const RnnDesc rnn_;
  const PreparedCall call_;
};

}  // namespace prnn_cudnn
