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

// Throws BAD_PARAM unless a backward call that comes after `stage` can run with the reserve space: it was stamped with
// this problem and `stage` or a later one, and its gates, where the call wants them, are still there.
void require_stage(const prnnContext& context, const void* reserve, const RnnProblem& problem, TrainingStage stage);

// Whether the forward call kept the gates, which tells a CPU handle's backward call where its arrays lie. `size` is
// that of the reserve space in this call; throws BAD_PARAM if that is too small for them.
bool reserve_keeps_gates(prnnHandle_t handle, const RnnBackend& backend, const RnnProblem& problem, const void* reserve,
                         size_t size);

// The CPU's arrays in the reserve space begin at a cache line, so that their place depends on its address. Where the
// caller has copied it to another address since it was stamped, this brings them to their place. CPU handles alone.
void settle_reserve(prnnHandle_t handle, const RnnBackend& backend, const RnnProblem& problem, void* reserve);

}  // namespace prnn
