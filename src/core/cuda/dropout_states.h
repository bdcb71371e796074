#pragma once

#include <cuda_runtime_api.h>

#include "core/descriptors.h"

namespace prnn {

// Writes *states on the stream. A kernel, because a copy from host memory cannot be captured into a graph.
void run_write_dropout_states(DropoutStates* states, const DropoutStates& initial, cudaStream_t stream);

}  // namespace prnn
