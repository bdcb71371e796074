// The struct behind prnnRNNDescriptor_t.
#pragma once

#include "core/descriptors.h"
#include "core/handle.h"
#include "rnn/problem.h"

struct prnnRNNStruct {
  static constexpr uint32_t kAlive = 0x726e6e64;
  static constexpr const char* kKind = "RNN";

  uint32_t tag = kAlive;
  bool set = false;
  prnn::RnnProblem layer;  // what a call's problem has of it: all but the input's size, the sequences and dropout
  prnnDropoutDescriptor_t dropout = nullptr;
  prnnRNNBackend_t backend = PRNN_BEST_BACKEND;
  prnnWgradMode_t wgrad_mode = PRNN_WGRAD_MODE_ADD;
};

namespace prnn {

// Throws BAD_PARAM unless the descriptor is alive and prnnSetRNNDescriptor has been called on it.
const prnnRNNStruct& require_rnn(prnnRNNDescriptor_t rnnDesc);

// Runs body(const prnnRNNStruct&) of a C function with a handle and a layer, after both were checked.
template <class Body>
prnnStatus_t with_layer(prnnHandle_t handle, prnnRNNDescriptor_t rnnDesc, Body&& body) noexcept {
  return guarded(handle, [&] {
    require_handle(handle);
    body(require_rnn(rnnDesc));
  });
}

// Throws BAD_PARAM unless the layer can have these extras. name: what messages call them.
void require_extras(prnnRNNMode_t mode, const prnnRNNExtras_t& extras, const char* name);

}  // namespace prnn
