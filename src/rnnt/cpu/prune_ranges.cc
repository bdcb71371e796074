#include <algorithm>

#include "core/cpu/threads.h"
#include "rnnt/cpu/mutual_information.h"

namespace prnn {
namespace {

template <class T>
void run(const PruneRangesParams& params) {
  const prnnMutualInformationOptions_t& o = params.options;
  const int64_t columns = px_columns(o), range = params.prune_range;
  const int64_t starts = o.symbols + 1 - range + 1;  // first cells that leave room for a whole window
  const int64_t growth = o.type == PRNN_RNNT_REGULAR ? range - 1 : 1;

#pragma omp parallel for schedule(static) num_threads(region_threads(true, o.batch))
  for (int64_t n = 0; n < o.batch; ++n) {
    const Boundary b = boundary_of(o, params.boundary, n);
    const T* px = static_cast<const T*>(params.px_gradients) + n * o.symbols * columns;
    const T* py = static_cast<const T*>(params.py_gradients) + n * (o.symbols + 1) * o.frames;
    int* begins = params.range_begins + n * o.frames;
    // A path crosses frame t by the blank of one of its cells, so the blanks' shares add up to the window's
    // probability; taken from it is what enters the window's first cell from below, by a label that the window would
    // not hold.
    const int64_t last = std::max<int64_t>(0, b.s_end - range + 1);
    for (int64_t t = 0; t < o.frames; ++t) {
      begins[t] = static_cast<int>(last);
      if (t >= b.t_end - 1) continue;
      T best{};
      for (int64_t s = 0; s < starts; ++s) {
        T held = 0;
        for (int64_t i = 0; i < range; ++i) held += py[(s + i) * o.frames + t];
        if (s > 0) held -= px[(s - 1) * columns + t];
        if (s == 0 || held > best) {
          best = held;
          begins[t] = static_cast<int>(s);
        }
      }
    }
    // Never decreasing, then never growing by more than `growth` a frame, from 0.
    for (int64_t t = o.frames - 2; t >= 0; --t) begins[t] = std::min(begins[t], begins[t + 1]);
    for (int64_t t = o.frames - 2; t >= 0; --t) {
      begins[t] = static_cast<int>(std::max<int64_t>(begins[t], begins[t + 1] - growth));
    }
    for (int64_t t = 0; t < o.frames; ++t) {
      begins[t] = static_cast<int>(std::min<int64_t>(begins[t], t * growth));
    }
  }
}

}  // namespace

void run_prune_ranges_cpu(const PruneRangesParams& params) {
  params.options.dataType == PRNN_DATA_DOUBLE ? run<double>(params) : run<float>(params);
}

}  // namespace prnn
