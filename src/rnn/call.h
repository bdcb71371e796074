// A recurrent call behind the C functions, cuDNN v5's (rnn_api.cc) and those of prnn_call.h (call_api.cc): the checks
// of its data, the backend that runs it, and the reserve space's header. Each function throws a Failure before anything
// is launched.
#pragma once

#include "rnn/problem.h"
#include "rnn/rnn_descriptor.h"

namespace prnn {

// The backend of a call and its sizes in bytes. A reserve space's contain its header; in inference they are 0.
struct CallPlan {
  SharedRnnBackend backend;
  size_t workspace, reserve, retained_reserve;
};

// Throws NOT_SUPPORTED with the limit that was broken if no backend serves the problem on the handle's device.
CallPlan plan_call(prnnHandle_t handle, const prnnRNNStruct& rnn, const RnnProblem& problem);

// The answer of prnnQueryRNNSequence for a problem on the handle's device. (query.cc)
prnnRNNInfo_t query_rnn(prnnHandle_t handle, const prnnRNNStruct& rnn, const RnnProblem& problem);

// Each runs one call. Extras and masks are the problem's; those of the arguments do not count. plan: made for the
// problem; NULL: it is made here. problem.aligned follows from the arguments, and with unaligned ones another plan than
// that given runs.
void run_forward(prnnHandle_t handle, const prnnRNNStruct& rnn, RnnProblem& problem, const prnnRNNForwardArgs_t& args,
                 const CallPlan* plan);
void run_backward_data(prnnHandle_t handle, const prnnRNNStruct& rnn, RnnProblem& problem,
                       const prnnRNNBackwardDataArgs_t& args, const CallPlan* plan);
void run_backward_weights(prnnHandle_t handle, const prnnRNNStruct& rnn, RnnProblem& problem,
                          const prnnRNNBackwardWeightsArgs_t& args, const CallPlan* plan);
void run_backward(prnnHandle_t handle, RnnProblem& problem, const prnnRNNBackwardArgs_t& args, const CallPlan& plan);

}  // namespace prnn
