// Queries: the backend and the plan that would run a call.
#pragma once

#include "core/handle.h"
#include "rnn/problem.h"
#include "rnn/rnn_descriptor.h"

namespace prnn {

// The answer of prnnQueryRNNSequence for a problem on the handle's device.
prnnRNNInfo_t query_rnn(prnnHandle_t handle, const prnnRNNStruct& rnn, const RnnProblem& problem);

}  // namespace prnn
