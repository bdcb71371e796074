// The recursion and the pruning bounds of pruned RNN-T on the CPU. Parameters have been validated; see rnnt/rnnt.h.
#pragma once

#include "rnnt/rnnt.h"

namespace prnn {

size_t mutual_information_workspace_size_cpu(const prnnMutualInformationOptions_t& options);
void run_mutual_information_cpu(const MutualInformationParams& params);
void run_prune_ranges_cpu(const PruneRangesParams& params);

// A sequence's part of px and py: symbols s_begin .. s_end, frames t_begin .. t_end.
struct Boundary {
  int64_t s_begin, t_begin, s_end, t_end;
};

inline Boundary boundary_of(const prnnMutualInformationOptions_t& o, const int* boundary, int64_t n) {
  if (boundary == nullptr) return {0, 0, o.symbols, o.frames};
  const int* b = boundary + 4 * n;
  return {b[0], b[1], b[2], b[3]};
}

// Columns of px: one more than frames when a symbol may follow the last frame.
inline int64_t px_columns(const prnnMutualInformationOptions_t& o) {
  return o.type == PRNN_RNNT_REGULAR ? o.frames + 1 : o.frames;
}

}  // namespace prnn
