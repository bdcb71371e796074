// prnnJointRNNTLoss and its kin: checks every argument, then calls the backend of the handle's device.
#include "rnnt/joint.h"

#include "core/loss_checks.h"

namespace prnn {
namespace {

const JointBackend& joint_backend(prnnHandle_t handle) {
  require_handle(handle);
  if (handle->is_cpu())
    fail(PRNN_STATUS_NOT_SUPPORTED,
         "prnnJointRNNTLoss needs a CUDA handle; on a CPU make the logits and call prnnRNNTLoss");
  return cuda_joint_backend();
}

void check_options(const prnnJointRNNTLossOptions_t* options) {
  require_not_null(options, "options");
  const prnnJointRNNTLossOptions_t& o = *options;
  require_known_type(o.dataType, "dataType");
  require_enumerator(o.activation, {PRNN_JOINT_TANH, PRNN_JOINT_RELU}, "activation");
  require_enumerator(o.type, {PRNN_RNNT_REGULAR, PRNN_RNNT_MODIFIED, PRNN_RNNT_CONSTRAINED, PRNN_RNNT_FINAL_BLANK},
                     "type");
  const int64_t most = std::numeric_limits<int>::max() - 16;  // sizes are padded to eights
  require_sizes(o, most);
  require_in_range(o.joinerSize, 1, most, "joinerSize");
  require_in_range(o.blank, 0, o.classes - 1, "blank");
  require_at_least(o.rows, 0, "rows");
  require_in_range(o.pruneRange, 0, o.maxTargets + 1, "pruneRange");
  require_in_range(o.chunkCells, 0, most, "chunkCells");
  product_of_sizes({o.batch, o.maxFrames + o.maxTargets, o.maxTargets + 1});
  product_of_sizes({o.batch, o.maxFrames, o.maxTargets + 1});
  product_of_sizes({o.batch, o.maxFrames + o.maxTargets + 1, o.joinerSize});
  product_of_sizes({o.classes, o.joinerSize});
  product_of_sizes({o.chunkCells, o.classes});
  product_of_sizes({o.chunkCells, o.joinerSize});
  product_of_sizes({o.rows, 64});
  require_gradient_options(o);
  require_delay_penalty(o.delayPenalty);
  if (!(o.dropout >= 0 && o.dropout < 1))
    fail(PRNN_STATUS_BAD_PARAM, "dropout is %g; it must be at least 0 and below 1", o.dropout);
}

JointParams checked_params(const prnnJointRNNTLossOptions_t* options, const void* encoder, const void* predictor,
                           const void* weight, const void* bias, const int* targets, const int* frame_lengths,
                           const int* target_lengths, const int* range_begins, const unsigned long long* dropout_seed) {
  check_options(options);
  require_not_null(encoder, "encoder");
  require_not_null(predictor, "predictor");
  require_not_null(weight, "weight");
  if (options->maxTargets > 0) require_not_null(targets, "targets");
  require_not_null(frame_lengths, "frameLengths");
  require_not_null(target_lengths, "targetLengths");
  if (options->pruneRange > 0) require_not_null(range_begins, "rangeBegins");
  if (options->dropout > 0) require_not_null(dropout_seed, "dropoutSeed");
  const prnnDataType_t type = options->dataType;
  require_aligned(type_size(type), {{encoder, "encoder"}, {predictor, "predictor"}, {weight, "weight"}});
  require_aligned(cost_size(type), {{bias, "bias"}});
  require_aligned(sizeof(int), {{targets, "targets"},
                                {frame_lengths, "frameLengths"},
                                {target_lengths, "targetLengths"},
                                {range_begins, "rangeBegins"}});
  require_aligned(sizeof(unsigned long long), {{dropout_seed, "dropoutSeed"}});
  return {*options,      encoder,        predictor,    weight,       bias,   targets,
          frame_lengths, target_lengths, range_begins, dropout_seed, nullptr};
}

JointGradients checked_gradients(prnnDataType_t type, void* encoder, void* predictor, void* weight, void* bias) {
  require_not_null(encoder, "encoderGradients");
  require_not_null(predictor, "predictorGradients");
  require_not_null(weight, "weightGradients");
  require_aligned(type_size(type),
                  {{encoder, "encoderGradients"}, {predictor, "predictorGradients"}, {weight, "weightGradients"}});
  require_aligned(cost_size(type), {{bias, "biasGradients"}});
  return {encoder, predictor, weight, bias};
}

}  // namespace
}  // namespace prnn

using namespace prnn;

extern "C" prnnStatus_t prnnInitJointRNNTLossOptions(prnnJointRNNTLossOptions_t* options) {
  return guarded(nullptr, [&] {
    require_not_null(options, "options");
    *options = prnnJointRNNTLossOptions_t{};  // the defaults are the zeros
  });
}

