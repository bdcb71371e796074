#include "rnn/sequences.h"

#include <cstring>

#include "core/cpu/threads.h"

namespace prnn {

void copy_sequences_cpu(const SequenceCopy& copy) {
  std::vector<int64_t> first_row(copy.batch.size() + 1);
  for (size_t t = 0; t < copy.batch.size(); ++t) first_row[t + 1] = first_row[t] + copy.batch[t];
  const int64_t steps = copy.steps(), sequences = copy.sequences();
  const size_t size = copy.row_bytes;
#pragma omp parallel for num_threads(region_threads(steps * sequences * static_cast<int64_t>(size) > 65536))
  for (int64_t t = 0; t < steps; ++t) {
    const size_t step = static_cast<size_t>(t);
    for (int64_t i = 0; i < sequences; ++i) {
      const size_t n = static_cast<size_t>(copy.order[static_cast<size_t>(i)]);
      char* const padded = copy.padded + step * copy.step_stride + n * copy.sequence_stride;
      char* const packed = copy.packed + static_cast<size_t>(first_row[step] + i) * size;
      const bool is_active = i < copy.batch[step];
      if (is_active) {
        copy.packs ? std::memcpy(packed, padded, size) : std::memcpy(padded, packed, size);
      } else if (!copy.packs) {
        std::memset(padded, 0, size);
      }
    }
  }
}

}  // namespace prnn
