#include "core/cuda/dropout_states.h"

#include "core/cuda/launch.h"

namespace prnn {
namespace {

__global__ void write_states_kernel(DropoutStates* states, DropoutStates initial) { *states = initial; }

}  // namespace

void run_write_dropout_states(DropoutStates* states, const DropoutStates& initial, cudaStream_t stream) {
  write_states_kernel<<<1, 1, 0, stream>>>(states, initial);
  check_launch("write_states_kernel");
}

}  // namespace prnn
