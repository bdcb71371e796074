// prnnJointRNNTLoss, prnnJointTDTLoss and their kin: checks every argument, then calls the backend of the handle's
// device.
#include "rnnt/joint.h"

#include <algorithm>

#include "core/loss_checks.h"
#include "rnnt/duration.h"

namespace prnn {
namespace {

void check_sizes(const JointOptions& o) {
  require_known_type(o.dataType, "dataType");
  require_enumerator(o.activation, {PRNN_JOINT_TANH, PRNN_JOINT_RELU}, "activation");
  const int64_t most = std::numeric_limits<int>::max() - 16 - PRNN_MAX_DURATIONS;  // sizes are padded to eights
  require_sizes(o, most);
  require_in_range(o.joinerSize, 1, most, "joinerSize");
  require_in_range(o.blank, 0, o.classes - 1, "blank");
  require_at_least(o.rows, 0, "rows");
  require_in_range(o.chunkCells, 0, most, "chunkCells");
  product_of_sizes({o.batch, o.maxFrames + o.maxTargets, o.maxTargets + 1});
  product_of_sizes({o.batch, o.maxFrames, o.maxTargets + 1});
  product_of_sizes({o.batch, o.maxFrames + o.maxTargets + 1, o.joinerSize});
  product_of_sizes({o.rows_of_weight(), o.joinerSize});
  product_of_sizes({o.chunkCells, o.rows_of_weight()});
  product_of_sizes({o.chunkCells, o.joinerSize});
  product_of_sizes({o.rows, 64});
  require_gradient_options(o);
  if (!(o.dropout >= 0 && o.dropout < 1))
    fail(PRNN_STATUS_BAD_PARAM, "dropout is %g; it must be at least 0 and below 1", o.dropout);
}

JointOptions checked_options(const prnnJointRNNTLossOptions_t* options) {
  require_not_null(options, "options");
  const JointOptions o{*options, {}};
  require_enumerator(o.type, {PRNN_RNNT_REGULAR, PRNN_RNNT_MODIFIED, PRNN_RNNT_CONSTRAINED, PRNN_RNNT_FINAL_BLANK},
                     "type");
  check_sizes(o);
  require_in_range(o.pruneRange, 0, o.maxTargets + 1, "pruneRange");
  require_delay_penalty(o.delayPenalty);
  return o;
}

JointOptions checked_options(const prnnJointTDTLossOptions_t* options) {
  require_not_null(options, "options");
  JointOptions o{};
  const auto copy = [&](auto& to) {
    to.dataType = options->dataType;
    to.batch = options->batch;
    to.maxFrames = options->maxFrames;
    to.maxTargets = options->maxTargets;
    to.classes = options->classes;
    to.blank = options->blank;
    to.zeroInfinity = options->zeroInfinity;
    to.fastEmitLambda = options->fastEmitLambda;
    to.clamp = options->clamp;
  };
  copy(static_cast<prnnJointRNNTLossOptions_t&>(o));
  copy(o.durations);
  o.activation = options->activation;
  o.rows = options->rows;
  o.joinerSize = options->joinerSize;
  o.chunkCells = options->chunkCells;
  o.dropout = options->dropout;
  o.allowTf32 = options->allowTf32;
  o.durations.durationCount = options->durationCount;
  std::copy_n(options->durations, PRNN_MAX_DURATIONS, o.durations.durations);
  o.durations.sigma = options->sigma;
  o.durations.omega = options->omega;
  require_durations(o.durations);
  check_sizes(o);
  return o;
}

const JointBackend& backend_of(prnnHandle_t handle, const char* name, const char* on_logits) {
  require_handle(handle);
  if (handle->is_cpu())
    fail(PRNN_STATUS_NOT_SUPPORTED, "%s needs a CUDA handle; on a CPU make the logits and call %s", name, on_logits);
  return cuda_joint_backend();
}
const JointBackend& backend_for(prnnHandle_t handle, const prnnJointRNNTLossOptions_t*) {
  return backend_of(handle, "prnnJointRNNTLoss", "prnnRNNTLoss");
}
const JointBackend& backend_for(prnnHandle_t handle, const prnnJointTDTLossOptions_t*) {
  return backend_of(handle, "prnnJointTDTLoss", "prnnDurationRNNTLoss");
}

// A call's handle and options. Options: of either loss.
struct JointCall {
  const JointBackend& backend;
  prnnHandle_t handle;
  JointOptions options;

