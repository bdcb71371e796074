// Checks that the APIs of the losses share. Each throws BAD_PARAM with the argument's name, its value and what would be
// accepted.
#pragma once

#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "core/descriptors.h"
#include "core/enums.h"
#include "core/handle.h"
#include "core/workspace_size.h"
#include "prnn_losses.h"

namespace prnn {

inline void require_in_range(int64_t value, int64_t low, int64_t high, const char* name) {
  if (value < low || value > high)
    fail(PRNN_STATUS_BAD_PARAM, "%s is %" PRId64 "; it must be %" PRId64 " to %" PRId64, name, value, low, high);
}

inline void require_at_least(int64_t value, int64_t low, const char* name) {
  if (value < low) fail(PRNN_STATUS_BAD_PARAM, "%s is %" PRId64 "; it must be at least %" PRId64, name, value, low);
}

// The product of sizes, each at least 0; refused when it leaves no room to count bytes and intermediate sizes in 64
// bits.
inline int64_t product_of_sizes(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(product, size, &product) || product > std::numeric_limits<int64_t>::max() / 1024)
      fail(PRNN_STATUS_BAD_PARAM, "the sizes in options are too large: their product does not fit 64 bits");
  }
  return product;
}

// The sizes in the options of every loss. `most`: lengths are int.
template <class Options>
void require_sizes(const Options& o, int64_t most) {
  require_in_range(o.batch, 1, most, "batch");
  require_in_range(o.maxFrames, 1, most, "maxFrames");
  require_in_range(o.maxTargets, 0, most, "maxTargets");
  require_in_range(o.classes, 1, most, "classes");
}

// Checks the options that change the gradients of every transducer loss.
template <class Options>
void require_gradient_options(const Options& o) {
  if (!(o.fastEmitLambda >= 0) || std::isinf(o.fastEmitLambda))
    fail(PRNN_STATUS_BAD_PARAM, "fastEmitLambda is %g; it must be at least 0 and finite", o.fastEmitLambda);
  if (std::isnan(o.clamp)) fail(PRNN_STATUS_BAD_PARAM, "clamp is NaN; it must be positive, or not positive for none");
}

inline void require_delay_penalty(double penalty) {
  if (!std::isfinite(penalty)) fail(PRNN_STATUS_BAD_PARAM, "delayPenalty is %g; it must be finite", penalty);
}

inline void require_reduction(const prnnLossReduction_t* reduction) {
  if (!reduction) return;
  if (!std::isfinite(reduction->scale))
    fail(PRNN_STATUS_BAD_PARAM, "reduction.scale is %g; it must be finite", reduction->scale);
  require_aligned(sizeof(int), {{reduction->lengths, "reduction.lengths"}});
}

// Bytes of an element of costs, their gradients and scores.
inline size_t cost_size(prnnDataType_t type) { return type == PRNN_DATA_DOUBLE ? sizeof(double) : sizeof(float); }

// Checks the array that a forward call writes.
inline void require_costs(const void* costs, prnnDataType_t type, const prnnLossReduction_t* reduction) {
  require_not_null(costs, "costs");
  require_aligned(cost_size(type), {{costs, "costs"}});
  if (!reduction) return;
  require_not_null(reduction->loss, "reduction.loss");
  require_aligned(cost_size(type), {{reduction->loss, "reduction.loss"}});
}

// Sizes of workspace and reserve space are rounded up, so that the two can lie one after the other.
inline size_t whole_blocks(size_t size) { return (size + 255) / 256 * 256; }

// Answers a query of bytes, whose options were checked.
inline void write_size(const WorkspaceSize& size, size_t* out) {
  require_not_null(out, "sizeInBytes");
  *out = whole_blocks(size.all);
}

// Workspace and reserve space of at least so many bytes.
inline void require_space(const void* space, size_t size, size_t used, const char* name) {
  const size_t needed = whole_blocks(used);
  if (size < needed) fail(PRNN_STATUS_BAD_PARAM, "%s has %zu bytes; it needs %zu", name, size, needed);
  if (needed > 0) require_not_null(space, name);
  if (reinterpret_cast<uintptr_t>(space) % 16 != 0)
    fail(PRNN_STATUS_BAD_PARAM, "%s is at address %p; it must be aligned to 16 bytes", name, space);
}

// The lengths of a batch, on the host.
inline void require_lengths(const int* lengths, int64_t batch, int64_t low, int64_t high, const char* name) {
  for (int64_t n = 0; n < batch; ++n) {
    if (lengths[n] < low || lengths[n] > high)
      fail(PRNN_STATUS_BAD_PARAM, "%s[%" PRId64 "] is %d; it must be %" PRId64 " to %" PRId64, name, n, lengths[n], low,
           high);
  }
}

// The target symbols of a batch, on the host, after its lengths have been checked. All of them belong to a sequence:
// with some left over, the lengths or the layout are not what the caller means. blank: refused as a target; -1: none
// is.
inline void require_targets(const int* targets, prnnTargetLayout_t layout, const int* lengths, int64_t batch,
                            int64_t max_targets, int64_t target_elements, int64_t classes, int64_t blank) {
  if (layout == PRNN_TARGETS_CONCATENATED) {
    int64_t sum = 0;
    for (int64_t n = 0; n < batch; ++n) sum += lengths[n];
    if (sum != target_elements)
      fail(PRNN_STATUS_BAD_PARAM, "targetElements is %" PRId64 ", but targetLengths add up to %" PRId64,
           target_elements, sum);
  }
  int64_t offset = 0;
  for (int64_t n = 0; n < batch; ++n) {
    if (layout == PRNN_TARGETS_PADDED) offset = n * max_targets;
    for (int64_t i = 0; i < lengths[n]; ++i) {
      const int symbol = targets[offset + i];
      if (symbol < 0 || symbol >= classes)
        fail(PRNN_STATUS_BAD_PARAM,
             "targets of sequence %" PRId64 " hold %d at position %" PRId64 "; it must be 0 to %" PRId64, n, symbol, i,
             classes - 1);
      if (symbol == blank)
        fail(PRNN_STATUS_BAD_PARAM, "targets of sequence %" PRId64 " hold the blank, %d, at position %" PRId64, n,
             symbol, i);
    }
    offset += lengths[n];
  }
}

}  // namespace prnn
