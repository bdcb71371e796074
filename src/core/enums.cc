#include "core/enums.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "core/status.h"

namespace prnn {
namespace {

std::string text_of(const Enumerator& enumerator) {
  const std::string number = std::to_string(enumerator.value);
  return enumerator.name == nullptr ? number : std::string(enumerator.name) + " (" + number + ")";
}

struct Named {
  const std::type_info& type;
  int value;
  const char* name;
};

#define PRNN_NAMED(enumerator) {typeid(enumerator), enumerator, #enumerator}
const Named kNames[] = {PRNN_NAMED(PRNN_DATA_FLOAT),
                        PRNN_NAMED(PRNN_DATA_DOUBLE),
                        PRNN_NAMED(PRNN_DATA_HALF),
                        PRNN_NAMED(PRNN_DATA_BFLOAT16),
                        PRNN_NAMED(PRNN_TENSOR_NCHW),
                        PRNN_NAMED(PRNN_TENSOR_NHWC),
                        PRNN_NAMED(PRNN_RNN_RELU),
                        PRNN_NAMED(PRNN_RNN_TANH),
                        PRNN_NAMED(PRNN_LSTM),
                        PRNN_NAMED(PRNN_GRU),
                        PRNN_NAMED(PRNN_SLSTM),
                        PRNN_NAMED(PRNN_SLSTM_EXP),
                        PRNN_NAMED(PRNN_UNIDIRECTIONAL),
                        PRNN_NAMED(PRNN_BIDIRECTIONAL),
                        PRNN_NAMED(PRNN_REVERSE),
                        PRNN_NAMED(PRNN_LINEAR_INPUT),
                        PRNN_NAMED(PRNN_SKIP_INPUT),
                        PRNN_NAMED(PRNN_GATES_INPUT),
                        PRNN_NAMED(PRNN_FWD_MODE_INFERENCE),
                        PRNN_NAMED(PRNN_FWD_MODE_TRAINING),
                        PRNN_NAMED(PRNN_PERSISTENT_BACKEND),
                        PRNN_NAMED(PRNN_CUDNN_BACKEND),
                        PRNN_NAMED(PRNN_BEST_BACKEND),
                        PRNN_NAMED(PRNN_WGRAD_MODE_ADD),
                        PRNN_NAMED(PRNN_WGRAD_MODE_SET),
                        PRNN_NAMED(PRNN_DEFAULT_MATH),
                        PRNN_NAMED(PRNN_TENSOR_OP_MATH),
                        PRNN_NAMED(PRNN_TENSOR_OP_MATH_ALLOW_CONVERSION),
                        PRNN_NAMED(PRNN_FMA_MATH),
                        PRNN_NAMED(PRNN_ENGINE_BEST),
                        PRNN_NAMED(PRNN_ENGINE_MMA),
                        PRNN_NAMED(PRNN_ENGINE_WGMMA),
                        PRNN_NAMED(PRNN_ENGINE_WGMMA_SPLIT_K),
                        PRNN_NAMED(PRNN_ENGINE_WGMMA_MULTICAST),
                        PRNN_NAMED(PRNN_LOSS_LOGITS),
                        PRNN_NAMED(PRNN_LOSS_LOG_PROBS),
                        PRNN_NAMED(PRNN_LOSS_GATHERED),
                        PRNN_NAMED(PRNN_TARGETS_PADDED),
                        PRNN_NAMED(PRNN_TARGETS_CONCATENATED),
                        PRNN_NAMED(PRNN_RNNT_REGULAR),
                        PRNN_NAMED(PRNN_RNNT_MODIFIED),
                        PRNN_NAMED(PRNN_RNNT_CONSTRAINED),
                        PRNN_NAMED(PRNN_RNNT_FINAL_BLANK),
                        PRNN_NAMED(PRNN_RNNT_PADDED),
                        PRNN_NAMED(PRNN_RNNT_PACKED),
                        PRNN_NAMED(PRNN_RNNT_PRUNED),
                        PRNN_NAMED(PRNN_DURATION_TDT),
                        PRNN_NAMED(PRNN_DURATION_MULTI_BLANK),
                        PRNN_NAMED(PRNN_JOINT_TANH),
                        PRNN_NAMED(PRNN_JOINT_RELU),
                        PRNN_NAMED(PRNN_NORMALIZE_GATES),
                        PRNN_NAMED(PRNN_NORMALIZE_PRODUCTS),
                        PRNN_NAMED(PRNN_NORMALIZE_NONE),
                        PRNN_NAMED(PRNN_BEAM_MODIFIED),
                        PRNN_NAMED(PRNN_BEAM_STANDARD),
                        PRNN_NAMED(PRNN_PREDICTOR_STATELESS),
                        PRNN_NAMED(PRNN_PREDICTOR_LSTM),
                        PRNN_NAMED(PRNN_PREDICTOR_GRU)};
#undef PRNN_NAMED

}  // namespace

const char* find_name(const std::type_info& type, int value) {
  const auto is_it = [&](const Named& named) { return named.value == value && named.type == type; };
  const Named* const found = std::find_if(std::begin(kNames), std::end(kNames), is_it);
  return found == std::end(kNames) ? nullptr : found->name;
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