  template <class Options>
  JointCall(prnnHandle_t handle, const Options* given)
      : backend(backend_for(handle, given)), handle(handle), options(checked_options(given)) {}
  size_t workspace_size() const { return backend.workspace_size(handle, options); }
  size_t reserve_size() const { return backend.reserve_size(options); }
  void check(const JointParams& params) const {
    require_not_null(params.encoder, "encoder");
    require_not_null(params.predictor, "predictor");
    require_not_null(params.weight, "weight");
    if (options.maxTargets > 0) require_not_null(params.targets, "targets");
    require_not_null(params.frame_lengths, "frameLengths");
    require_not_null(params.target_lengths, "targetLengths");
    if (options.pruneRange > 0) require_not_null(params.range_begins, "rangeBegins");
    if (options.dropout > 0) require_not_null(params.dropout_seed, "dropoutSeed");
    const prnnDataType_t type = options.dataType;
    require_aligned(type_size(type),
                    {{params.encoder, "encoder"}, {params.predictor, "predictor"}, {params.weight, "weight"}});
    require_aligned(cost_size(type), {{params.bias, "bias"}});
    require_aligned(sizeof(int), {{params.targets, "targets"},
                                  {params.frame_lengths, "frameLengths"},
                                  {params.target_lengths, "targetLengths"},
                                  {params.range_begins, "rangeBegins"}});
    require_aligned(sizeof(unsigned long long), {{params.dropout_seed, "dropoutSeed"}});
  }
  void check(const JointGradients& gradients) const {
    require_not_null(gradients.encoder, "encoderGradients");
    require_not_null(gradients.predictor, "predictorGradients");
    require_not_null(gradients.weight, "weightGradients");
    require_aligned(type_size(options.dataType), {{gradients.encoder, "encoderGradients"},
                                                  {gradients.predictor, "predictorGradients"},
                                                  {gradients.weight, "weightGradients"}});
    require_aligned(cost_size(options.dataType), {{gradients.bias, "biasGradients"}});
  }

  // These three finish `params`, whose options and workspace are left to them.
  void run(JointParams params, void* costs, const JointGradients& gradients, void* workspace, size_t size) const {
    params.options = options;
    check(params);
    require_costs(costs, options.dataType, nullptr);
    check(gradients);
    // The reserve space lies at the front of the workspace.
    const size_t reserve = whole_blocks(reserve_size());
    require_space(workspace, size, reserve + workspace_size(), "workspace");
    params.workspace = static_cast<char*>(workspace) + reserve;
    backend.forward(handle, params, costs, workspace);
    backend.backward(handle, params, nullptr, gradients, workspace);
  }
  void run_forward(JointParams params, void* costs, void* workspace, size_t size, void* reserve,
                   size_t given_reserve) const {
    params.options = options;
    check(params);
    require_costs(costs, options.dataType, nullptr);
    require_space(workspace, size, workspace_size(), "workspace");
    params.workspace = workspace;
    if (reserve) require_space(reserve, given_reserve, reserve_size(), "reserveSpace");
    backend.forward(handle, params, costs, reserve);
  }
  void run_backward(JointParams params, const void* cost_gradients, const JointGradients& gradients, void* workspace,
                    size_t size, const void* reserve, size_t given_reserve) const {
    params.options = options;
    check(params);
    check(gradients);
    require_space(workspace, size, workspace_size(), "workspace");
    require_space(reserve, given_reserve, reserve_size(), "reserveSpace");
    require_aligned(cost_size(options.dataType), {{cost_gradients, "costGradients"}});
    params.workspace = workspace;
    backend.backward(handle, params, cost_gradients, gradients, reserve);
  }
};

template <class Options>
prnnStatus_t init(Options* options) {
  return guarded(nullptr, [&] {
    require_not_null(options, "options");
    *options = Options{};  // the defaults are the zeros
  });
}
template <class Options>
prnnStatus_t query_workspace(prnnHandle_t handle, const Options* options, size_t* size) {
  return guarded(handle, [&] { write_size(JointCall(handle, options).workspace_size(), size); });
}
template <class Options>
prnnStatus_t query_reserve(prnnHandle_t handle, const Options* options, size_t* size) {
  return guarded(handle, [&] { write_size(JointCall(handle, options).reserve_size(), size); });
}

}  // namespace
}  // namespace prnn

using namespace prnn;

extern "C" prnnStatus_t prnnInitJointRNNTLossOptions(prnnJointRNNTLossOptions_t* options) { return init(options); }

extern "C" prnnStatus_t prnnGetJointRNNTLossWorkspaceSize(prnnHandle_t handle,
                                                          const prnnJointRNNTLossOptions_t* options,
                                                          size_t* sizeInBytes) {
  return query_workspace(handle, options, sizeInBytes);
}

extern "C" prnnStatus_t prnnGetJointRNNTLossReserveSize(prnnHandle_t handle, const prnnJointRNNTLossOptions_t* options,
                                                        size_t* sizeInBytes) {
  return query_reserve(handle, options, sizeInBytes);
}

