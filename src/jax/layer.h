// A stack of recurrent layers as one call of a handler has it: the C API's descriptors, made for the call from the
// library's pools, and its four calls.
#pragma once

#include <vector>

#include "handler.h"
#include "persistent_rnn.h"

namespace prnn_jax {

template <class Descriptor, prnnStatus_t (*create)(Descriptor*), prnnStatus_t (*destroy)(Descriptor)>
class Owned {
 public:
  Owned() { check(create(&descriptor_)); }
  Owned(const Owned&) = delete;
  ~Owned() { destroy(descriptor_); }
  operator Descriptor() const { return descriptor_; }  // NOLINT: it stands for its descriptor

 private:
  Descriptor descriptor_ = nullptr;
};

using TensorDescriptor = Owned<prnnTensorDescriptor_t, prnnCreateTensorDescriptor, prnnDestroyTensorDescriptor>;
using FilterDescriptor = Owned<prnnFilterDescriptor_t, prnnCreateFilterDescriptor, prnnDestroyFilterDescriptor>;
using RnnDescriptor = Owned<prnnRNNDescriptor_t, prnnCreateRNNDescriptor, prnnDestroyRNNDescriptor>;

// The inputs that all calls read. Device pointers; NULL as in persistent_rnn.h.
struct LayerInputs {
  const void *x, *hx, *cx, *weights;
  const unsigned char* reset;
  const void *reset_hx, *reset_cx;
  const void* recurrent_mask;
  const unsigned char* zoneout_mask;
};

class LayerCall {
 public:
  // Attributes: mode (prnnRNNMode_t), hidden_size, layers, directions, proj_size, heads, zoneout (zoneoutExpectation of
  // prnnRNNMasks_t), has_cells (whether the forward call gives cells), allow_tf32.
  // x: {T, N, I}. weights: packed.
  LayerCall(prnnHandle_t handle, const Attributes& attributes, const Array& x, const Array& weights,
            const LayerInputs& inputs);

  // With a reserve space, a training call, which fills it, and cells, where wanted; else inference.
  void forward(void* y, void* hy, void* cy, void* cells, Space workspace, Space reserve);

  struct Gradients {  // of the outputs; dy alone is not NULL
    const void *y, *dy, *dhy, *dcy, *dcells;
  };
  struct Wanted {  // gradients to fill, or NULL; dweights is added to
    void *dx, *dhx, *dcx, *dreset_hx, *dreset_cx, *dweights;
  };
  void backward(const Gradients& gradients, const Wanted& wanted, Space workspace, Space reserve);

 private:
  void set_extras(void* cells, const void* dcells, void* dreset_hx, void* dreset_cx);

  prnnHandle_t handle_;
  LayerInputs in_;
  bool has_cells_;
  int steps_;
  RnnDescriptor rnn_;
  TensorDescriptor x_, y_, h_, c_;
  FilterDescriptor weights_;
  std::vector<prnnTensorDescriptor_t> xs_, ys_;  // one a timestep
};

}  // namespace prnn_jax