extern "C" prnnStatus_t prnnGetJointRNNTLossWorkspaceSize(prnnHandle_t handle,
                                                          const prnnJointRNNTLossOptions_t* options,
                                                          size_t* sizeInBytes) {
  return guarded(handle, [&] {
    const JointBackend& backend = joint_backend(handle);
    check_options(options);
    write_size(backend.workspace_size(handle, *options), sizeInBytes);
  });
}

extern "C" prnnStatus_t prnnGetJointRNNTLossReserveSize(prnnHandle_t handle, const prnnJointRNNTLossOptions_t* options,
                                                        size_t* sizeInBytes) {
  return guarded(handle, [&] {
    const JointBackend& backend = joint_backend(handle);
    check_options(options);
    write_size(backend.reserve_size(*options), sizeInBytes);
  });
}

extern "C" prnnStatus_t prnnJointRNNTLoss(prnnHandle_t handle, const prnnJointRNNTLossOptions_t* options,
                                          const void* encoder, const void* predictor, const void* weight,
                                          const void* bias, const int* targets, const int* frameLengths,
                                          const int* targetLengths, const int* rangeBegins,
                                          const unsigned long long* dropoutSeed, void* costs, void* encoderGradients,
                                          void* predictorGradients, void* weightGradients, void* biasGradients,
                                          void* workspace, size_t workspaceSizeInBytes) {
  return guarded(handle, [&] {
    const JointBackend& backend = joint_backend(handle);
    JointParams params = checked_params(options, encoder, predictor, weight, bias, targets, frameLengths, targetLengths,
                                        rangeBegins, dropoutSeed);
    require_costs(costs, options->dataType, nullptr);
    const JointGradients gradients =
        checked_gradients(options->dataType, encoderGradients, predictorGradients, weightGradients, biasGradients);
    // The reserve space lies at the front of the workspace.
    const size_t reserve = whole_blocks(backend.reserve_size(*options));
    require_space(workspace, workspaceSizeInBytes, reserve + backend.workspace_size(handle, *options), "workspace");
    params.workspace = static_cast<char*>(workspace) + reserve;
    backend.forward(handle, params, costs, workspace);
    backend.backward(handle, params, nullptr, gradients, workspace);
  });
}

extern "C" prnnStatus_t prnnJointRNNTLossForward(prnnHandle_t handle, const prnnJointRNNTLossOptions_t* options,
                                                 const void* encoder, const void* predictor, const void* weight,
                                                 const void* bias, const int* targets, const int* frameLengths,
                                                 const int* targetLengths, const int* rangeBegins,
                                                 const unsigned long long* dropoutSeed, void* costs, void* workspace,
                                                 size_t workspaceSizeInBytes, void* reserveSpace,
                                                 size_t reserveSizeInBytes) {
  return guarded(handle, [&] {
    const JointBackend& backend = joint_backend(handle);
    JointParams params = checked_params(options, encoder, predictor, weight, bias, targets, frameLengths, targetLengths,
                                        rangeBegins, dropoutSeed);
    require_costs(costs, options->dataType, nullptr);
    require_space(workspace, workspaceSizeInBytes, backend.workspace_size(handle, *options), "workspace");
    params.workspace = workspace;
    if (reserveSpace) require_space(reserveSpace, reserveSizeInBytes, backend.reserve_size(*options), "reserveSpace");
    backend.forward(handle, params, costs, reserveSpace);
  });
}

extern "C" prnnStatus_t prnnJointRNNTLossBackward(
    prnnHandle_t handle, const prnnJointRNNTLossOptions_t* options, const void* encoder, const void* predictor,
    const void* weight, const void* bias, const int* targets, const int* frameLengths, const int* targetLengths,
    const int* rangeBegins, const unsigned long long* dropoutSeed, const void* costGradients, void* encoderGradients,
    void* predictorGradients, void* weightGradients, void* biasGradients, void* workspace, size_t workspaceSizeInBytes,
    const void* reserveSpace, size_t reserveSizeInBytes) {
  return guarded(handle, [&] {
    const JointBackend& backend = joint_backend(handle);
    JointParams params = checked_params(options, encoder, predictor, weight, bias, targets, frameLengths, targetLengths,
                                        rangeBegins, dropoutSeed);
    const JointGradients gradients =
        checked_gradients(options->dataType, encoderGradients, predictorGradients, weightGradients, biasGradients);
    require_space(workspace, workspaceSizeInBytes, backend.workspace_size(handle, *options), "workspace");
    require_space(reserveSpace, reserveSizeInBytes, backend.reserve_size(*options), "reserveSpace");
    require_aligned(cost_size(options->dataType), {{costGradients, "costGradients"}});
    params.workspace = workspace;
    backend.backward(handle, params, costGradients, gradients, reserveSpace);
  });
}
