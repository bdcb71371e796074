// prnnCTCLoss and its kin: checks every argument, then calls the backend of the handle's device.
#include "core/loss_calls.h"
#include "ctc/ctc.h"

namespace prnn {
namespace {

const CtcBackend& ctc_backend(prnnHandle_t handle) {
  require_handle(handle);
  return handle->is_cpu() ? cpu_ctc_backend() : cuda_ctc_backend();
}

void check_options(const CtcBackend& backend, const prnnCTCLossOptions_t* options) {
  require_not_null(options, "options");
  const prnnCTCLossOptions_t& o = *options;
  require_known_type(o.dataType, "dataType");
  require_enumerator(o.input, {PRNN_LOSS_LOGITS, PRNN_LOSS_LOG_PROBS}, "input");
  require_enumerator(o.targetLayout, {PRNN_TARGETS_PADDED, PRNN_TARGETS_CONCATENATED}, "targetLayout");
  require_sizes(o, std::numeric_limits<int>::max() - 3);
  require_in_range(o.blank, 0, o.classes - 1, "blank");
  if (o.targetLayout == PRNN_TARGETS_CONCATENATED) {
    require_at_least(o.targetElements, 0, "targetElements");
    product_of_sizes({o.maxFrames, o.targetElements});
  }
  product_of_sizes({o.batch, o.maxFrames, o.classes});
  product_of_sizes({o.batch, o.maxFrames, 2 * o.maxTargets + 4});
  if (o.timeStride != 0 || o.batchStride != 0) {
    // Frames of different times or sequences must not share elements. One of the two is the outer dimension.
    const bool time_outer = o.maxFrames > 1 && (o.batch == 1 || o.timeStride >= o.batchStride);
    const int64_t inner = time_outer ? o.batchStride : o.timeStride;
    const int64_t outer = time_outer ? o.timeStride : o.batchStride;
    const int64_t inner_size = time_outer ? o.batch : o.maxFrames;
    const int64_t outer_size = time_outer ? o.maxFrames : o.batch;
    const bool overlap =
        (inner_size > 1 && inner < o.classes) ||
        (outer_size > 1 && outer < (inner_size > 1 ? product_of_sizes({inner, inner_size - 1}) : 0) + o.classes);
    if (o.timeStride < 0 || o.batchStride < 0 || overlap)
      fail(PRNN_STATUS_BAD_PARAM,
           "timeStride is %" PRId64 " and batchStride %" PRId64 "; with these, some of the {%" PRId64 ", %" PRId64
           ", %" PRId64 "} elements would coincide",
           o.timeStride, o.batchStride, o.maxFrames, o.batch, o.classes);
    product_of_sizes({outer, outer_size});
  }
  require_reduction(o.reduction);
  backend.require_supported(o.dataType);
}

// The arguments that all calls on activations share.
CtcParams checked_params(prnnHandle_t handle, const prnnCTCLossOptions_t* options, const void* activations,
                         const int* targets, const int* frame_lengths, const int* target_lengths) {
  check_options(ctc_backend(handle), options);
  CtcParams params{*options, activations, targets, frame_lengths, target_lengths, nullptr};
  prnnCTCLossOptions_t& o = params.options;
  if (o.timeStride == 0 && o.batchStride == 0) {
    o.timeStride = o.batch * o.classes;
    o.batchStride = o.classes;
  }
  require_not_null(activations, "activations");
  require_not_null(frame_lengths, "frameLengths");
  require_not_null(target_lengths, "targetLengths");
  const bool no_targets = (o.targetLayout == PRNN_TARGETS_PADDED ? o.maxTargets : o.targetElements) == 0;
  if (!no_targets) require_not_null(targets, "targets");
  require_aligned(type_size(o.dataType), {{activations, "activations"}});
  require_aligned(sizeof(int),
                  {{targets, "targets"}, {frame_lengths, "frameLengths"}, {target_lengths, "targetLengths"}});
  if (handle->is_cpu()) {
    require_lengths(frame_lengths, o.batch, 0, o.maxFrames, "frameLengths");
    require_lengths(target_lengths, o.batch, 0, o.maxTargets, "targetLengths");
    require_targets(targets, o.targetLayout, target_lengths, o.batch, o.maxTargets, o.targetElements, o.classes,
                    o.blank);
  }
  return params;
}

}  // namespace
}  // namespace prnn

