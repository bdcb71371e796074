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

struct Spaces {
  void* workspace;
  size_t workspace_size;
  void* reserve;
  size_t reserve_size;
};

struct Sizes {
  size_t workspace = 0, reserve = 0;
};

// NULL where cuDNN's function has no such argument or its caller gave none.
struct Arguments {
  const void *x = nullptr, *y = nullptr, *dy = nullptr, *hx = nullptr, *cx = nullptr, *dhy = nullptr, *dcy = nullptr;
  const void* weights = nullptr;
  void *y_out = nullptr, *hy = nullptr, *cy = nullptr, *dx = nullptr, *dhx = nullptr, *dcx = nullptr;
  void* dweights = nullptr;
};

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
  void forward(const Arguments& arguments, const void* padding, const Spaces& spaces);
  void backward_data(const Arguments& arguments, const void* padding, const Spaces& spaces);
  void backward_weights(bool adds, const Arguments& arguments, const Spaces& spaces);

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
