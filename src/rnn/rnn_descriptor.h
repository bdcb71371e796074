// The struct behind prnnRNNDescriptor_t.
#pragma once

#include "core/descriptors.h"
#include "persistent_rnn.h"

struct prnnRNNStruct {
  static constexpr uint32_t kAlive = 0x726e6e64;
  static constexpr const char* kKind = "RNN";

  uint32_t tag = kAlive;
  bool set = false;
  int hidden = 0;
  int layers = 0;
  int projection = 0;  // 0: none
  int heads = 1;
  prnnDropoutDescriptor_t dropout = nullptr;
  prnnRNNInputMode_t input_mode = PRNN_LINEAR_INPUT;
  prnnDirectionMode_t direction = PRNN_UNIDIRECTIONAL;
  prnnRNNMode_t mode = PRNN_LSTM;
  prnnDataType_t type = PRNN_DATA_FLOAT;
  prnnRNNBackend_t backend = PRNN_BEST_BACKEND;
  prnnMathType_t math = PRNN_DEFAULT_MATH;
  prnnWgradMode_t wgrad_mode = PRNN_WGRAD_MODE_ADD;
  int frozen_layers = 0;
  prnnRNNPlan_t forward_plan{}, backward_plan{};  // BEST: the library's own
  prnnRNNExtras_t extras{};
  prnnRNNMasks_t masks{};
};

namespace prnn {

// Throws BAD_PARAM unless the descriptor is alive and prnnSetRNNDescriptor has been called on it.
const prnnRNNStruct& require_rnn(prnnRNNDescriptor_t rnnDesc);

// Throws BAD_PARAM unless the layer can have these extras. name: what messages call them.
void require_extras(const prnnRNNStruct& rnn, const prnnRNNExtras_t& extras, const char* name);

}  // namespace prnn
