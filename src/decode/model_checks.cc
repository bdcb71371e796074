#include "decode/model_checks.h"

namespace prnn {
namespace {

const DecodeBackend& backend_of(prnnHandle_t handle) {
  require_handle(handle);
  return handle->is_cpu() ? cpu_decode_backend() : cuda_decode_backend();
}

void check_durations(const TransducerModel& m) {
  require_in_range(m.durationCount, 0, PRNN_MAX_DURATIONS, "durationCount");
  bool is_any_positive = m.durationCount == 0;
  for (int64_t i = 0; i < m.durationCount; ++i) {
    if (m.durations[i] < 0)
      fail(PRNN_STATUS_BAD_PARAM, "durations[%" PRId64 "] is %d; it must be at least 0", i, m.durations[i]);
    is_any_positive |= m.durations[i] > 0;
    for (int64_t j = 0; j < i; ++j) {
      if (m.durations[i] == m.durations[j])
        fail(PRNN_STATUS_BAD_PARAM, "durations[%" PRId64 "] is %d, as durations[%" PRId64 "] is; they must differ", i,
             m.durations[i], j);
    }
  }
  if (!is_any_positive) fail(PRNN_STATUS_BAD_PARAM, "durations has 0 alone; one of them must be positive");
}

void check_model(const TransducerModel* model) {
  require_not_null(model, "model");
  const TransducerModel& m = *model;
  require_known_type(m.dataType, "dataType");
  require_enumerator(m.predictor, {PRNN_PREDICTOR_STATELESS, PRNN_PREDICTOR_LSTM, PRNN_PREDICTOR_GRU}, "predictor");
  require_enumerator(m.activation, {PRNN_JOINT_TANH, PRNN_JOINT_RELU}, "activation");
  if (is_recurrent(m)) {
    require_in_range(m.layers, 1, PRNN_MAX_PREDICTOR_LAYERS, "layers");
    require_in_range(m.embeddingSize, 1, kMost, "embeddingSize");
  } else {
    require_in_range(m.context, 1, PRNN_MAX_PREDICTOR_CONTEXT, "context");
    require_in_range(m.predictorRelu, 0, 1, "predictorRelu");
  }
  require_in_range(m.hiddenSize, 1, kMost, "hiddenSize");
  require_in_range(m.encoderSize, 1, kMost, "encoderSize");
  require_in_range(m.joinerSize, 1, kMost, "joinerSize");
  require_in_range(m.classes, 2, kMost - PRNN_MAX_DURATIONS, "classes");
  require_in_range(m.blank, 0, m.classes - 1, "blank");
  check_durations(m);
  product_of_sizes({m.joinerSize, m.encoderSize});
  product_of_sizes({m.joinerSize, m.hiddenSize});
  product_of_sizes({output_rows(m), m.joinerSize});
  if (is_recurrent(m)) {
    product_of_sizes({m.classes, m.embeddingSize});
    product_of_sizes({m.layers, 4, m.hiddenSize, std::max(m.hiddenSize, m.embeddingSize)});
  } else {
    product_of_sizes({m.context, m.classes, m.hiddenSize});
  }
}

}  // namespace

const DecodeBackend& checked_backend(prnnHandle_t handle, const TransducerModel* model) {
  const DecodeBackend& backend = backend_of(handle);
  check_model(model);
  backend.require_supported(handle, *model);
  return backend;
}

void check_search_sizes(const TransducerModel& m, int64_t batch, int64_t beam, int64_t max_frames,
                        int64_t max_symbols) {
  require_in_range(batch, 1, kMost, "batch");
  require_in_range(beam, 1, kMost, "beam");
  require_in_range(max_frames, 1, kMost, "maxFrames");
  require_in_range(max_symbols, 1, kMost, "maxSymbols");
  product_of_sizes({batch, beam, max_frames, std::max({m.encoderSize, m.joinerSize, max_symbols})});
  if (max_frames * max_symbols > kMost)
    fail(PRNN_STATUS_BAD_PARAM,
         "maxFrames is %" PRId64 " and maxSymbols %" PRId64 "; their product must be at most %" PRId64, max_frames,
         max_symbols, kMost);
}

void check_inputs(prnnHandle_t handle, const TransducerModel& m, int64_t batch, int64_t max_frames,
                  const prnnTransducerInputs_t* inputs) {
  require_not_null(inputs, "inputs");
  require_not_null(inputs->frames, "inputs->frames");
  require_aligned(type_size(m.dataType), {{inputs->frames, "inputs->frames"}});
  require_aligned(sizeof(int), {{inputs->lengths, "inputs->lengths"}});
  if (handle->is_cpu() && inputs->lengths != nullptr)
    require_lengths(inputs->lengths, batch, 0, max_frames, "inputs->lengths");
  const prnnTransducerBias_t* const bias = inputs->bias;
  if (bias == nullptr) return;
  require_in_range(bias->nodes, 1, kMost, "bias->nodes");
  product_of_sizes({bias->nodes, m.classes});
  require_not_null(bias->next, "bias->next");
  require_not_null(bias->gains, "bias->gains");
  require_aligned(sizeof(int), {{bias->next, "bias->next"}});
  require_aligned(compute_size(m), {{bias->gains, "bias->gains"}});
}

}  // namespace prnn
