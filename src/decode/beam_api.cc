// prnnTransducerBeamSearch and its query: checks every argument, then calls the backend of the handle's device.
#include "decode/model_checks.h"

namespace prnn {
namespace {

void check_options(const TransducerModel& m, const prnnTransducerBeamOptions_t* options) {
  require_not_null(options, "options");
  const prnnTransducerBeamOptions_t& o = *options;
  require_enumerator(o.mode, {PRNN_BEAM_MODIFIED, PRNN_BEAM_STANDARD}, "mode");
  check_search_sizes(m, o.batch, o.beam, o.maxFrames, o.maxSymbols);
  if (o.mode == PRNN_BEAM_MODIFIED && o.maxSymbols != 1)
    fail(PRNN_STATUS_BAD_PARAM, "maxSymbols is %" PRId64 "; in a MODIFIED beam search it must be 1", o.maxSymbols);
}

// Checks the state that the slots of a call hold, on the host.
void check_slots(const TransducerModel& m, const prnnTransducerBeamOptions_t& o, const prnnTransducerBeamState_t& state,
                 const prnnTransducerBias_t* bias) {
  for (int64_t n = 0; n < o.batch; ++n) {
    const int64_t slot = checked_slot(state.slots, n), first = slot * o.beam;
    if (state.ahead[first] == -1) continue;
    for (int64_t k = first; k < first + o.beam; ++k) {
      if (!(state.score[k] > -std::numeric_limits<double>::infinity())) continue;
      if (state.ahead[k] < 0)
        fail(PRNN_STATUS_BAD_PARAM, "state->ahead of slot %" PRId64 " is %d; it must be at least 0, or -1 as the first",
             slot, state.ahead[k]);
      if (state.context != nullptr) check_context(m, state.context + k * m.context, slot);
      if (bias != nullptr) check_node(*bias, state.node[k], slot);
    }
  }
  require_different(state.slots, o.batch, "state->slots");
}

void check_state(prnnHandle_t handle, const TransducerModel& m, const prnnTransducerBeamOptions_t& o,
                 const prnnTransducerBeamState_t* state, const prnnTransducerBias_t* bias) {
  if (state == nullptr) return;
  check_state_arrays(m, *state, bias);
  require_not_null(state->score, "state->score");
  require_not_null(state->hash, "state->hash");
  require_aligned(sizeof(uint64_t), {{state->hash, "state->hash"}});
  if (handle->is_cpu()) check_slots(m, o, *state, bias);
}

void check_outputs(const TransducerModel& m, const prnnTransducerBeamOutputs_t* outputs) {
  require_not_null(outputs, "outputs");
  require_not_null(outputs->symbols, "outputs->symbols");
  require_not_null(outputs->counts, "outputs->counts");
  require_not_null(outputs->scores, "outputs->scores");
  require_aligned(sizeof(int), {{outputs->symbols, "outputs->symbols"},
                                {outputs->counts, "outputs->counts"},
                                {outputs->origins, "outputs->origins"},
                                {outputs->frames, "outputs->frames"}});
  require_aligned(compute_size(m), {{outputs->confidences, "outputs->confidences"}});
  require_aligned(sizeof(double), {{outputs->scores, "outputs->scores"}});
}

}  // namespace
}  // namespace prnn

using namespace prnn;

extern "C" prnnStatus_t prnnGetTransducerBeamSearchWorkspaceSize(prnnHandle_t handle,
                                                                 const prnnTransducerModel_t* model,
                                                                 const prnnTransducerBeamOptions_t* options,
                                                                 size_t* sizeInBytes) {
  return guarded(handle, [&] {
    const DecodeBackend& backend = checked_backend(handle, model);
    check_options(*model, options);
    write_size(backend.beam_workspace_size(handle, *model, *options), sizeInBytes);
  });
}

extern "C" prnnStatus_t prnnTransducerBeamSearch(prnnHandle_t handle, const prnnTransducerModel_t* model,
                                                 const void* prepared, const prnnTransducerBeamOptions_t* options,
                                                 const prnnTransducerInputs_t* inputs,
                                                 const prnnTransducerBeamState_t* state,
                                                 const prnnTransducerBeamOutputs_t* outputs, void* workspace,
                                                 size_t workspaceSizeInBytes) {
  return guarded(handle, [&] {
    const DecodeBackend& backend = checked_backend(handle, model);
    check_prepared(prepared);
    check_options(*model, options);
    check_inputs(handle, *model, options->batch, options->maxFrames, inputs);
    check_state(handle, *model, *options, state, inputs->bias);
    check_outputs(*model, outputs);
    require_space(workspace, workspaceSizeInBytes, backend.beam_workspace_size(handle, *model, *options).least,
                  "workspace");
    backend.beam_search(handle, *model,
                        {*options, prepared, *inputs, state, *outputs, workspace, workspaceSizeInBytes});
  });
}
