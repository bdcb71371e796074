// The backend that runs cuDNN, for what the resident kernels do not serve.
#pragma once

#include "rnn/problem.h"

namespace prnn {

// Serves every data type. Throws NOT_SUPPORTED with the reason if there is no cuDNN.
SharedRnnBackend require_cudnn_backend();

}  // namespace prnn
