// prnnRNNTLoss and its kin: checks every argument, then calls the backend of the handle's device.
#include "core/loss_calls.h"
#include "rnnt/rnnt.h"

namespace prnn {

const RnntBackend& rnnt_backend(prnnHandle_t handle) {
  require_handle(handle);
  return handle->is_cpu() ? cpu_rnnt_backend() : cuda_rnnt_backend();
}

namespace {

void check_options(const RnntBackend& backend, const prnnRNNTLossOptions_t* options) {
  require_not_null(options, "options");
  const prnnRNNTLossOptions_t& o = *options;
  require_known_type(o.dataType, "dataType");
  require_enumerator(o.input, {PRNN_LOSS_LOGITS, PRNN_LOSS_LOG_PROBS, PRNN_LOSS_GATHERED}, "input");
  require_enumerator(o.layout, {PRNN_RNNT_PADDED, PRNN_RNNT_PACKED, PRNN_RNNT_PRUNED}, "layout");
  require_enumerator(o.targetLayout, {PRNN_TARGETS_PADDED, PRNN_TARGETS_CONCATENATED}, "targetLayout");
  require_enumerator(o.type, {PRNN_RNNT_REGULAR, PRNN_RNNT_MODIFIED, PRNN_RNNT_CONSTRAINED, PRNN_RNNT_FINAL_BLANK},
                     "type");
  require_sizes(o, std::numeric_limits<int>::max() - 1);
  if (o.input == PRNN_LOSS_GATHERED) {
    if (o.classes != 2)
      fail(PRNN_STATUS_BAD_PARAM, "classes is %" PRId64 "; it must be 2 for PRNN_LOSS_GATHERED", o.classes);
  } else {
    require_in_range(o.blank, 0, o.classes - 1, "blank");
  }
  if (o.targetLayout == PRNN_TARGETS_CONCATENATED) require_at_least(o.targetElements, 0, "targetElements");
  if (o.layout == PRNN_RNNT_PACKED) {
    require_at_least(o.rows, 1, "rows");
    product_of_sizes({o.rows, o.classes});
  }
  if (o.layout == PRNN_RNNT_PRUNED) require_in_range(o.pruneRange, 1, o.maxTargets + 1, "pruneRange");
  product_of_sizes({o.batch, o.maxFrames + o.maxTargets, o.maxTargets + 1});
  if (o.layout != PRNN_RNNT_PACKED) product_of_sizes({o.batch, o.maxFrames, o.maxTargets + 1, o.classes});
  require_gradient_options(o);
  require_delay_penalty(o.delayPenalty);
  require_reduction(o.reduction);
  backend.require_supported(o.dataType);
}

// Checks the contents that a CPU handle can read: lengths, symbols, pruning ranges.
void check_contents(const RnntParams& p) {
  const prnnRNNTLossOptions_t& o = p.options;
  require_lengths(p.frame_lengths, o.batch, 1, o.maxFrames, "frameLengths");
  require_lengths(p.target_lengths, o.batch, 0, o.maxTargets, "targetLengths");
  if (o.input != PRNN_LOSS_GATHERED)
    require_targets(p.targets, o.targetLayout, p.target_lengths, o.batch, o.maxTargets, o.targetElements, o.classes,
                    o.blankTargets ? -1 : o.blank);
  if (o.layout == PRNN_RNNT_PACKED) {
    int64_t rows = 0;
    for (int64_t n = 0; n < o.batch; ++n) rows += p.frame_lengths[n] * (INT64_C(1) + p.target_lengths[n]);
    if (rows != o.rows)
      fail(PRNN_STATUS_BAD_PARAM, "rows is %" PRId64 ", but the lengths make %" PRId64 " cells", o.rows, rows);
  }
  if (o.layout != PRNN_RNNT_PRUNED) return;
  for (int64_t n = 0; n < o.batch; ++n) {
    const int* begins = p.range_begins + n * o.maxFrames;
    for (int64_t t = 0; t < p.frame_lengths[n]; ++t) {
      if (begins[t] < 0 || begins[t] > o.maxTargets)
        fail(PRNN_STATUS_BAD_PARAM, "rangeBegins[%" PRId64 ", %" PRId64 "] is %d; it must be 0 to %" PRId64, n, t,
             begins[t], o.maxTargets);
      if (t > 0 && begins[t] < begins[t - 1])
        fail(PRNN_STATUS_BAD_PARAM, "rangeBegins[%" PRId64 ", %" PRId64 "] is %d after %d; it must not decrease", n, t,
             begins[t], begins[t - 1]);
    }
  }
}

// The arguments that all calls on activations share.
RnntParams checked_params(prnnHandle_t handle, const prnnRNNTLossOptions_t* options, const void* activations,
                          const int* targets, const int* frame_lengths, const int* target_lengths,
                          const int* range_begins) {
  check_options(rnnt_backend(handle), options);
  const prnnRNNTLossOptions_t& o = *options;
  require_not_null(activations, "activations");
  require_not_null(frame_lengths, "frameLengths");
  require_not_null(target_lengths, "targetLengths");
  const bool no_targets = (o.targetLayout == PRNN_TARGETS_PADDED ? o.maxTargets : o.targetElements) == 0;
  if (o.input != PRNN_LOSS_GATHERED && !no_targets) require_not_null(targets, "targets");
  if (o.layout == PRNN_RNNT_PRUNED) require_not_null(range_begins, "rangeBegins");
  require_aligned(type_size(o.dataType), {{activations, "activations"}});
  require_aligned(sizeof(int), {{targets, "targets"},
                                {frame_lengths, "frameLengths"},
                                {target_lengths, "targetLengths"},
                                {range_begins, "rangeBegins"}});
  RnntParams params{o, activations, targets, frame_lengths, target_lengths, range_begins, nullptr};
  if (handle->is_cpu()) check_contents(params);
  return params;
}

}  // namespace
}  // namespace prnn

