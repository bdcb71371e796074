// prnnTransducerSearch and its kin: checks every argument, then calls the backend of the handle's device.
#include "decode/checks.h"
#include "decode/decode.h"

namespace prnn {
namespace {

constexpr int64_t kMost = std::numeric_limits<int>::max();

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

// The backend for a call with this model.
const DecodeBackend& checked_backend(prnnHandle_t handle, const TransducerModel* model) {
  const DecodeBackend& backend = backend_of(handle);
  check_model(model);
  backend.require_supported(handle, *model);
  return backend;
}

void check_options(const TransducerModel& m, const prnnTransducerSearchOptions_t* options) {
  require_not_null(options, "options");
  require_in_range(options->batch, 1, kMost, "batch");
  require_in_range(options->maxFrames, 1, kMost, "maxFrames");
  require_in_range(options->maxSymbols, 1, kMost, "maxSymbols");
  const int64_t largest_size = std::max({m.encoderSize, m.joinerSize, options->maxSymbols});
  product_of_sizes({options->batch, options->maxFrames, largest_size});
  if (most_symbols(*options) > kMost)
    fail(PRNN_STATUS_BAD_PARAM,
         "maxFrames is %" PRId64 " and maxSymbols %" PRId64 "; their product must be at most %" PRId64,
         options->maxFrames, options->maxSymbols, kMost);
}

void check_weights(const TransducerModel& m, const prnnTransducerWeights_t* weights) {
  require_not_null(weights, "weights");
  const prnnTransducerWeights_t& w = *weights;
  const size_t size = type_size(m.dataType);
  if (w.encoderWeight == nullptr) {
    if (m.encoderSize != m.joinerSize)
      fail(PRNN_STATUS_BAD_PARAM,
           "weights->encoderWeight is NULL, but encoderSize is %" PRId64 " and joinerSize %" PRId64
           "; without the weight they must be equal",
           m.encoderSize, m.joinerSize);
    require_only_if(false, w.encoderBias, "weights->encoderBias", "where encoderWeight is");
  }
  require_not_null(w.embedding, "weights->embedding");
  require_not_null(w.predictorWeight, "weights->predictorWeight");
  require_not_null(w.outputWeight, "weights->outputWeight");
  require_aligned(size, {{w.encoderWeight, "weights->encoderWeight"},
                         {w.encoderBias, "weights->encoderBias"},
                         {w.embedding, "weights->embedding"},
                         {w.predictorWeight, "weights->predictorWeight"},
                         {w.predictorBias, "weights->predictorBias"},
                         {w.outputWeight, "weights->outputWeight"},
                         {w.outputBias, "weights->outputBias"}});
  for (int64_t layer = 0; is_recurrent(m) && layer < m.layers; ++layer) {
    require_not_null(w.inputWeights[layer], "weights->inputWeights[layer]");
    require_not_null(w.recurrentWeights[layer], "weights->recurrentWeights[layer]");
    require_aligned(size, {{w.inputWeights[layer], "weights->inputWeights[layer]"},
                           {w.recurrentWeights[layer], "weights->recurrentWeights[layer]"},
                           {w.inputBiases[layer], "weights->inputBiases[layer]"},
                           {w.recurrentBiases[layer], "weights->recurrentBiases[layer]"}});
  }
}

size_t compute_size(const TransducerModel& m) {
  return m.dataType == PRNN_DATA_DOUBLE ? sizeof(double) : sizeof(float);
}

void check_inputs(prnnHandle_t handle, const TransducerModel& m, const prnnTransducerSearchOptions_t& o,
                  const prnnTransducerInputs_t* inputs) {
  require_not_null(inputs, "inputs");
  require_not_null(inputs->frames, "inputs->frames");
  require_aligned(type_size(m.dataType), {{inputs->frames, "inputs->frames"}});
  require_aligned(sizeof(int), {{inputs->lengths, "inputs->lengths"}});
  if (handle->is_cpu() && inputs->lengths != nullptr)
    require_lengths(inputs->lengths, o.batch, 0, o.maxFrames, "inputs->lengths");
  const prnnTransducerBias_t* const bias = inputs->bias;
  if (bias == nullptr) return;
  require_in_range(bias->nodes, 1, kMost, "bias->nodes");
  product_of_sizes({bias->nodes, m.classes});
  require_not_null(bias->next, "bias->next");
  require_not_null(bias->gains, "bias->gains");
  require_aligned(sizeof(int), {{bias->next, "bias->next"}});
  require_aligned(compute_size(m), {{bias->gains, "bias->gains"}});
}

// What the slots of a call hold, on the host.
void check_slots(const TransducerModel& m, const prnnTransducerSearchOptions_t& o, const prnnTransducerState_t& state,
                 const prnnTransducerBias_t* bias) {
  for (int64_t n = 0; n < o.batch; ++n) {
    const int64_t slot = state.slots != nullptr ? state.slots[n] : n;
    if (slot < 0)
      fail(PRNN_STATUS_BAD_PARAM, "state->slots[%" PRId64 "] is %" PRId64 "; it must be at least 0", n, slot);
    if (state.ahead[slot] < -1)
      fail(PRNN_STATUS_BAD_PARAM, "state->ahead of slot %" PRId64 " is %d; it must be at least -1", slot,
           state.ahead[slot]);
    if (state.ahead[slot] < 0) continue;
    for (int64_t i = 0; state.context != nullptr && i < m.context; ++i) {
      const int symbol = state.context[slot * m.context + i];
      if (symbol < 0 || symbol >= m.classes)
        fail(PRNN_STATUS_BAD_PARAM, "state->context of slot %" PRId64 " holds %d; it must be 0 to %" PRId64, slot,
             symbol, m.classes - 1);
    }
    if (bias != nullptr && (state.node[slot] < 0 || state.node[slot] >= bias->nodes))
      fail(PRNN_STATUS_BAD_PARAM, "state->node of slot %" PRId64 " is %d; it must be 0 to %" PRId64, slot,
           state.node[slot], bias->nodes - 1);
  }
  require_different(state.slots, o.batch, "state->slots");
}

void check_state(prnnHandle_t handle, const TransducerModel& m, const prnnTransducerSearchOptions_t& o,
                 const prnnTransducerState_t* state, const prnnTransducerBias_t* bias) {
  if (state == nullptr) return;
  require_not_null(state->ahead, "state->ahead");
  require_only_if(is_recurrent(m), state->h, "state->h", "with a STATELESS predictor");
  require_only_if(m.predictor == PRNN_PREDICTOR_LSTM, state->c, "state->c", "unless the predictor is LSTM");
  require_only_if(!is_recurrent(m), state->context, "state->context", "unless the predictor is STATELESS");
  require_only_if(bias != nullptr, state->node, "state->node", "without a bias");
  require_aligned(type_size(m.dataType), {{state->h, "state->h"}});
  require_aligned(compute_size(m), {{state->c, "state->c"}});
  require_aligned(sizeof(int), {{state->slots, "state->slots"},
                                {state->ahead, "state->ahead"},
                                {state->context, "state->context"},
                                {state->node, "state->node"}});
  require_aligned(sizeof(double), {{state->score, "state->score"}});
  if (handle->is_cpu()) check_slots(m, o, *state, bias);
}

void check_outputs(const TransducerModel& m, const prnnTransducerOutputs_t* outputs) {
  require_not_null(outputs, "outputs");
  require_not_null(outputs->symbols, "outputs->symbols");
  require_not_null(outputs->counts, "outputs->counts");
  if (m.durationCount == 0 && outputs->durations != nullptr)
    fail(PRNN_STATUS_BAD_PARAM, "outputs->durations is given; it must be NULL, for durationCount is 0");
  require_aligned(sizeof(int), {{outputs->symbols, "outputs->symbols"},
                                {outputs->counts, "outputs->counts"},
                                {outputs->frames, "outputs->frames"},
                                {outputs->durations, "outputs->durations"}});
  require_aligned(compute_size(m),
                  {{outputs->logProbs, "outputs->logProbs"}, {outputs->confidences, "outputs->confidences"}});
  require_aligned(sizeof(double), {{outputs->scores, "outputs->scores"}});
}

}  // namespace
}  // namespace prnn

