#include "core/enums.h"

#include <algorithm>
#include <string>

#include "core/status.h"

namespace prnn {
namespace {

std::string text_of(const Enumerator& enumerator) {
  const std::string number = std::to_string(enumerator.value);
  return enumerator.name == nullptr ? number : std::string(enumerator.name) + " (" + number + ")";
}

template <class Enum>
const char* find_name(const Enum& value, std::initializer_list<Enumerator> known) {
  const auto is_value = [&](const Enumerator& one) { return one.value == integer_in(value); };
  const Enumerator* const found = std::find_if(known.begin(), known.end(), is_value);
  return found == known.end() ? nullptr : found->name;
}

}  // namespace

#define PRNN_NAMED(enumerator) \
  Enumerator { enumerator, #enumerator }

const char* name_of(const prnnDataType_t& value) {
  return find_name(value, {PRNN_NAMED(PRNN_DATA_FLOAT), PRNN_NAMED(PRNN_DATA_DOUBLE), PRNN_NAMED(PRNN_DATA_HALF),
                           PRNN_NAMED(PRNN_DATA_BFLOAT16)});
}

const char* name_of(const prnnTensorFormat_t& value) {
  return find_name(value, {PRNN_NAMED(PRNN_TENSOR_NCHW), PRNN_NAMED(PRNN_TENSOR_NHWC)});
}

const char* name_of(const prnnRNNMode_t& value) {
  return find_name(value, {PRNN_NAMED(PRNN_RNN_RELU), PRNN_NAMED(PRNN_RNN_TANH), PRNN_NAMED(PRNN_LSTM),
                           PRNN_NAMED(PRNN_GRU), PRNN_NAMED(PRNN_SLSTM), PRNN_NAMED(PRNN_SLSTM_EXP)});
}

const char* name_of(const prnnDirectionMode_t& value) {
  return find_name(value, {PRNN_NAMED(PRNN_UNIDIRECTIONAL), PRNN_NAMED(PRNN_BIDIRECTIONAL), PRNN_NAMED(PRNN_REVERSE)});
}

const char* name_of(const prnnRNNInputMode_t& value) {
  return find_name(value, {PRNN_NAMED(PRNN_LINEAR_INPUT), PRNN_NAMED(PRNN_SKIP_INPUT), PRNN_NAMED(PRNN_GATES_INPUT)});
}

const char* name_of(const prnnForwardMode_t& value) {
  return find_name(value, {PRNN_NAMED(PRNN_FWD_MODE_INFERENCE), PRNN_NAMED(PRNN_FWD_MODE_TRAINING)});
}

const char* name_of(const prnnRNNBackend_t& value) {
  return find_name(
      value, {PRNN_NAMED(PRNN_PERSISTENT_BACKEND), PRNN_NAMED(PRNN_CUDNN_BACKEND), PRNN_NAMED(PRNN_BEST_BACKEND)});
}

const char* name_of(const prnnWgradMode_t& value) {
  return find_name(value, {PRNN_NAMED(PRNN_WGRAD_MODE_ADD), PRNN_NAMED(PRNN_WGRAD_MODE_SET)});
}

const char* name_of(const prnnMathType_t& value) {
  return find_name(value, {PRNN_NAMED(PRNN_DEFAULT_MATH), PRNN_NAMED(PRNN_TENSOR_OP_MATH),
                           PRNN_NAMED(PRNN_TENSOR_OP_MATH_ALLOW_CONVERSION), PRNN_NAMED(PRNN_FMA_MATH)});
}

const char* name_of(const prnnRNNEngine_t& value) {
  return find_name(value, {PRNN_NAMED(PRNN_ENGINE_BEST), PRNN_NAMED(PRNN_ENGINE_MMA), PRNN_NAMED(PRNN_ENGINE_WGMMA),
                           PRNN_NAMED(PRNN_ENGINE_WGMMA_SPLIT_K), PRNN_NAMED(PRNN_ENGINE_WGMMA_MULTICAST)});
}

const char* name_of(const prnnLossInput_t& value) {
  return find_name(value,
                   {PRNN_NAMED(PRNN_LOSS_LOGITS), PRNN_NAMED(PRNN_LOSS_LOG_PROBS), PRNN_NAMED(PRNN_LOSS_GATHERED)});
}

const char* name_of(const prnnTargetLayout_t& value) {
  return find_name(value, {PRNN_NAMED(PRNN_TARGETS_PADDED), PRNN_NAMED(PRNN_TARGETS_CONCATENATED)});
}

const char* name_of(const prnnRNNTType_t& value) {
  return find_name(value, {PRNN_NAMED(PRNN_RNNT_REGULAR), PRNN_NAMED(PRNN_RNNT_MODIFIED),
                           PRNN_NAMED(PRNN_RNNT_CONSTRAINED), PRNN_NAMED(PRNN_RNNT_FINAL_BLANK)});
}

const char* name_of(const prnnRNNTLayout_t& value) {
  return find_name(value, {PRNN_NAMED(PRNN_RNNT_PADDED), PRNN_NAMED(PRNN_RNNT_PACKED), PRNN_NAMED(PRNN_RNNT_PRUNED)});
}

const char* name_of(const prnnDurationRNNTType_t& value) {
  return find_name(value, {PRNN_NAMED(PRNN_DURATION_TDT), PRNN_NAMED(PRNN_DURATION_MULTI_BLANK)});
}

const char* name_of(const prnnJointActivation_t& value) {
  return find_name(value, {PRNN_NAMED(PRNN_JOINT_TANH), PRNN_NAMED(PRNN_JOINT_RELU)});
}

const char* name_of(const prnnNormalization_t& value) {
  return find_name(
      value, {PRNN_NAMED(PRNN_NORMALIZE_GATES), PRNN_NAMED(PRNN_NORMALIZE_PRODUCTS), PRNN_NAMED(PRNN_NORMALIZE_NONE)});
}

const char* name_of(const prnnTransducerBeamMode_t& value) {
  return find_name(value, {PRNN_NAMED(PRNN_BEAM_MODIFIED), PRNN_NAMED(PRNN_BEAM_STANDARD)});
}

const char* name_of(const prnnPredictorKind_t& value) {
  return find_name(
      value, {PRNN_NAMED(PRNN_PREDICTOR_STATELESS), PRNN_NAMED(PRNN_PREDICTOR_LSTM), PRNN_NAMED(PRNN_PREDICTOR_GRU)});
}

#undef PRNN_NAMED

void refuse_enumerator(const char* name, Enumerator given, const Enumerator* accepted, size_t count) {
  std::string list;
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) list += i + 1 < count ? ", " : " or ";
    list += text_of(accepted[i]);
  }
  fail(PRNN_STATUS_BAD_PARAM, "%s is %s; it must be %s", name, text_of(given).c_str(), list.c_str());
}

}  // namespace prnn