using namespace prnn;

extern "C" prnnStatus_t prnnInitCTCLossOptions(prnnCTCLossOptions_t* options) {
  return guarded(nullptr, [&] {
    require_not_null(options, "options");
    *options = prnnCTCLossOptions_t{};  // the defaults are the zeros
  });
}

extern "C" prnnStatus_t prnnGetCTCLossWorkspaceSize(prnnHandle_t handle, const prnnCTCLossOptions_t* options,
                                                    size_t* sizeInBytes) {
  return guarded(handle, [&] {
    const CtcBackend& backend = ctc_backend(handle);
    check_options(backend, options);
    write_size(backend.loss_workspace_size(*options), sizeInBytes);
  });
}

extern "C" prnnStatus_t prnnGetCTCLossReserveSize(prnnHandle_t handle, const prnnCTCLossOptions_t* options,
                                                  size_t* sizeInBytes) {
  return guarded(handle, [&] {
    const CtcBackend& backend = ctc_backend(handle);
    check_options(backend, options);
    write_size(backend.loss_reserve_size(*options), sizeInBytes);
  });
}

extern "C" prnnStatus_t prnnCTCLoss(prnnHandle_t handle, const prnnCTCLossOptions_t* options, const void* activations,
                                    const int* targets, const int* frameLengths, const int* targetLengths, void* costs,
                                    void* gradients, void* workspace, size_t workspaceSizeInBytes) {
  return guarded(handle, [&] {
    run_loss(handle, ctc_backend(handle),
             checked_params(handle, options, activations, targets, frameLengths, targetLengths), costs, gradients,
             workspace, workspaceSizeInBytes);
  });
}

extern "C" prnnStatus_t prnnCTCLossForward(prnnHandle_t handle, const prnnCTCLossOptions_t* options,
                                           const void* activations, const int* targets, const int* frameLengths,
                                           const int* targetLengths, void* costs, void* workspace,
                                           size_t workspaceSizeInBytes, void* reserveSpace, size_t reserveSizeInBytes) {
  return guarded(handle, [&] {
    run_loss_forward(handle, ctc_backend(handle),
                     checked_params(handle, options, activations, targets, frameLengths, targetLengths), costs,
                     workspace, workspaceSizeInBytes, reserveSpace, reserveSizeInBytes);
  });
}

extern "C" prnnStatus_t prnnCTCLossBackward(prnnHandle_t handle, const prnnCTCLossOptions_t* options,
                                            const void* activations, const int* targets, const int* frameLengths,
                                            const int* targetLengths, const void* costGradients, void* gradients,
                                            const void* reserveSpace, size_t reserveSizeInBytes) {
  return guarded(handle, [&] {
    run_loss_backward(handle, ctc_backend(handle),
                      checked_params(handle, options, activations, targets, frameLengths, targetLengths), costGradients,
                      gradients, reserveSpace, reserveSizeInBytes);
  });
}

extern "C" prnnStatus_t prnnGetCTCAlignWorkspaceSize(prnnHandle_t handle, const prnnCTCLossOptions_t* options,
                                                     size_t* sizeInBytes) {
  return guarded(handle, [&] {
    const CtcBackend& backend = ctc_backend(handle);
    check_options(backend, options);
    write_size(backend.align_workspace_size(*options), sizeInBytes);
  });
}

extern "C" prnnStatus_t prnnCTCAlign(prnnHandle_t handle, const prnnCTCLossOptions_t* options, const void* activations,
                                     const int* targets, const int* frameLengths, const int* targetLengths,
                                     void* scores, int* begins, int* ends, void* workspace,
                                     size_t workspaceSizeInBytes) {
  return guarded(handle, [&] {
    const CtcBackend& backend = ctc_backend(handle);
    CtcParams params = checked_params(handle, options, activations, targets, frameLengths, targetLengths);
    require_not_null(scores, "scores");
    require_aligned(cost_size(options->dataType), {{scores, "scores"}});
    require_aligned(sizeof(int), {{begins, "begins"}, {ends, "ends"}});
    if (options->maxTargets > 0) {
      require_not_null(begins, "begins");
      require_not_null(ends, "ends");
    }
    set_workspace(params, workspace, workspaceSizeInBytes, 0, backend.align_workspace_size(*options));
    backend.align(handle, params, scores, begins, ends);
  });
}
