// The header of a CPU handle's reserve space. It ties the space to the problem and tells how far the training step has
// come, so that a backward call with another layer's reserve space, or with other extras or masks than the forward
// call's, is an error and not a wrong gradient. (A CUDA handle has none: its reserve space cannot be read without
// waiting for the GPU.)
#pragma once

#include "rnn/problem.h"

namespace prnn {

enum class TrainingStage : uint64_t { kForward = 1, kBackwardData = 2 };

// Bytes in front of the backend's part. A multiple of a cache line.
size_t reserve_header_size(const prnnContext& context);

// Marks the reserve space as that of `problem` after `stage`. keeps_gates: that of the call's arguments. Does nothing
// on a CUDA handle.
void stamp_reserve(const prnnContext& context, void* reserve, const RnnProblem& problem, TrainingStage stage,
                   bool keeps_gates);

// Opens the reserve space of a CPU handle, of `size` bytes, for a backward call that comes after `stage`; returns
// whether the forward call kept the gates, which tells where its arrays lie. Throws BAD_PARAM unless the space was
// stamped with this problem and `stage` or a later one, is large enough, and has the gates, where the call wants them.
// The CPU's arrays begin at a cache line, so that their place depends on the space's address: where the caller has
// copied it to another address since it was stamped, this brings them to their place.
bool open_reserve(prnnHandle_t handle, const RnnBackend& backend, const RnnProblem& problem, void* reserve, size_t size,
                  TrainingStage stage);

}  // namespace prnn
