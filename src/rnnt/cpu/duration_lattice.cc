#include "rnnt/cpu/duration_lattice.h"

#include <limits>

#include "core/cpu/loss_kernels.h"

namespace prnn {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

}  // namespace

size_t DurationLattice::scratch_size(int64_t max_frames, int64_t max_symbols, int arcs) {
  const int64_t steps = max_frames + max_symbols, words = (arcs * steps + 2 * (steps + 1) + 1) * (max_symbols + 1);
  return static_cast<size_t>((words + 1) / 2 * 2) * sizeof(double);
}

DurationLattice::DurationLattice(void* scratch, int64_t max_frames, int64_t max_symbols, int arcs)
    : steps_(max_frames + max_symbols), width_(max_symbols + 1), scores_(static_cast<double*>(scratch)) {
  alpha_ = scores_ + arcs * steps_ * width_;
  beta_ = alpha_ + (steps_ + 1) * width_;
  zeros_ = beta_ + (steps_ + 1) * width_;
  std::fill_n(zeros_, width_, 0.0);
}

double DurationLattice::sum_paths(const DurationArcs& arcs, const DurationArcs::Lattice& lattice) {
  const LossKernels& kernels = loss_kernels();
  alpha_[0] = 0;
  for (int64_t step = 1; step <= end(); ++step) {
    double* to = alpha_ + step * width_;
    std::fill(to + first(step), to + last(step) + 1, kMinusInfinity);
    for (int a = lattice.begin; a < lattice.end; ++a) {
      const int64_t label = arcs.arc[a].label(), before = step - arcs.arc[a].step();
      if (before < 0) continue;
      const double* from = alpha_ + before * width_;
      const int64_t begin = std::max(first(step), first(before) + label),
                    end = std::min(last(step), last(before) + label);
      if (begin <= end)
        kernels.add_paths(to + begin, zeros_, from + begin - label, row(a, before) + begin - label, end - begin + 1,
                          to + begin);
    }
  }
  return alpha_[end() * width_ + symbols_];
}

void DurationLattice::share(const DurationArcs& arcs, const DurationArcs::Lattice& lattice, double total) {
  const LossKernels& kernels = loss_kernels();
  beta_[end() * width_ + symbols_] = 0;
  for (int64_t step = end() - 1; step >= 0; --step) {
    double* to = beta_ + step * width_;
    std::fill(to + first(step), to + last(step) + 1, kMinusInfinity);
    for (int a = lattice.begin; a < lattice.end; ++a) {
      const int64_t label = arcs.arc[a].label(), after = step + arcs.arc[a].step();
      int64_t begin = 1, end = 0;  // the nodes from which the arc arrives somewhere
      if (after <= this->end() && total != kMinusInfinity) {
        begin = std::max(first(step), first(after) - label);
        end = std::min(last(step), last(after) - label);
      }
      double* scores = row(a, step);
      if (begin > end) {
        std::fill(scores + first(step), scores + last(step) + 1, 0.0);
        continue;
      }
      const double* next = beta_ + after * width_ + label;
      kernels.add_paths(to + begin, zeros_, next + begin, scores + begin, end - begin + 1, to + begin);
      std::fill(scores + first(step), scores + begin, 0.0);
      kernels.path_share(alpha_ + step * width_ + begin, scores + begin, next + begin, total, end - begin + 1,
                         scores + begin);
      std::fill(scores + end + 1, scores + last(step) + 1, 0.0);
    }
  }
}

}  // namespace prnn
