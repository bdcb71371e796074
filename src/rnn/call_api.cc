// The C functions of prnn_call.h: a call that is prepared once and run with pointers alone.
#include "prnn_call.h"

#include <algorithm>

#include "core/enums.h"
#include "core/handle.h"
#include "rnn/call.h"
#include "rnn/plan/canonical.h"
#include "rnn/sequences.h"
#include "rnn/validate.h"

using namespace prnn;

// The struct behind prnnRNNCall_t.
struct prnnRNNCallStruct {
  static constexpr uint32_t kAlive = 0x63616c6c;
  static constexpr const char* kKind = "RNN call";

  uint32_t tag = kAlive;
  prnnHandle_t handle = nullptr;
  prnnRNNStruct rnn;
  RnnProblem problem;  // extras and masks of a run replace those that the descriptor had
  CallPlan plan{};
};

namespace prnn {
namespace {

// Throws BAD_PARAM unless a run gives a pointer exactly where the call was prepared with one.
void require_as_prepared(const void* prepared, const void* given, const char* name) {
  if ((prepared == nullptr) == (given == nullptr)) return;
  fail(PRNN_STATUS_BAD_PARAM, "args->%s is %s, but the call was prepared %s", name, given == nullptr ? "NULL" : "given",
       given == nullptr ? "with it" : "without it");
}

struct Parts {
  bool cells, dcells, gradients;  // prnnRNNExtras_t's that a run writes or reads
};

// The call's problem with the extras and masks of a run.
RnnProblem problem_of_run(const prnnRNNCallStruct& call, const prnnRNNExtras_t* extras, const prnnRNNMasks_t* masks,
                          const Parts& parts) {
  const prnnRNNExtras_t given = extras == nullptr ? prnnRNNExtras_t{} : *extras;
  const prnnRNNMasks_t given_masks = masks == nullptr ? prnnRNNMasks_t{} : *masks;
  RnnProblem problem = call.problem;
  require_as_prepared(problem.extras.reset, given.reset, "extras->reset");
  if (parts.cells) require_as_prepared(problem.extras.cells, given.cells, "extras->cells");
  if (parts.dcells) require_as_prepared(problem.extras.dcells, given.dcells, "extras->dcells");
  require_as_prepared(problem.masks.recurrent, given_masks.recurrent, "masks->recurrent");
  require_as_prepared(problem.masks.zoneout, given_masks.zoneout, "masks->zoneout");
  if (problem.masks.zoneoutExpectation != given_masks.zoneoutExpectation) {
    fail(PRNN_STATUS_BAD_PARAM, "args->masks->zoneoutExpectation is %g; the call was prepared with %g",
         given_masks.zoneoutExpectation, problem.masks.zoneoutExpectation);
  }
  require_extras(problem.mode, given, "args->extras");
  problem.extras.reset = given.reset;
  problem.extras.resetHx = given.resetHx;
  problem.extras.resetCx = given.resetCx;
  problem.extras.dresetHx = parts.gradients ? given.dresetHx : nullptr;
  problem.extras.dresetCx = parts.gradients ? given.dresetCx : nullptr;
  if (parts.cells) problem.extras.cells = given.cells;
  if (parts.dcells) problem.extras.dcells = given.dcells;
  problem.masks = given_masks;
  return problem;
}

// Throws BAD_PARAM unless the dropout descriptor, which the caller may have set again, is as it was; takes its states.
void take_dropout_states(const prnnRNNCallStruct& call, RnnProblem* problem) {
  if (problem->dropout.probability == 0) return;
  require_alive(call.rnn.dropout, "the dropout descriptor of rnnDesc");
  if (call.rnn.dropout->probability != problem->dropout.probability) {
    fail(PRNN_STATUS_BAD_PARAM, "the dropout descriptor's probability is %g; the call was prepared with %g",
         static_cast<double>(call.rnn.dropout->probability), static_cast<double>(problem->dropout.probability));
  }
  problem->dropout.states = call.rnn.dropout->states;
}

// Runs body(call) with the errors of its handle.
template <class Args, class Body>
prnnStatus_t run_call(prnnRNNCall_t call, const Args* args, const char* name, Body body) {
  const prnnHandle_t handle = is_alive(call) && is_valid(call->handle) ? call->handle : nullptr;
  return guarded(handle, [&] {
    require_alive(call, "call");
    require_handle(call->handle);
    require_not_null(args, name);
    body();
  });
}

void require_training(const prnnRNNCallStruct& call, const char* function) {
  if (call.problem.training) return;
  fail(PRNN_STATUS_BAD_PARAM, "%s is of the calls of a training step; this one was prepared for inference", function);
}

}  // namespace
}  // namespace prnn

