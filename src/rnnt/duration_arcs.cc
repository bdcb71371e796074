#include <algorithm>

#include "core/loss_checks.h"
#include "rnnt/duration.h"

namespace prnn {

void require_durations(const prnnDurationRNNTLossOptions_t& o) {
  const bool tdt = o.type == PRNN_DURATION_TDT;
  require_in_range(o.durationCount, tdt ? 1 : 0, PRNN_MAX_DURATIONS, "durationCount");
  bool advances = !tdt;
  for (int64_t i = 0; i < o.durationCount; ++i) {
    const int least = tdt ? 0 : 2;
    if (o.durations[i] < least)
      fail(PRNN_STATUS_BAD_PARAM, "durations[%" PRId64 "] is %d; it must be at least %d", i, o.durations[i], least);
    for (int64_t j = 0; j < i; ++j) {
      if (o.durations[i] == o.durations[j])
        fail(PRNN_STATUS_BAD_PARAM, "durations[%" PRId64 "] and durations[%" PRId64 "] are both %d; they must differ",
             j, i, o.durations[i]);
    }
    advances = advances || o.durations[i] > 0;
  }
  if (!advances) fail(PRNN_STATUS_BAD_PARAM, "durations has 0 alone; one must be at least 1, for blanks");
  if (!std::isfinite(o.sigma)) fail(PRNN_STATUS_BAD_PARAM, "sigma is %g; it must be finite", o.sigma);
  if (!(o.omega >= 0 && o.omega <= (tdt ? 1 : 0)))
    fail(PRNN_STATUS_BAD_PARAM, "omega is %g; it must be 0%s", o.omega,
         tdt ? " to 1" : " with PRNN_DURATION_MULTI_BLANK");
}

DurationArcs::DurationArcs(const prnnDurationRNNTLossOptions_t& o)
    : arc{}, lattice{}, lattices(0), blanks(1), entries(0), longest(1) {
  int end = 0;
  const auto add = [&](int64_t duration, int blank, int entry, double sigma) {
    const int kept = static_cast<int>(std::min(duration, o.maxFrames + 1));
    arc[end++] = {kept, blank, entry, sigma};
    longest = std::max(longest, kept);
  };
  const auto close = [&](double weight) {
    lattice[lattices] = {lattices == 0 ? 0 : lattice[lattices - 1].end, end, weight};
    ++lattices;
  };
  constexpr int kLabel = -1, kNone = -1;
  const int count = static_cast<int>(o.durationCount);
  if (o.type == PRNN_DURATION_MULTI_BLANK) {
    add(0, kLabel, kNone, o.sigma);
    add(1, 0, kNone, o.sigma);
    for (int i = 0; i < count; ++i) add(o.durations[i], 1 + i, kNone, o.sigma);
    blanks = 1 + count;
    close(1);
    return;
  }
  entries = count;
  if (o.omega < 1) {
    for (int i = 0; i < count; ++i) {
      if (o.durations[i] > 0) add(o.durations[i], 0, i, o.sigma);
      add(o.durations[i], kLabel, i, o.sigma);
    }
    close(1 - o.omega);
  }
  if (o.omega > 0) {
    add(0, kLabel, kNone, 0);
    add(1, 0, kNone, 0);
    close(o.omega);
  }
}

}  // namespace prnn
