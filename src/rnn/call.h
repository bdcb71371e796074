// A recurrent call behind the C functions, cuDNN v5's (rnn_api.cc) and those of prnn_call.h (call_api.cc): the checks
// of its data, the backend that runs it, and the reserve space's header. Each function throws a Failure before anything
// is launched.
#pragma once

#include "rnn/problem.h"
#include "rnn/rnn_descriptor.h"

namespace prnn {

// A workspace or reserve space as the caller gave it.
struct Space {
  const void* memory = nullptr;
  size_t size = 0;
};

// The backend of a call and its sizes in bytes. A reserve space's contain its header.
struct CallPlan {
  SharedRnnBackend backend;
  size_t workspace, reserve, retained_reserve;
};
CallPlan plan_call(prnnHandle_t handle, const prnnRNNStruct& rnn, const RnnProblem& problem);

// The workspaces and reserve spaces of `args` are set by these. plan: made for the problem; NULL: it is made here.
// problem.aligned follows from the arguments, and with unaligned ones another plan than that given runs.
void run_forward(prnnHandle_t handle, const prnnRNNStruct& rnn, RnnProblem& problem, RnnForwardArgs args,
                 Space workspace, Space reserve, const CallPlan* plan);
void run_backward_data(prnnHandle_t handle, const prnnRNNStruct& rnn, RnnProblem& problem, RnnBackwardDataArgs args,
                       Space workspace, Space reserve, const CallPlan* plan);
void run_backward_weights(prnnHandle_t handle, const prnnRNNStruct& rnn, RnnProblem& problem,
                          RnnBackwardWeightsArgs args, Space workspace, Space reserve, const CallPlan* plan);

}  // namespace prnn
