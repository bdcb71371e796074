// The three passes of the CPU backend. S is the type of the weights and their gradients: float, double, Half or
// Bfloat16. All other arrays are of Compute<S>, which of 16-bit types is float; half_passes.h has those of them.
#pragma once

#include "core/cpu/half.h"
#include "rnn/problem.h"

namespace prnn {

template <class S>
void cpu_rnn_forward(const RnnProblem& problem, const RnnForwardArgs& args);
template <class S>
void cpu_rnn_backward_data(const RnnProblem& problem, const RnnBackwardDataArgs& args);
template <class S>
void cpu_rnn_backward_weights(const RnnProblem& problem, const RnnBackwardWeightsArgs& args);

}  // namespace prnn
