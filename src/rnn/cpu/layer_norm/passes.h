// The passes of an LSTM on the input of its gates (RnnProblem::takes_gates()) on the CPU, and their memory.
#pragma once

#include "rnn/problem.h"

namespace prnn {

size_t layer_norm_lstm_workspace_cpu(const RnnProblem& problem);
size_t layer_norm_lstm_reserve_cpu(const RnnProblem& problem);
void layer_norm_lstm_forward_cpu(const RnnProblem& problem, const RnnForwardArgs& args);
void layer_norm_lstm_backward_cpu(const RnnProblem& problem, const RnnBackwardArgs& args);

}  // namespace prnn
