// Device memory and copies for clients without a CUDA runtime of their own. Two implementations: transfer.cc (built
// with CUDA) and no_cuda.cc (built without).
#pragma once

#include <cstddef>

#include "core/handle.h"

namespace prnn {

// The current CUDA device. Throws NOT_SUPPORTED or NOT_INITIALIZED if there is none, as prnnCreate does.
int current_cuda_device();

// Copies between any two of host and device on the handle's stream, and waits.
void copy_and_wait(const prnnContext& context, void* to, const void* from, size_t bytes);

}  // namespace prnn
