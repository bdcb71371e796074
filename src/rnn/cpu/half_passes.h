// The passes of the CPU backend whose arrays are all of a 16-bit type S: all but the weights are copied to float,
// computed in float, and rounded once. The reserve space has the last layer's output, as R read it, in float.
#pragma once

#include "core/cpu/half.h"
#include "rnn/problem.h"

namespace prnn {

size_t half_rnn_workspace_size(const RnnProblem& problem);
size_t half_rnn_reserve_size(const RnnProblem& problem, bool keeps_gates);

template <class S>
void half_rnn_forward(const RnnProblem& problem, const RnnForwardArgs& args);
template <class S>
void half_rnn_backward_data(const RnnProblem& problem, const RnnBackwardDataArgs& args);
template <class S>
void half_rnn_backward_weights(const RnnProblem& problem, const RnnBackwardWeightsArgs& args);

}  // namespace prnn
