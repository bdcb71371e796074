// A lattice whose arcs go on by several frames, of one sequence on the CPU, in double: the sum over all paths and the
// share of each arc in it. Node (t, u) lies in step t + u; within a step the nodes lie side by side, so that an arc
// kind is added to all of a step's nodes at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "rnnt/duration.h"

namespace prnn {

class DurationLattice {
 public:
  // Bytes of scratch for lattices of up to these sizes and so many kinds of arcs.
  static size_t scratch_size(int64_t max_frames, int64_t max_symbols, int arcs);

  // Lays the lattice into scratch of scratch_size() bytes, aligned to 16.
  DurationLattice(void* scratch, int64_t max_frames, int64_t max_symbols, int arcs);

  void set(int64_t frames, int64_t symbols) { frames_ = frames, symbols_ = symbols; }

  // The score of arc kind `arc` from (t, u), to be filled in for every node with t < frames: minus infinity where
  // DurationArcs::leads_on() is false. share() replaces it by the arc's share.
  double& score(int arc, int64_t t, int64_t u) { return row(arc, t + u)[u]; }

  // The logarithm of the sum over all paths from (0, 0) to the end; leaves what share() needs.
  double sum_paths(const DurationArcs& arcs, const DurationArcs::Lattice& lattice);

  // After sum_paths(): replaces the scores of the lattice's arcs by the probabilities that a path takes them. All are 0
  // if there is no path.
  void share(const DurationArcs& arcs, const DurationArcs::Lattice& lattice, double total);

 private:
  // The nodes of a step; the last step holds just the end.
  int64_t first(int64_t step) const { return std::max(INT64_C(0), step - (frames_ - (step < end() ? 1 : 0))); }
  int64_t last(int64_t step) const { return std::min(step, symbols_); }
  int64_t end() const { return frames_ + symbols_; }
  double* row(int arc, int64_t step) { return scores_ + (arc * steps_ + step) * width_; }

  int64_t steps_, width_, frames_ = 0, symbols_ = 0;
  double* scores_;  // {arcs, steps, width}
  double* alpha_;   // {steps + 1, width}: of all ways from the beginning
  double* beta_;    // {steps + 1, width}: of all ways to the end
  double* zeros_;   // {width}
};

}  // namespace prnn