extern "C" prnnStatus_t prnnPrepareRNN(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc, prnnForwardMode_t mode,
                                       int inputSize, int seqLength, const int* batchSizes, prnnRNNCall_t* call) {
  return with_layer(handle, rnnDesc, [&](const prnnRNNStruct& rnn) {
    require_enumerator(mode, {PRNN_FWD_MODE_INFERENCE, PRNN_FWD_MODE_TRAINING}, "mode");
    require_not_null(call, "call");
    RnnProblem problem = problem_from_sizes(rnn, inputSize, seqLength, batchSizes);
    if (mode == PRNN_FWD_MODE_INFERENCE) problem = inference_of(std::move(problem));
    CallPlan plan = plan_call(handle, rnn, problem);
    if (problem.training) {  // a backward run may be without dx, which cuDNN then writes into the workspace
      RnnProblem without = problem;
      without.gives_dx = false;
      plan.workspace = std::max(plan.workspace, plan_call(handle, rnn, without).workspace);
    }
    prnnRNNCallStruct* const made = ObjectPool<prnnRNNCallStruct>::instance().create();
    made->handle = handle;
    made->rnn = rnn;
    made->problem = std::move(problem);
    made->plan = std::move(plan);
    *call = made;
  });
}

extern "C" prnnStatus_t prnnDestroyRNNCall(prnnRNNCall_t call) { return destroy_object(call, "call"); }

extern "C" prnnStatus_t prnnGetRNNCallInfo(prnnRNNCall_t call, prnnRNNCallInfo_t* info) {
  return run_call(call, info, "info", [&] {
    prnnRNNCallInfo_t found{};
    found.backend = call->plan.backend->kind();
    found.workspaceSize = call->plan.workspace;
    found.reserveSize = call->plan.reserve;
    found.retainedReserveSize = call->plan.retained_reserve;
    found.weightsSize = static_cast<size_t>(rnn_params_count(call->problem)) * type_size(call->problem.type);
    found.rows = static_cast<size_t>(call->problem.rows);
    found.plan = query_rnn(call->handle, call->rnn, call->problem);
    *info = found;
  });
}

extern "C" prnnStatus_t prnnRunRNNForward(prnnRNNCall_t call, const prnnRNNForwardArgs_t* args) {
  return run_call(call, args, "args", [&] {
    RnnProblem problem = problem_of_run(*call, args->extras, args->masks, {true, false, false});
    take_dropout_states(*call, &problem);
    if (!problem.training && args->reserve != nullptr) {
      fail(PRNN_STATUS_BAD_PARAM, "args->reserve is given, but the call was prepared for inference; it must be NULL");
    }
    run_forward(call->handle, call->rnn, problem, *args, &call->plan);
  });
}

extern "C" prnnStatus_t prnnRunRNNBackwardData(prnnRNNCall_t call, const prnnRNNBackwardDataArgs_t* args) {
  return run_call(call, args, "args", [&] {
    require_training(*call, "prnnRunRNNBackwardData");
    RnnProblem problem = problem_of_run(*call, args->extras, args->masks, {false, true, true});
    run_backward_data(call->handle, call->rnn, problem, *args, &call->plan);
  });
}

extern "C" prnnStatus_t prnnRunRNNBackwardWeights(prnnRNNCall_t call, const prnnRNNBackwardWeightsArgs_t* args) {
  return run_call(call, args, "args", [&] {
    require_training(*call, "prnnRunRNNBackwardWeights");
    RnnProblem problem = problem_of_run(*call, args->extras, args->masks, {false, false, false});
    run_backward_weights(call->handle, call->rnn, problem, *args, &call->plan);
  });
}

extern "C" prnnStatus_t prnnRunRNNBackward(prnnRNNCall_t call, const prnnRNNBackwardArgs_t* args) {
  return run_call(call, args, "args", [&] {
    require_training(*call, "prnnRunRNNBackward");
    RnnProblem problem = problem_of_run(*call, nullptr, args->masks, {false, false, false});
    run_backward(call->handle, problem, *args, call->plan);
  });
}

extern "C" int prnnGetRNNCanonicalLength(int seqLength) {
  return seqLength < 1 ? seqLength : static_cast<int>(canonical_steps(seqLength));
}
