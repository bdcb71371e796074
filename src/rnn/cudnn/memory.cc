#include "rnn/cudnn/memory.h"

#include <algorithm>

#include "core/cuda/arena.h"
#include "core/descriptors.h"

namespace prnn {
namespace {

// Room for an array of cuDNN's, at a multiple of 256 bytes as its kernels like it.
char* take_aligned(Arena& arena, size_t bytes) {
  if (bytes == 0) return nullptr;
  constexpr uintptr_t kAlignment = 256;
  const auto at = reinterpret_cast<uintptr_t>(arena.take<char>(static_cast<int64_t>(bytes + kAlignment)));
  return reinterpret_cast<char*>((at + kAlignment - 1) / kAlignment * kAlignment);
}

size_t output_size(const RnnProblem& p) { return p.rows * p.directions * p.state() * type_size(p.type); }

}  // namespace

CudnnReserve::CudnnReserve(const CudnnStack& stack, void* base) {
  Arena arena(base);
  for (const CudnnPart& part : stack.parts) parts.push_back(take_aligned(arena, part.sequences.reserve_size()));
  for (size_t i = 0; i + 1 < stack.parts.size(); ++i) {
    outputs.push_back(take_aligned(arena, output_size(stack.problem)));
    inputs.push_back(take_aligned(arena, output_size(stack.problem)));
  }
  draw = arena.take<uint64_t>(2);
  size = arena.size();
}

CudnnWorkspace::CudnnWorkspace(const CudnnStack& stack, const RnnProblem& p, void* base) {
  Arena arena(base);
  size_t largest = 0, largest_weights = 0;
  for (const CudnnPart& part : stack.parts) {
    const CudnnWeights& w = part.layers->weights();
    largest = std::max(largest, part.sequences.workspace_size());
    if (!w.same_layout()) largest_weights = std::max(largest_weights, w.size());
  }
  scratch = take_aligned(arena, largest);
  weights = take_aligned(arena, largest_weights);
  for (char*& array : between) array = take_aligned(arena, stack.parts.size() > 1 ? output_size(p) : 0);
  const size_t gradients = p.gives_dx ? 0 : p.rows * p.input * type_size(p.type);
  dx = dropout_states = take_aligned(arena, p.training ? std::max(gradients, stack.dropout_states_size) : 0);
  size = arena.size();
}

}  // namespace prnn
