// The backend of LSTMs on the input of their gates (RnnProblem::takes_gates()): cuts workspace and reserve space into
// arrays and enqueues the kernels of the engines that serve the layer.
#pragma once

#include "rnn/cuda/backend.h"

namespace prnn {

std::shared_ptr<const ResidentBackend> make_layer_norm_backend(RnnPlan plan);

}  // namespace prnn
