// prnnDurationRNNTLoss and its kin: checks every argument, then calls the backend of the handle's device.
#include <cmath>

#include "core/loss_calls.h"
#include "rnnt/duration.h"

namespace prnn {
namespace {

const DurationBackend& backend_of(prnnHandle_t handle) {
  require_handle(handle);
  return handle->is_cpu() ? cpu_duration_backend() : cuda_duration_backend();
}

// The options with the strides that 0 stands for.
prnnDurationRNNTLossOptions_t checked_options(const DurationBackend& backend,
                                              const prnnDurationRNNTLossOptions_t* options) {
  require_not_null(options, "options");
  prnnDurationRNNTLossOptions_t o = *options;
  require_known_type(o.dataType, "dataType");
  require_enumerator(o.type, {PRNN_DURATION_TDT, PRNN_DURATION_MULTI_BLANK}, "type");
  require_enumerator(o.input, {PRNN_LOSS_LOGITS, PRNN_LOSS_GATHERED}, "input");
  require_sizes(o, std::numeric_limits<int>::max() - 1);
  require_durations(o);
  const bool tdt = o.type == PRNN_DURATION_TDT;
  if (!tdt && o.input != PRNN_LOSS_LOGITS)
    fail(PRNN_STATUS_BAD_PARAM, "input is %s; it must be PRNN_LOSS_LOGITS with PRNN_DURATION_MULTI_BLANK",
         name_of(o.input));
  if (o.input == PRNN_LOSS_GATHERED) {
    if (o.classes != 2)
      fail(PRNN_STATUS_BAD_PARAM, "classes is %" PRId64 "; it must be 2 for PRNN_LOSS_GATHERED", o.classes);
    o.blank = 0;
  }
  require_in_range(o.blank, tdt ? 0 : o.durationCount, o.classes - 1, "blank");
  if (o.tokenStride == 0) o.tokenStride = o.classes;
  require_at_least(o.tokenStride, o.classes, "tokenStride");
  if (!tdt || o.durationStride == 0) o.durationStride = o.durationCount;
  require_at_least(o.durationStride, o.durationCount, "durationStride");
  product_of_sizes({o.batch, o.maxFrames + o.maxTargets, o.maxTargets + 1});
  product_of_sizes({o.batch, o.maxFrames, o.maxTargets + 1, o.tokenStride});
  product_of_sizes({o.batch, o.maxFrames, o.maxTargets + 1, o.durationStride});
  require_gradient_options(o);
  require_reduction(o.reduction);
  backend.require_supported(o.dataType);
  return o;
}

// Checks the contents that a CPU handle can read.
void check_contents(const DurationParams& p) {
  const prnnDurationRNNTLossOptions_t& o = p.options;
  require_lengths(p.frame_lengths, o.batch, 1, o.maxFrames, "frameLengths");
  require_lengths(p.target_lengths, o.batch, 0, o.maxTargets, "targetLengths");
  if (o.input == PRNN_LOSS_GATHERED) return;
  const int64_t big_blanks = o.type == PRNN_DURATION_MULTI_BLANK ? o.durationCount : 0;
  for (int64_t blank = o.blank - big_blanks; blank <= o.blank; ++blank)
    require_targets(p.targets, PRNN_TARGETS_PADDED, p.target_lengths, o.batch, o.maxTargets, 0, o.classes, blank);
}

DurationParams checked_params(prnnHandle_t handle, const DurationBackend& backend,
                              const prnnDurationRNNTLossOptions_t* options, const void* tokens, const void* durations,
                              const int* targets, const int* frame_lengths, const int* target_lengths) {
  const DurationParams params{
      checked_options(backend, options), tokens, durations, targets, frame_lengths, target_lengths, nullptr};
  require_not_null(tokens, "tokenLogits");
  if (params.options.type == PRNN_DURATION_TDT) require_not_null(durations, "durationLogits");
  require_not_null(frame_lengths, "frameLengths");
  require_not_null(target_lengths, "targetLengths");
  if (params.options.input != PRNN_LOSS_GATHERED && params.options.maxTargets > 0) require_not_null(targets, "targets");
  require_aligned(type_size(params.options.dataType), {{tokens, "tokenLogits"}, {durations, "durationLogits"}});
  require_aligned(sizeof(int),
                  {{targets, "targets"}, {frame_lengths, "frameLengths"}, {target_lengths, "targetLengths"}});
  if (handle->is_cpu()) check_contents(params);
  return params;
}

void check_gradients(const DurationParams& params, const void* tokens, const void* durations) {
  require_not_null(tokens, "tokenGradients");
  if (params.options.type == PRNN_DURATION_TDT) require_not_null(durations, "durationGradients");
  require_aligned(type_size(params.options.dataType), {{tokens, "tokenGradients"}, {durations, "durationGradients"}});
}

}  // namespace
}  // namespace prnn

