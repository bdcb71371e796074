// The lattice of one RNN-T sequence on the CPU, in double: sums over all of its paths, the best path, and the share of
// each arc in the total.
//
// Nodes (t, u) are stored by step, so that every arc goes from one step to the next and a step's nodes can be computed
// side by side. For REGULAR lattices a step is an anti-diagonal, t + u; for MODIFIED and CONSTRAINED ones it is t.
// Within a step the nodes are those with u = base .. base + count - 1. The last step holds just the end (T, U).
#pragma once

#include <cstddef>
#include <cstdint>

namespace prnn {

class Lattice {
 public:
  // Bytes of scratch for a lattice with up to `steps` steps and `width` nodes in a step.
  static size_t scratch_size(int64_t steps, int64_t width);

  // Lays the lattice into scratch of scratch_size(steps, width) bytes, aligned to 16. No step has nodes yet.
  Lattice(void* scratch, int64_t steps, int64_t width);

  // The nodes from which arcs go: those of frames 0 .. frames - 1 with all of u = 0 .. symbols, or only those of them
  // that lie on a path. `last` is the frame of the end.
  void set_full(bool regular, int64_t frames, int64_t last, int64_t symbols);
  // Sets a pruned lattice, with u = begins[t] .. begins[t] + range - 1 in frame t; begins does not decrease.
  void set_pruned(bool regular, int64_t frames, int64_t symbols, const int* begins, int64_t range);

  // The step of (t, u), and whether the lattice has that node.
  int64_t step(int64_t t, int64_t u) const { return regular_ ? t + u : t; }
  bool has(int64_t step, int64_t u) const { return u >= base_[step] && u < base_[step] + count_[step]; }

  // Scores of a node's two arcs, to be filled in by the caller, -infinity where there is none. share() replaces them by
  // the arcs' shares.
  double& blank(int64_t step, int64_t u) { return blank_[step * width_ + u - base_[step]]; }
  double& label(int64_t step, int64_t u) { return label_[step * width_ + u - base_[step]]; }

  // The logarithm of the sum over all paths from (0, 0) to the end; leaves what share() needs.
  double sum_paths();

  // After sum_paths(): replaces each score by the probability that a path takes that arc. All are 0 if there is no
  // path.
  void share(double total);

  // The highest score of a path. times[u], u < symbols, becomes the frame of the path's u-th label arc; -1 if there is
  // no path.
  double best_path(int64_t symbols, int* times);

 private:
  void end_step(int64_t symbols);

  bool regular_ = true;
  int64_t steps_, width_;
  int64_t *base_, *count_;     // steps + 1
  double *blank_, *label_;     // {steps, width}
  double* alpha_;              // {steps + 1, width}: the sum, or best score, of all ways from the beginning
  double *beta_, *beta_next_;  // {width}
};

}  // namespace prnn
