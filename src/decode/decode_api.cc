// prnnTransducerSearch and its kin: checks every argument, then calls the backend of the handle's device.
#include "decode/model_checks.h"

namespace prnn {
namespace {

void check_options(const TransducerModel& m, const prnnTransducerSearchOptions_t* options) {
  require_not_null(options, "options");
  check_search_sizes(m, options->batch, 1, options->maxFrames, options->maxSymbols);
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

// Checks the state that the slots of a call hold, on the host.
void check_slots(const TransducerModel& m, const prnnTransducerSearchOptions_t& o, const prnnTransducerState_t& state,
                 const prnnTransducerBias_t* bias) {
  for (int64_t n = 0; n < o.batch; ++n) {
    const int64_t slot = checked_slot(state.slots, n);
    if (state.ahead[slot] < -1)
      fail(PRNN_STATUS_BAD_PARAM, "state->ahead of slot %" PRId64 " is %d; it must be at least -1", slot,
           state.ahead[slot]);
    if (state.ahead[slot] < 0) continue;
    if (state.context != nullptr) check_context(m, state.context + slot * m.context, slot);
    if (bias != nullptr) check_node(*bias, state.node[slot], slot);
  }
  require_different(state.slots, o.batch, "state->slots");
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
    check_inputs(handle, *model, options->batch, options->maxFrames, inputs);
    if (state != nullptr) check_state_arrays(*model, *state, inputs->bias);
    if (state != nullptr && handle->is_cpu()) check_slots(*model, *options, *state, inputs->bias);
    check_outputs(*model, outputs);
    require_space(workspace, workspaceSizeInBytes, backend.workspace_size(handle, *model, *options).least, "workspace");
    backend.search(handle, *model, {*options, prepared, *inputs, state, *outputs, workspace, workspaceSizeInBytes});
  });
}
