#include "core/enums.h"

#include <string>

#include "core/status.h"

namespace prnn {
namespace {

std::string text_of(const Enumerator& enumerator) {
  const std::string number = std::to_string(enumerator.value);
  return enumerator.name == nullptr ? number : std::string(enumerator.name) + " (" + number + ")";
}

}  // namespace

const char* name_of(const prnnDataType_t& value) {
  switch (integer_in(value)) {
    case PRNN_DATA_FLOAT: return "PRNN_DATA_FLOAT";
    case PRNN_DATA_DOUBLE: return "PRNN_DATA_DOUBLE";
    case PRNN_DATA_HALF: return "PRNN_DATA_HALF";
    case PRNN_DATA_BFLOAT16: return "PRNN_DATA_BFLOAT16";
  }
  return nullptr;
}

const char* name_of(const prnnTensorFormat_t& value) {
  switch (integer_in(value)) {
    case PRNN_TENSOR_NCHW: return "PRNN_TENSOR_NCHW";
    case PRNN_TENSOR_NHWC: return "PRNN_TENSOR_NHWC";
  }
  return nullptr;
}

const char* name_of(const prnnRNNMode_t& value) {
  switch (integer_in(value)) {
    case PRNN_RNN_RELU: return "PRNN_RNN_RELU";
    case PRNN_RNN_TANH: return "PRNN_RNN_TANH";
    case PRNN_LSTM: return "PRNN_LSTM";
    case PRNN_GRU: return "PRNN_GRU";
    case PRNN_SLSTM: return "PRNN_SLSTM";
    case PRNN_SLSTM_EXP: return "PRNN_SLSTM_EXP";
  }
  return nullptr;
}

const char* name_of(const prnnDirectionMode_t& value) {
  switch (integer_in(value)) {
    case PRNN_UNIDIRECTIONAL: return "PRNN_UNIDIRECTIONAL";
    case PRNN_BIDIRECTIONAL: return "PRNN_BIDIRECTIONAL";
  }
  return nullptr;
}

const char* name_of(const prnnRNNInputMode_t& value) {
  switch (integer_in(value)) {
    case PRNN_LINEAR_INPUT: return "PRNN_LINEAR_INPUT";
    case PRNN_SKIP_INPUT: return "PRNN_SKIP_INPUT";
    case PRNN_GATES_INPUT: return "PRNN_GATES_INPUT";
  }
  return nullptr;
}

const char* name_of(const prnnForwardMode_t& value) {
  switch (integer_in(value)) {
    case PRNN_FWD_MODE_INFERENCE: return "PRNN_FWD_MODE_INFERENCE";
    case PRNN_FWD_MODE_TRAINING: return "PRNN_FWD_MODE_TRAINING";
  }
  return nullptr;
}

const char* name_of(const prnnRNNBackend_t& value) {
  switch (integer_in(value)) {
    case PRNN_PERSISTENT_BACKEND: return "PRNN_PERSISTENT_BACKEND";
    case PRNN_CUDNN_BACKEND: return "PRNN_CUDNN_BACKEND";
    case PRNN_BEST_BACKEND: return "PRNN_BEST_BACKEND";
  }
  return nullptr;
}

const char* name_of(const prnnWgradMode_t& value) {
  switch (integer_in(value)) {
    case PRNN_WGRAD_MODE_ADD: return "PRNN_WGRAD_MODE_ADD";
    case PRNN_WGRAD_MODE_SET: return "PRNN_WGRAD_MODE_SET";
  }
  return nullptr;
}

const char* name_of(const prnnMathType_t& value) {
  switch (integer_in(value)) {
    case PRNN_DEFAULT_MATH: return "PRNN_DEFAULT_MATH";
    case PRNN_TENSOR_OP_MATH: return "PRNN_TENSOR_OP_MATH";
    case PRNN_TENSOR_OP_MATH_ALLOW_CONVERSION: return "PRNN_TENSOR_OP_MATH_ALLOW_CONVERSION";
    case PRNN_FMA_MATH: return "PRNN_FMA_MATH";
  }
  return nullptr;
}

const char* name_of(const prnnRNNEngine_t& value) {
  switch (integer_in(value)) {
    case PRNN_ENGINE_BEST: return "PRNN_ENGINE_BEST";
    case PRNN_ENGINE_MMA: return "PRNN_ENGINE_MMA";
    case PRNN_ENGINE_WGMMA: return "PRNN_ENGINE_WGMMA";
    case PRNN_ENGINE_WGMMA_SPLIT_K: return "PRNN_ENGINE_WGMMA_SPLIT_K";
    case PRNN_ENGINE_WGMMA_MULTICAST: return "PRNN_ENGINE_WGMMA_MULTICAST";
  }
  return nullptr;
}

const char* name_of(const prnnLossInput_t& value) {
  switch (integer_in(value)) {
    case PRNN_LOSS_LOGITS: return "PRNN_LOSS_LOGITS";
    case PRNN_LOSS_LOG_PROBS: return "PRNN_LOSS_LOG_PROBS";
    case PRNN_LOSS_GATHERED: return "PRNN_LOSS_GATHERED";
  }
  return nullptr;
}

const char* name_of(const prnnTargetLayout_t& value) {
  switch (integer_in(value)) {
    case PRNN_TARGETS_PADDED: return "PRNN_TARGETS_PADDED";
    case PRNN_TARGETS_CONCATENATED: return "PRNN_TARGETS_CONCATENATED";
  }
  return nullptr;
}

const char* name_of(const prnnRNNTType_t& value) {
  switch (integer_in(value)) {
    case PRNN_RNNT_REGULAR: return "PRNN_RNNT_REGULAR";
    case PRNN_RNNT_MODIFIED: return "PRNN_RNNT_MODIFIED";
    case PRNN_RNNT_CONSTRAINED: return "PRNN_RNNT_CONSTRAINED";
    case PRNN_RNNT_FINAL_BLANK: return "PRNN_RNNT_FINAL_BLANK";
  }
  return nullptr;
}

const char* name_of(const prnnRNNTLayout_t& value) {
  switch (integer_in(value)) {
    case PRNN_RNNT_PADDED: return "PRNN_RNNT_PADDED";
    case PRNN_RNNT_PACKED: return "PRNN_RNNT_PACKED";
    case PRNN_RNNT_PRUNED: return "PRNN_RNNT_PRUNED";
  }
  return nullptr;
}

const char* name_of(const prnnDurationRNNTType_t& value) {
  switch (integer_in(value)) {
    case PRNN_DURATION_TDT: return "PRNN_DURATION_TDT";
    case PRNN_DURATION_MULTI_BLANK: return "PRNN_DURATION_MULTI_BLANK";
  }
  return nullptr;
}

const char* name_of(const prnnJointActivation_t& value) {
  switch (integer_in(value)) {
    case PRNN_JOINT_TANH: return "PRNN_JOINT_TANH";
    case PRNN_JOINT_RELU: return "PRNN_JOINT_RELU";
  }
  return nullptr;
}

const char* name_of(const prnnLayerNormLSTMKind_t& value) {
  switch (integer_in(value)) {
    case PRNN_NORMALIZE_GATES: return "PRNN_NORMALIZE_GATES";
    case PRNN_NORMALIZE_PRODUCTS: return "PRNN_NORMALIZE_PRODUCTS";
    case PRNN_NORMALIZE_NONE: return "PRNN_NORMALIZE_NONE";
  }
  return nullptr;
}

const char* name_of(const prnnTransducerBeamMode_t& value) {
  switch (integer_in(value)) {
    case PRNN_BEAM_MODIFIED: return "PRNN_BEAM_MODIFIED";
    case PRNN_BEAM_STANDARD: return "PRNN_BEAM_STANDARD";
  }
  return nullptr;
}

const char* name_of(const prnnPredictorKind_t& value) {
  switch (integer_in(value)) {
    case PRNN_PREDICTOR_STATELESS: return "PRNN_PREDICTOR_STATELESS";
    case PRNN_PREDICTOR_LSTM: return "PRNN_PREDICTOR_LSTM";
    case PRNN_PREDICTOR_GRU: return "PRNN_PREDICTOR_GRU";
  }
  return nullptr;
}

void refuse_enumerator(const char* name, Enumerator given, const Enumerator* accepted, size_t count) {
  std::string list;
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) list += i + 1 < count ? ", " : " or ";
    list += text_of(accepted[i]);
  }
  fail(PRNN_STATUS_BAD_PARAM, "%s is %s; it must be %s", name, text_of(given).c_str(), list.c_str());
}

}  // namespace prnn