extern "C" prnnStatus_t prnnJointRNNTLoss(prnnHandle_t handle, const prnnJointRNNTLossOptions_t* options,
                                          const void* encoder, const void* predictor, const void* weight,
                                          const void* bias, const int* targets, const int* frameLengths,
                                          const int* targetLengths, const int* rangeBegins,
                                          const unsigned long long* dropoutSeed, void* costs, void* encoderGradients,
                                          void* predictorGradients, void* weightGradients, void* biasGradients,
                                          void* workspace, size_t workspaceSizeInBytes) {
  return guarded(handle, [&] {
    JointCall(handle, options)
        .run({{}, encoder, predictor, weight, bias, targets, frameLengths, targetLengths, rangeBegins, dropoutSeed, {}},
             costs, {encoderGradients, predictorGradients, weightGradients, biasGradients}, workspace,
             workspaceSizeInBytes);
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
    JointCall(handle, options)
        .run_forward(
            {{}, encoder, predictor, weight, bias, targets, frameLengths, targetLengths, rangeBegins, dropoutSeed, {}},
            costs, workspace, workspaceSizeInBytes, reserveSpace, reserveSizeInBytes);
  });
}

extern "C" prnnStatus_t prnnJointRNNTLossBackward(
    prnnHandle_t handle, const prnnJointRNNTLossOptions_t* options, const void* encoder, const void* predictor,
    const void* weight, const void* bias, const int* targets, const int* frameLengths, const int* targetLengths,
    const int* rangeBegins, const unsigned long long* dropoutSeed, const void* costGradients, void* encoderGradients,
    void* predictorGradients, void* weightGradients, void* biasGradients, void* workspace, size_t workspaceSizeInBytes,
    const void* reserveSpace, size_t reserveSizeInBytes) {
  return guarded(handle, [&] {
    JointCall(handle, options)
        .run_backward(
            {{}, encoder, predictor, weight, bias, targets, frameLengths, targetLengths, rangeBegins, dropoutSeed, {}},
            costGradients, {encoderGradients, predictorGradients, weightGradients, biasGradients}, workspace,
            workspaceSizeInBytes, reserveSpace, reserveSizeInBytes);
  });
}

extern "C" prnnStatus_t prnnInitJointTDTLossOptions(prnnJointTDTLossOptions_t* options) { return init(options); }

extern "C" prnnStatus_t prnnGetJointTDTLossWorkspaceSize(prnnHandle_t handle, const prnnJointTDTLossOptions_t* options,
                                                         size_t* sizeInBytes) {
  return query_workspace(handle, options, sizeInBytes);
}

extern "C" prnnStatus_t prnnGetJointTDTLossReserveSize(prnnHandle_t handle, const prnnJointTDTLossOptions_t* options,
                                                       size_t* sizeInBytes) {
  return query_reserve(handle, options, sizeInBytes);
}

extern "C" prnnStatus_t prnnJointTDTLoss(prnnHandle_t handle, const prnnJointTDTLossOptions_t* options,
                                         const void* encoder, const void* predictor, const void* weight,
                                         const void* bias, const int* targets, const int* frameLengths,
                                         const int* targetLengths, const unsigned long long* dropoutSeed, void* costs,
                                         void* encoderGradients, void* predictorGradients, void* weightGradients,
                                         void* biasGradients, void* workspace, size_t workspaceSizeInBytes) {
  return guarded(handle, [&] {
    JointCall(handle, options)
        .run({{}, encoder, predictor, weight, bias, targets, frameLengths, targetLengths, nullptr, dropoutSeed, {}},
             costs, {encoderGradients, predictorGradients, weightGradients, biasGradients}, workspace,
             workspaceSizeInBytes);
  });
}

extern "C" prnnStatus_t prnnJointTDTLossForward(prnnHandle_t handle, const prnnJointTDTLossOptions_t* options,
                                                const void* encoder, const void* predictor, const void* weight,
                                                const void* bias, const int* targets, const int* frameLengths,
                                                const int* targetLengths, const unsigned long long* dropoutSeed,
                                                void* costs, void* workspace, size_t workspaceSizeInBytes,
                                                void* reserveSpace, size_t reserveSizeInBytes) {
  return guarded(handle, [&] {
    JointCall(handle, options)
        .run_forward(
            {{}, encoder, predictor, weight, bias, targets, frameLengths, targetLengths, nullptr, dropoutSeed, {}},
            costs, workspace, workspaceSizeInBytes, reserveSpace, reserveSizeInBytes);
  });
}

extern "C" prnnStatus_t prnnJointTDTLossBackward(prnnHandle_t handle, const prnnJointTDTLossOptions_t* options,
                                                 const void* encoder, const void* predictor, const void* weight,
                                                 const void* bias, const int* targets, const int* frameLengths,
                                                 const int* targetLengths, const unsigned long long* dropoutSeed,
                                                 const void* costGradients, void* encoderGradients,
                                                 void* predictorGradients, void* weightGradients, void* biasGradients,
                                                 void* workspace, size_t workspaceSizeInBytes, const void* reserveSpace,
                                                 size_t reserveSizeInBytes) {
  return guarded(handle, [&] {
    JointCall(handle, options)
        .run_backward(
            {{}, encoder, predictor, weight, bias, targets, frameLengths, targetLengths, nullptr, dropoutSeed, {}},
            costGradients, {encoderGradients, predictorGradients, weightGradients, biasGradients}, workspace,
            workspaceSizeInBytes, reserveSpace, reserveSizeInBytes);
  });
}
