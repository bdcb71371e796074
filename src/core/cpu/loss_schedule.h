// How the losses share a batch among threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/cpu/threads.h"

namespace prnn {

// Below about this many elements to read or states to compute, waking threads takes longer than the work.
constexpr int64_t kWorkForThreads = 1 << 16;

// The most sequences that a call works on at once, each in a slot of its own in the workspace. It does not depend on
// the number of OpenMP threads, which may change between the query of a workspace's size and the call.
inline int64_t most_slots(int64_t batch) { return std::min<int64_t>(batch, processors()); }

inline size_t slots_size(size_t slot_size, int64_t batch) { return static_cast<size_t>(most_slots(batch)) * slot_size; }

// The sequences that a call works on at once: no more than there are threads.
inline int64_t slots_of_call(int64_t batch) { return std::min<int64_t>(most_slots(batch), most_threads()); }

// For each sequence n: begin(n, slot), then fill(n, t, slot) for t = 0 .. frames(n) - 1, then finish(n, slot). A slot
// is used by one sequence at a time. Where there are fewer slots than threads, the frames of a sequence are shared out.
template <class Frames, class Begin, class Fill, class Finish>
void for_each_sequence(int64_t batch, int64_t slots, int64_t work, int64_t max_frames, Frames frames, Begin begin,
                       Fill fill, Finish finish) {
  const bool threads = work >= kWorkForThreads;
  const int team = region_threads(threads);
  if (!threads || slots == most_threads()) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(team)
    for (int64_t n = 0; n < batch; ++n) {
      const int64_t slot = omp_get_thread_num();
      begin(n, slot);
      for (int64_t t = 0; t < frames(n); ++t) fill(n, t, slot);
      finish(n, slot);
    }
    return;
  }
  for (int64_t first = 0; first < batch; first += slots) {
    const int64_t together = std::min(slots, batch - first);
#pragma omp parallel num_threads(team)
    {
#pragma omp for schedule(static, 1)
      for (int64_t slot = 0; slot < together; ++slot) begin(first + slot, slot);
#pragma omp for collapse(2) schedule(dynamic, 16)
      for (int64_t slot = 0; slot < together; ++slot) {
        for (int64_t t = 0; t < max_frames; ++t) {
          if (t < frames(first + slot)) fill(first + slot, t, slot);
        }
      }
#pragma omp for schedule(dynamic, 1)
      for (int64_t slot = 0; slot < together; ++slot) finish(first + slot, slot);
    }
  }
}

}  // namespace prnn
