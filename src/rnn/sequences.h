// Copies between padded data and the packed rows that the layers take: prnnPackSequences and prnnUnpackSequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/handle.h"

namespace prnn {

struct SequenceCopy {
  std::vector<int32_t>
      batch;  // B_t, one entry a timestep of the padded data, non-increasing; 0: no sequence is so long
  std::vector<int32_t> order;  // sequence i of the packed data is sequence order[i] of the padded data
  size_t row_bytes;
  char* padded;  // timestep t of sequence n at t * step_stride + n * sequence_stride, in bytes
  size_t step_stride, sequence_stride;
  char* packed;
  bool packs;  // else the way back, and zeros beyond the sequences' ends

  int64_t steps() const { return static_cast<int64_t>(batch.size()); }
  int64_t sequences() const { return static_cast<int64_t>(order.size()); }
};

// The B_t of seqLength timesteps; throws BAD_PARAM unless each is at least 1 and they do not increase.
std::vector<int32_t> read_batch_sizes(int seqLength, const int* batchSizes);

void copy_sequences_cpu(const SequenceCopy& copy);
void copy_sequences_cuda(const prnnContext& context, const SequenceCopy& copy);

}  // namespace prnn
