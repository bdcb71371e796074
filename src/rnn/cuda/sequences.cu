#include "rnn/sequences.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "rnn/cuda/layer/run.h"

namespace prnn {
namespace {

constexpr int kThreads = 256;
constexpr int kSteps = 224, kSequences = 288;

// The rows that one launch copies, as kernel arguments, so that nothing has to outlive the call and a CUDA graph
// replays it.
struct Part {
  int64_t row[kSteps];  // the first packed row of a timestep
  int32_t batch[kSteps];
  int32_t order[kSequences];
  int32_t first_step, steps, first_sequence, sequences;
  char* padded;
  size_t step_stride, sequence_stride;
  char* packed;
  int64_t words;  // of a row
  bool packs;
};
static_assert(sizeof(Part) <= 4096, "the arguments of a kernel on every GPU");

template <class Word>
__global__ void copy_part(const __grid_constant__ Part part) {
  const int step = blockIdx.y;
  const int64_t count = part.sequences * part.words, stride = int64_t{gridDim.x} * kThreads;
  for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < count; at += stride) {
    const int i = static_cast<int>(at / part.words);
    const int64_t word = at % part.words, sequence = part.first_sequence + i;
    const bool is_active = sequence < part.batch[step];
    Word* const padded = reinterpret_cast<Word*>(part.padded + (part.first_step + step) * part.step_stride +
                                                 part.order[i] * part.sequence_stride) +
                         word;
    Word* const packed = reinterpret_cast<Word*>(part.packed) + ((part.row[step] + sequence) * part.words + word);
    if (part.packs) {
      if (is_active) *packed = *padded;
    } else {
      *padded = is_active ? *packed : Word{};
    }
  }
}

// The largest word that divides everything.
size_t word_bytes(const SequenceCopy& copy) {
  const uintptr_t all = reinterpret_cast<uintptr_t>(copy.padded) | reinterpret_cast<uintptr_t>(copy.packed) |
                        copy.row_bytes | copy.step_stride | copy.sequence_stride;
  return std::min<size_t>(all & (~all + 1), sizeof(uint4));
}

cudaError_t launch(const Part& part, size_t word, cudaStream_t stream) {
  const int64_t blocks = (part.sequences * part.words + kThreads - 1) / kThreads;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(blocks, 256)), static_cast<unsigned>(part.steps));
  switch (word) {
    case 16: copy_part<uint4><<<grid, kThreads, 0, stream>>>(part); break;
    case 8: copy_part<uint64_t><<<grid, kThreads, 0, stream>>>(part); break;
    case 4: copy_part<uint32_t><<<grid, kThreads, 0, stream>>>(part); break;
    case 2: copy_part<uint16_t><<<grid, kThreads, 0, stream>>>(part); break;
    default: copy_part<uint8_t><<<grid, kThreads, 0, stream>>>(part); break;
  }
  return cudaGetLastError();
}

}  // namespace

void copy_sequences_cuda(const prnnContext& context, const SequenceCopy& copy) {
  const size_t word = word_bytes(copy);
  Part part{};
  part.padded = copy.padded;
  part.step_stride = copy.step_stride;
  part.sequence_stride = copy.sequence_stride;
  part.packed = copy.packed;
  part.words = static_cast<int64_t>(copy.row_bytes / word);
  part.packs = copy.packs;
  int64_t row = 0;
  for (int64_t t = 0; t < copy.steps(); t += part.steps) {
    part.first_step = static_cast<int32_t>(t);
    part.steps = static_cast<int32_t>(std::min<int64_t>(copy.steps() - t, kSteps));
    for (int i = 0; i < part.steps; ++i) {
      part.batch[i] = copy.batch[static_cast<size_t>(t + i)];
      part.row[i] = row;
      row += part.batch[i];
    }
    // Packing has nothing to do beyond the sequences that are there.
    const int64_t sequences = copy.packs ? part.batch[0] : copy.sequences();
    for (int64_t n = 0; n < sequences; n += part.sequences) {
      part.first_sequence = static_cast<int32_t>(n);
      part.sequences = static_cast<int32_t>(std::min<int64_t>(sequences - n, kSequences));
      std::copy_n(copy.order.begin() + n, part.sequences, part.order);
      require_launch(launch(part, word, context.stream), "the kernel that packs sequences");
    }
  }
}

}  // namespace prnn
