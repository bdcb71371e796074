// The three passes of the CPU backend. T is float or double.
#pragma once

#include "rnn/problem.h"

namespace prnn {

template <class T>
void cpu_rnn_forward(const RnnProblem& problem, const RnnForwardArgs& args);
template <class T>
void cpu_rnn_backward_data(const RnnProblem& problem, const RnnBackwardDataArgs& args);
template <class T>
void cpu_rnn_backward_weights(const RnnProblem& problem, const RnnBackwardWeightsArgs& args);

}  // namespace prnn
