// prnnPackSequences and prnnUnpackSequences: checks, then the copy on the handle's device.
#include <numeric>

#include "persistent_rnn.h"
#include "rnn/sequences.h"

using namespace prnn;

namespace prnn {

std::vector<int32_t> read_batch_sizes(int seqLength, const int* batchSizes) {
  if (seqLength < 1) fail(PRNN_STATUS_BAD_PARAM, "seqLength is %d; it must be at least 1", seqLength);
  require_not_null(batchSizes, "batchSizes");
  for (int t = 0; t < seqLength; ++t) {
    if (batchSizes[t] < 1) fail(PRNN_STATUS_BAD_PARAM, "batchSizes[%d] is %d; it must be at least 1", t, batchSizes[t]);
    if (t > 0 && batchSizes[t] > batchSizes[t - 1]) {
      fail(PRNN_STATUS_BAD_PARAM, "batchSizes[%d] is %d, more than the %d of the timestep before it", t, batchSizes[t],
           batchSizes[t - 1]);
    }
  }
  return {batchSizes, batchSizes + seqLength};
}

namespace {

std::vector<int32_t> read_order(int sequences, const int* order) {
  std::vector<int32_t> numbers(static_cast<size_t>(sequences));
  std::iota(numbers.begin(), numbers.end(), 0);
  if (order == nullptr) return numbers;
  std::vector<bool> is_there(numbers.size());
  for (int i = 0; i < sequences; ++i) {
    if (order[i] < 0 || order[i] >= sequences) {
      fail(PRNN_STATUS_BAD_PARAM, "order[%d] is %d; it must be a sequence, 0 to %d", i, order[i], sequences - 1);
    }
    if (is_there[static_cast<size_t>(order[i])]) {
      fail(PRNN_STATUS_BAD_PARAM, "order[%d] is %d, which an entry before it is too", i, order[i]);
    }
    is_there[static_cast<size_t>(order[i])] = true;
    numbers[static_cast<size_t>(i)] = order[i];
  }
  return numbers;
}

// Throws BAD_PARAM where the last row's offset is more than can be addressed.
void require_addressable(const SequenceCopy& copy) {
  const size_t steps = copy.batch.size(), sequences = copy.order.size();
  size_t by_steps, by_sequences, rows, end;
  if (__builtin_mul_overflow(steps, copy.step_stride, &by_steps) ||
      __builtin_mul_overflow(sequences, copy.sequence_stride, &by_sequences) ||
      __builtin_mul_overflow(steps * sequences, copy.row_bytes, &rows) ||
      __builtin_add_overflow(by_steps, by_sequences, &end) || end > PTRDIFF_MAX || rows > PTRDIFF_MAX) {
    fail(PRNN_STATUS_BAD_PARAM,
         "rowBytes %zu, stepStride %zu and sequenceStride %zu, with %zu timesteps of %zu sequences, are more than can "
         "be addressed",
         copy.row_bytes, copy.step_stride, copy.sequence_stride, steps, sequences);
  }
}

SequenceCopy check_copy(int seqLength, const int* batchSizes, const int* order, size_t rowBytes, const void* padded,
                        size_t stepStride, size_t sequenceStride, const void* packed, bool packs) {
  SequenceCopy copy;
  copy.batch = read_batch_sizes(seqLength, batchSizes);
  copy.order = read_order(copy.batch.front(), order);
  if (rowBytes == 0) fail(PRNN_STATUS_BAD_PARAM, "rowBytes is 0; it must be at least 1");
  require_not_null(padded, "padded");
  require_not_null(packed, "packed");
  copy.row_bytes = rowBytes;
  copy.padded = static_cast<char*>(const_cast<void*>(padded));
  copy.step_stride = stepStride;
  copy.sequence_stride = sequenceStride;
  copy.packed = static_cast<char*>(const_cast<void*>(packed));
  copy.packs = packs;
  require_addressable(copy);
  return copy;
}

void run(const prnnContext& context, const SequenceCopy& copy) {
  context.is_cpu() ? copy_sequences_cpu(copy) : copy_sequences_cuda(context, copy);
}

}  // namespace
}  // namespace prnn

extern "C" prnnStatus_t prnnPackSequences(prnnHandle_t handle, const int seqLength, const int* batchSizes,
                                          const int* order, size_t rowBytes, const void* padded, size_t stepStride,
                                          size_t sequenceStride, void* packed) {
  return guarded(handle, [&] {
    require_handle(handle);
    run(*handle, check_copy(seqLength, batchSizes, order, rowBytes, padded, stepStride, sequenceStride, packed, true));
  });
}

extern "C" prnnStatus_t prnnUnpackSequences(prnnHandle_t handle, const int seqLength, const int* batchSizes,
                                            const int* order, size_t rowBytes, const void* packed, void* padded,
                                            const int paddedLength, size_t stepStride, size_t sequenceStride) {
  return guarded(handle, [&] {
    require_handle(handle);
    SequenceCopy copy =
        check_copy(seqLength, batchSizes, order, rowBytes, padded, stepStride, sequenceStride, packed, false);
    if (paddedLength < seqLength) {
      fail(PRNN_STATUS_BAD_PARAM, "paddedLength is %d; it must be at least seqLength, %d", paddedLength, seqLength);
    }
    if (stepStride < rowBytes || sequenceStride < rowBytes) {
      fail(PRNN_STATUS_BAD_PARAM, "stepStride is %zu and sequenceStride %zu; each must be at least rowBytes, %zu",
           stepStride, sequenceStride, rowBytes);
    }
    copy.batch.resize(static_cast<size_t>(paddedLength), 0);
    require_addressable(copy);
    run(*handle, copy);
  });
}
