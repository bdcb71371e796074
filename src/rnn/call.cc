#include "rnn/call.h"

#include "core/handle.h"
#include "rnn/reserve.h"
#include "rnn/validate.h"

namespace prnn {
namespace {

// Throws BAD_PARAM unless a training call with dropout between layers has states, set with a handle of its device.
void require_dropout_states(const RnnProblem& problem, const prnnRNNStruct& rnn, const prnnContext& context) {
  if (problem.dropout.probability == 0) return;
  if (problem.dropout.states == nullptr) {
    fail(PRNN_STATUS_BAD_PARAM, "dropout %g between layers needs states; prnnSetDropoutDescriptor was given NULL",
         static_cast<double>(problem.dropout.probability));
  }
  if (rnn.dropout->device != context.device) {
    fail(PRNN_STATUS_BAD_PARAM,
         "the dropout descriptor of rnnDesc was set with a handle of device %d, this one is of device %d (-1: CPU)",
         rnn.dropout->device, context.device);
  }
}

// Throws BAD_PARAM unless the states and masks of the problem that every call reads are aligned.
void require_aligned_states(const RnnProblem& problem) {
  require_aligned(type_size(problem.type), {{problem.extras.resetHx, "extras->resetHx"},
                                            {problem.extras.resetCx, "extras->resetCx"},
                                            {problem.masks.recurrent, "masks->recurrent"}});
  if (problem.takes_gates()) require_aligned(type_size(problem.type), {{problem.masks.zoneout, "masks->zoneout"}});
}

// Throws BAD_PARAM unless a workspace or reserve space has at least `needed` bytes.
void require_space(const void* space, size_t size, size_t needed, const char* space_name, const char* size_name) {
  if (needed == 0) return;
  require_not_null(space, space_name);
  if (size < needed) fail(PRNN_STATUS_BAD_PARAM, "%s is %zu; this call needs %zu bytes", size_name, size, needed);
}

// The arrays that every call needs, and those that may be NULL.
void require_arrays(const RnnProblem& problem, std::initializer_list<NamedArray> needed,
                    std::initializer_list<NamedArray> optional) {
  for (const NamedArray& array : needed) require_not_null(array.data, array.name);
  require_aligned(type_size(problem.type), needed);
  require_aligned(type_size(problem.type), optional);
  require_aligned_states(problem);
}

// Frozen layers (prnnSetRNNFrozenLayers) have no gradients of data.
void require_no_data_gradients(const RnnProblem& problem, std::initializer_list<NamedArray> gradients) {
  if (problem.frozen == 0) return;
  for (const NamedArray& gradient : gradients) {
    if (gradient.data == nullptr) continue;
    fail(PRNN_STATUS_BAD_PARAM,
         "%s is given, but the lowest %lld layers are frozen (prnnSetRNNFrozenLayers); it must be "
         "NULL",
         gradient.name, static_cast<long long>(problem.frozen));
  }
}

// Checks what LSTMs on the input of their gates have besides, and other layers do not.
void check_gates(prnnHandle_t handle, const RnnProblem& problem, const prnnRNNNorm_t* norm, const int* lengths) {
  if (problem.normalizes()) {
    require_not_null(norm, "norm");
    const std::initializer_list<NamedArray> parameters = {{norm->gateGain, "norm->gateGain"},
                                                          {norm->gateBias, "norm->gateBias"},
                                                          {norm->cellGain, "norm->cellGain"},
                                                          {norm->cellBias, "norm->cellBias"}};
    for (const NamedArray& parameter : parameters) require_not_null(parameter.data, parameter.name);
    require_aligned(type_size(problem.type), parameters);
  } else if (norm != nullptr) {
    fail(PRNN_STATUS_BAD_PARAM, "norm is given, but the layer is not normalised (prnnSetRNNNormalization)");
  }
  if (lengths == nullptr) return;
  if (!problem.takes_gates()) {
    fail(PRNN_STATUS_BAD_PARAM, "lengths are given; only an LSTM with PRNN_GATES_INPUT takes them");
  }
  require_aligned(sizeof(int), {{lengths, "lengths"}});
  for (int64_t n = 0; n < problem.max_batch() && handle->is_cpu(); ++n) {
    if (lengths[n] >= 0 && lengths[n] <= problem.steps()) continue;
    fail(PRNN_STATUS_BAD_PARAM, "lengths[%lld] is %d; it must be 0 to %lld", static_cast<long long>(n), lengths[n],
         static_cast<long long>(problem.steps()));
  }
}

// An LSTM on the input of its gates has one backward run, of data and weights; other layers have two.
void require_backward_runs(const RnnProblem& problem, int runs) {
  if (problem.takes_gates() == (runs == 1)) return;
  fail(PRNN_STATUS_NOT_SUPPORTED, runs == 2 ? "an LSTM with PRNN_GATES_INPUT has one backward run, prnnRunRNNBackward"
                                            : "prnnRunRNNBackward is of LSTMs with PRNN_GATES_INPUT; other layers have "
                                              "prnnRunRNNBackwardData and prnnRunRNNBackwardWeights");
}

// Checks the workspace of the call's arguments.
template <class Args>
void check_workspace(prnnHandle_t handle, const CallPlan& plan, const Args& args) {
  require_space(args.workspace, args.workspaceSize, plan.workspace, "workspace", "workSpaceSizeInBytes");
  if (!handle->is_cpu()) require_aligned(16, {{args.workspace, "workspace"}});
}

// Replaces the reserve space of the call's arguments by the backend's part of it.
template <class Args>
void take_reserve(prnnHandle_t handle, const CallPlan& plan, Args* args) {
  require_space(args->reserve, args->reserveSize, plan.reserve, "reserveSpace", "reserveSpaceSizeInBytes");
  if (!handle->is_cpu()) require_aligned(16, {{args->reserve, "reserveSpace"}});
  args->reserve = static_cast<char*>(args->reserve) + reserve_header_size(*handle);
  args->keeps_gates = args->reserveSize >= plan.retained_reserve;
}

// Takes the reserve space of a backward call that comes after `stage`, once its header is checked.
template <class Args>
void take_filled_reserve(prnnHandle_t handle, const CallPlan& plan, const RnnProblem& problem, TrainingStage stage,
                         Args* args) {
  void* const reserve = args->reserve;
  take_reserve(handle, plan, args);
  if (!handle->is_cpu()) return;
  args->keeps_gates = open_reserve(handle, *plan.backend, problem, reserve, args->reserveSize, stage);
}

}  // namespace

CallPlan plan_call(prnnHandle_t handle, const prnnRNNStruct& rnn, const RnnProblem& problem) {
  CallPlan plan{handle->is_cpu() ? cpu_rnn_backend(problem) : cuda_rnn_backend(handle, rnn.backend, problem), 0, 0, 0};
  plan.workspace = plan.backend->workspace_size(handle, problem);
  if (!problem.training) return plan;
  const size_t header = reserve_header_size(*handle);
  plan.reserve = header + plan.backend->reserve_size(handle, problem, false);
  plan.retained_reserve = header + plan.backend->reserve_size(handle, problem, true);
  return plan;
}

void run_forward(prnnHandle_t handle, const prnnRNNStruct& rnn, RnnProblem& problem, const prnnRNNForwardArgs_t& given,
                 const CallPlan* plan) {
  RnnForwardArgs args{given};
  if (problem.cell_states() == 0) args.cx = args.cy = nullptr;
  require_arrays(
      problem, {{args.x, "x"}, {args.w, "w"}, {args.y, "y"}},
      {{args.hx, "hx"}, {args.cx, "cx"}, {args.hy, "hy"}, {args.cy, "cy"}, {problem.extras.cells, "extras->cells"}});
  check_gates(handle, problem, args.norm, args.lengths);
  if (problem.training) require_dropout_states(problem, rnn, *handle);
  if (!problem.training && problem.extras.cells != nullptr) {
    fail(PRNN_STATUS_NOT_SUPPORTED, "extras->cells is given; only prnnRNNForwardTraining fills it");
  }
  const auto bits = reinterpret_cast<uintptr_t>(args.y) | reinterpret_cast<uintptr_t>(args.w);
  problem.aligned = bits % 16 == 0;
  const CallPlan found = plan != nullptr && problem.aligned ? *plan : plan_call(handle, rnn, problem);
  check_workspace(handle, found, args);
  if (problem.training) take_reserve(handle, found, &args);
  found.backend->forward(handle, problem, args);
  if (!problem.training) return;
  stamp_reserve(*handle, given.reserve, problem, TrainingStage::kForward, args.keeps_gates);
}

void run_backward_data(prnnHandle_t handle, const prnnRNNStruct& rnn, RnnProblem& problem,
                       const prnnRNNBackwardDataArgs_t& given, const CallPlan* plan) {
  require_backward_runs(problem, 2);
  RnnBackwardDataArgs args{given};
  if (problem.cell_states() == 0) args.dcy = args.cx = args.dcx = nullptr;
  problem.gives_dx = args.dx != nullptr;
  problem.aligned = true;  // no backward kernel depends on the forward call's data
  const std::initializer_list<NamedArray> gradients = {{args.dx, "dx"},
                                                       {args.dhx, "dhx"},
                                                       {args.dcx, "dcx"},
                                                       {problem.extras.dresetHx, "extras->dresetHx"},
                                                       {problem.extras.dresetCx, "extras->dresetCx"}};
  require_arrays(problem, {{args.y, "y"}, {args.dy, "dy"}, {args.w, "w"}},
                 {{args.dhy, "dhy"},
                  {args.dcy, "dcy"},
                  {args.hx, "hx"},
                  {args.cx, "cx"},
                  {problem.extras.dcells, "extras->dcells"}});
  require_aligned(type_size(problem.type), gradients);
  require_no_data_gradients(problem, gradients);
  const CallPlan found = plan != nullptr ? *plan : plan_call(handle, rnn, problem);
  check_workspace(handle, found, args);
  take_filled_reserve(handle, found, problem, TrainingStage::kForward, &args);
  found.backend->backward_data(handle, problem, args);
  stamp_reserve(*handle, given.reserve, problem, TrainingStage::kBackwardData, args.keeps_gates);
}

void run_backward_weights(prnnHandle_t handle, const prnnRNNStruct& rnn, RnnProblem& problem,
                          const prnnRNNBackwardWeightsArgs_t& given, const CallPlan* plan) {
  require_backward_runs(problem, 2);
  RnnBackwardWeightsArgs args{given};
  problem.aligned = true;
  require_arrays(problem, {{args.x, "x"}, {args.y, "y"}, {args.dw, "dw"}}, {{args.hx, "hx"}});
  if (rnn.wgrad_mode == PRNN_WGRAD_MODE_SET && !handle->is_cpu()) {
    fail(PRNN_STATUS_NOT_SUPPORTED,
         "PRNN_WGRAD_MODE_SET (prnnSetRNNWgradMode) is of CPU handles; on a GPU gradients "
         "are added to dw, which is cleared before");
  }
  args.adds = rnn.wgrad_mode == PRNN_WGRAD_MODE_ADD;
  const CallPlan found = plan != nullptr ? *plan : plan_call(handle, rnn, problem);
  check_workspace(handle, found, args);
  take_filled_reserve(handle, found, problem, TrainingStage::kBackwardData, &args);
  found.backend->backward_weights(handle, problem, args);
}

void run_backward(prnnHandle_t handle, RnnProblem& problem, const prnnRNNBackwardArgs_t& given, const CallPlan& plan) {
  static const prnnRNNNormGradients_t kNotWanted{};
  require_backward_runs(problem, 1);
  RnnBackwardArgs args{given};
  if (given.normGradients == nullptr) args.normGradients = &kNotWanted;
  if (given.normGradients != nullptr && !problem.normalizes()) {
    fail(PRNN_STATUS_BAD_PARAM, "normGradients is given, but the layer is not normalised (prnnSetRNNNormalization)");
  }
  require_arrays(problem, {{args.x, "x"}, {args.w, "w"}, {args.y, "y"}, {args.dy, "dy"}, {args.dx, "dx"}},
                 {{args.hx, "hx"},
                  {args.cx, "cx"},
                  {args.dcy, "dcy"},
                  {args.dhx, "dhx"},
                  {args.dcx, "dcx"},
                  {args.dw, "dw"},
                  {args.normGradients->gateGain, "normGradients->gateGain"},
                  {args.normGradients->gateBias, "normGradients->gateBias"},
                  {args.normGradients->cellGain, "normGradients->cellGain"},
                  {args.normGradients->cellBias, "normGradients->cellBias"}});
  check_gates(handle, problem, args.norm, args.lengths);
  check_workspace(handle, plan, args);
  take_filled_reserve(handle, plan, problem, TrainingStage::kForward, &args);
  plan.backend->backward(handle, problem, args);
  stamp_reserve(*handle, given.reserve, problem, TrainingStage::kBackwardData, args.keeps_gates);
}

}  // namespace prnn