using namespace prnn;

extern "C" prnnStatus_t prnnInitDurationRNNTLossOptions(prnnDurationRNNTLossOptions_t* options) {
  return guarded(nullptr, [&] {
    require_not_null(options, "options");
    *options = prnnDurationRNNTLossOptions_t{};  // the defaults are the zeros
  });
}

extern "C" prnnStatus_t prnnGetDurationRNNTLossWorkspaceSize(prnnHandle_t handle,
                                                             const prnnDurationRNNTLossOptions_t* options,
                                                             size_t* sizeInBytes) {
  return guarded(handle, [&] {
    const DurationBackend& backend = backend_of(handle);
    const prnnDurationRNNTLossOptions_t checked = checked_options(backend, options);
    write_size(backend.workspace_size(checked), sizeInBytes);
  });
}

extern "C" prnnStatus_t prnnGetDurationRNNTLossReserveSize(prnnHandle_t handle,
                                                           const prnnDurationRNNTLossOptions_t* options,
                                                           size_t* sizeInBytes) {
  return guarded(handle, [&] {
    const DurationBackend& backend = backend_of(handle);
    const prnnDurationRNNTLossOptions_t checked = checked_options(backend, options);
    write_size(backend.reserve_size(checked), sizeInBytes);
  });
}

extern "C" prnnStatus_t prnnDurationRNNTLoss(prnnHandle_t handle, const prnnDurationRNNTLossOptions_t* options,
                                             const void* tokenLogits, const void* durationLogits, const int* targets,
                                             const int* frameLengths, const int* targetLengths, void* costs,
                                             void* tokenGradients, void* durationGradients, void* workspace,
                                             size_t workspaceSizeInBytes) {
  return guarded(handle, [&] {
    const DurationBackend& backend = backend_of(handle);
    DurationParams params =
        checked_params(handle, backend, options, tokenLogits, durationLogits, targets, frameLengths, targetLengths);
    require_costs(costs, params.options.dataType, params.options.reduction);
    const bool wanted = tokenGradients || durationGradients;
    if (wanted) check_gradients(params, tokenGradients, durationGradients);
    // The reserve space lies at the front of the workspace.
    const size_t reserve = wanted ? whole_blocks(backend.reserve_size(params.options)) : 0;
    set_workspace(params, workspace, workspaceSizeInBytes, reserve, backend.workspace_size(params.options));
    backend.forward(handle, params, costs, wanted ? workspace : nullptr);
    if (wanted) backend.backward(handle, params, nullptr, tokenGradients, durationGradients, workspace);
  });
}

extern "C" prnnStatus_t prnnDurationRNNTLossForward(prnnHandle_t handle, const prnnDurationRNNTLossOptions_t* options,
                                                    const void* tokenLogits, const void* durationLogits,
                                                    const int* targets, const int* frameLengths,
                                                    const int* targetLengths, void* costs, void* workspace,
                                                    size_t workspaceSizeInBytes, void* reserveSpace,
                                                    size_t reserveSizeInBytes) {
  return guarded(handle, [&] {
    const DurationBackend& backend = backend_of(handle);
    DurationParams params =
        checked_params(handle, backend, options, tokenLogits, durationLogits, targets, frameLengths, targetLengths);
    require_costs(costs, params.options.dataType, params.options.reduction);
    set_workspace(params, workspace, workspaceSizeInBytes, 0, backend.workspace_size(params.options));
    if (reserveSpace)
      require_space(reserveSpace, reserveSizeInBytes, backend.reserve_size(params.options), "reserveSpace");
    backend.forward(handle, params, costs, reserveSpace);
  });
}

extern "C" prnnStatus_t prnnDurationRNNTLossBackward(prnnHandle_t handle, const prnnDurationRNNTLossOptions_t* options,
                                                     const void* tokenLogits, const void* durationLogits,
                                                     const int* targets, const int* frameLengths,
                                                     const int* targetLengths, const void* costGradients,
                                                     void* tokenGradients, void* durationGradients,
                                                     const void* reserveSpace, size_t reserveSizeInBytes) {
  return guarded(handle, [&] {
    const DurationBackend& backend = backend_of(handle);
    const DurationParams params =
        checked_params(handle, backend, options, tokenLogits, durationLogits, targets, frameLengths, targetLengths);
    check_gradients(params, tokenGradients, durationGradients);
    require_aligned(cost_size(params.options.dataType), {{costGradients, "costGradients"}});
    require_space(reserveSpace, reserveSizeInBytes, backend.reserve_size(params.options), "reserveSpace");
    backend.backward(handle, params, costGradients, tokenGradients, durationGradients, reserveSpace);
  });
}