using namespace prnn;

extern "C" prnnStatus_t prnnInitTransducerModel(prnnTransducerModel_t* model) {
  return guarded(nullptr, [&] {
    require_not_null(model, "model");
    *model = prnnTransducerModel_t{};
    model->predictor = PRNN_PREDICTOR_LSTM;
    model->layers = 1;
    model->context = 2;
  });
}

extern "C" prnnStatus_t prnnGetTransducerPreparedSize(prnnHandle_t handle, const prnnTransducerModel_t* model,
                                                      size_t* sizeInBytes) {
  return guarded(handle, [&] {
    const DecodeBackend& backend = checked_backend(handle, model);
    write_size(backend.prepared_size(handle, *model), sizeInBytes);
  });
}

extern "C" prnnStatus_t prnnPrepareTransducer(prnnHandle_t handle, const prnnTransducerModel_t* model,
                                              const prnnTransducerWeights_t* weights, void* prepared,
                                              size_t preparedSizeInBytes) {
  return guarded(handle, [&] {
    const DecodeBackend& backend = checked_backend(handle, model);
    check_weights(*model, weights);
    require_space(prepared, preparedSizeInBytes, backend.prepared_size(handle, *model), "prepared");
    backend.prepare(handle, *model, *weights, prepared);
  });
}

extern "C" prnnStatus_t prnnGetTransducerSearchWorkspaceSize(prnnHandle_t handle, const prnnTransducerModel_t* model,
                                                             const prnnTransducerSearchOptions_t* options,
                                                             size_t* sizeInBytes) {
  return guarded(handle, [&] {
    const DecodeBackend& backend = checked_backend(handle, model);
    check_options(*model, options);
    write_size(backend.workspace_size(handle, *model, *options), sizeInBytes);
  });
}

extern "C" prnnStatus_t prnnTransducerSearch(prnnHandle_t handle, const prnnTransducerModel_t* model,
                                             const void* prepared, const prnnTransducerSearchOptions_t* options,
                                             const prnnTransducerInputs_t* inputs, const prnnTransducerState_t* state,
                                             const prnnTransducerOutputs_t* outputs, void* workspace,
                                             size_t workspaceSizeInBytes) {
  return guarded(handle, [&] {
    const DecodeBackend& backend = checked_backend(handle, model);
    check_prepared(prepared);
    check_options(*model, options);
    check_inputs(handle, *model, *options, inputs);
    check_state(handle, *model, *options, state, inputs->bias);
    check_outputs(*model, outputs);
    require_space(workspace, workspaceSizeInBytes, backend.workspace_size(handle, *model, *options).least, "workspace");
    backend.search(handle, *model, {*options, prepared, *inputs, state, *outputs, workspace, workspaceSizeInBytes});
  });
}