using namespace prnn;

extern "C" prnnStatus_t prnnInitRNNTLossOptions(prnnRNNTLossOptions_t* options) {
  return guarded(nullptr, [&] {
    require_not_null(options, "options");
    *options = prnnRNNTLossOptions_t{};  // the defaults are the zeros
  });
}

extern "C" prnnStatus_t prnnGetRNNTLossWorkspaceSize(prnnHandle_t handle, const prnnRNNTLossOptions_t* options,
                                                     size_t* sizeInBytes) {
  return guarded(handle, [&] {
    const RnntBackend& backend = rnnt_backend(handle);
    check_options(backend, options);
    write_size(backend.loss_workspace_size(*options), sizeInBytes);
  });
}

extern "C" prnnStatus_t prnnGetRNNTLossReserveSize(prnnHandle_t handle, const prnnRNNTLossOptions_t* options,
                                                   size_t* sizeInBytes) {
  return guarded(handle, [&] {
    const RnntBackend& backend = rnnt_backend(handle);
    check_options(backend, options);
    write_size(backend.loss_reserve_size(*options), sizeInBytes);
  });
}

extern "C" prnnStatus_t prnnRNNTLoss(prnnHandle_t handle, const prnnRNNTLossOptions_t* options, const void* activations,
                                     const int* targets, const int* frameLengths, const int* targetLengths,
                                     const int* rangeBegins, void* costs, void* gradients, void* workspace,
                                     size_t workspaceSizeInBytes) {
  return guarded(handle, [&] {
    run_loss(handle, rnnt_backend(handle),
             checked_params(handle, options, activations, targets, frameLengths, targetLengths, rangeBegins), costs,
             gradients, workspace, workspaceSizeInBytes);
  });
}

extern "C" prnnStatus_t prnnRNNTLossForward(prnnHandle_t handle, const prnnRNNTLossOptions_t* options,
                                            const void* activations, const int* targets, const int* frameLengths,
                                            const int* targetLengths, const int* rangeBegins, void* costs,
                                            void* workspace, size_t workspaceSizeInBytes, void* reserveSpace,
                                            size_t reserveSizeInBytes) {
  return guarded(handle, [&] {
    run_loss_forward(handle, rnnt_backend(handle),
                     checked_params(handle, options, activations, targets, frameLengths, targetLengths, rangeBegins),
                     costs, workspace, workspaceSizeInBytes, reserveSpace, reserveSizeInBytes);
  });
}

extern "C" prnnStatus_t prnnRNNTLossBackward(prnnHandle_t handle, const prnnRNNTLossOptions_t* options,
                                             const void* activations, const int* targets, const int* frameLengths,
                                             const int* targetLengths, const int* rangeBegins,
                                             const void* costGradients, void* gradients, const void* reserveSpace,
                                             size_t reserveSizeInBytes) {
  return guarded(handle, [&] {
    run_loss_backward(handle, rnnt_backend(handle),
                      checked_params(handle, options, activations, targets, frameLengths, targetLengths, rangeBegins),
                      costGradients, gradients, reserveSpace, reserveSizeInBytes);
  });
}

extern "C" prnnStatus_t prnnGetRNNTAlignWorkspaceSize(prnnHandle_t handle, const prnnRNNTLossOptions_t* options,
                                                      size_t* sizeInBytes) {
  return guarded(handle, [&] {
    const RnntBackend& backend = rnnt_backend(handle);
    check_options(backend, options);
    write_size(backend.align_workspace_size(*options), sizeInBytes);
  });
}

extern "C" prnnStatus_t prnnRNNTAlign(prnnHandle_t handle, const prnnRNNTLossOptions_t* options,
                                      const void* activations, const int* targets, const int* frameLengths,
                                      const int* targetLengths, const int* rangeBegins, void* scores, int* frames,
                                      void* workspace, size_t workspaceSizeInBytes) {
  return guarded(handle, [&] {
    const RnntBackend& backend = rnnt_backend(handle);
    RnntParams params = checked_params(handle, options, activations, targets, frameLengths, targetLengths, rangeBegins);
    require_not_null(scores, "scores");
    require_aligned(cost_size(options->dataType), {{scores, "scores"}});
    require_aligned(sizeof(int), {{frames, "frames"}});
    if (options->maxTargets > 0) require_not_null(frames, "frames");
    set_workspace(params, workspace, workspaceSizeInBytes, 0, backend.align_workspace_size(*options));
    backend.align(handle, params, scores, frames);
  });
}
