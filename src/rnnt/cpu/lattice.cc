#include "rnnt/cpu/lattice.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/cpu/loss_kernels.h"

namespace prnn {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

}  // namespace

size_t Lattice::scratch_size(int64_t steps, int64_t width) {
  const int64_t words = 2 * (steps + 1) + (2 * steps + (steps + 1) + 2) * width;
  return static_cast<size_t>((words + 1) / 2 * 2) * sizeof(double);
}

Lattice::Lattice(void* scratch, int64_t steps, int64_t width) : steps_(steps), width_(width) {
  base_ = static_cast<int64_t*>(scratch);
  count_ = base_ + steps + 1;
  blank_ = reinterpret_cast<double*>(count_ + steps + 1);
  label_ = blank_ + steps * width;
  alpha_ = label_ + steps * width;
  beta_ = alpha_ + (steps + 1) * width;
  beta_next_ = beta_ + width;
}

void Lattice::set_full(bool regular, int64_t frames, int64_t last, int64_t symbols) {
  regular_ = regular;
  steps_ = regular ? last + symbols : last;
  for (int64_t d = 0; d < steps_; ++d) {
    const int64_t first = regular ? std::max<int64_t>(0, d - (frames - 1)) : std::max(INT64_C(0), symbols - (last - d));
    base_[d] = first;
    count_[d] = std::max<int64_t>(0, std::min(d, symbols) - first + 1);
  }
  end_step(symbols);
}

void Lattice::set_pruned(bool regular, int64_t frames, int64_t symbols, const int* begins, int64_t range) {
  regular_ = regular;
  steps_ = regular ? frames + symbols : frames;
  std::fill(base_, base_ + steps_, INT64_C(0));
  std::fill(count_, count_ + steps_, INT64_C(0));
  // In order of falling t, and so of rising u within a step: the first node met is the step's base.
  for (int64_t t = frames - 1; t >= 0; --t) {
    const int64_t end = std::min(begins[t] + range, symbols + 1);
    if (!regular) {
      base_[t] = begins[t];
      count_[t] = std::max<int64_t>(0, end - begins[t]);
      continue;
    }
    for (int64_t u = begins[t]; u < end; ++u) {
      if (count_[t + u]++ == 0) base_[t + u] = u;
    }
  }
  end_step(symbols);
}

void Lattice::end_step(int64_t symbols) {
  base_[steps_] = symbols;
  count_[steps_] = 1;
}

double Lattice::sum_paths() {
  const LossKernels& kernels = loss_kernels();
  if (!has(0, 0)) return kMinusInfinity;
  std::fill(alpha_, alpha_ + count_[0], kMinusInfinity);
  alpha_[-base_[0]] = 0;
  for (int64_t d = 0; d < steps_; ++d) {
    // Node u of the next step is reached by the blank from u and by the label from u - 1 of this one.
    const int64_t b0 = base_[d], e0 = b0 + count_[d], b1 = base_[d + 1], e1 = b1 + count_[d + 1];
    const double* blank = blank_ + d * width_ - b0;
    const double* label = label_ + d * width_ - b0;
    const double* from = alpha_ + d * width_ - b0;
    double* to = alpha_ + (d + 1) * width_ - b1;
    std::fill(to + b1, to + e1, kMinusInfinity);
    if (e0 == b0) continue;
    if (b0 >= b1 && b0 < e1) to[b0] = from[b0] + blank[b0];
    if (e0 >= b1 && e0 < e1) to[e0] = from[e0 - 1] + label[e0 - 1];
    const int64_t begin = std::max(b1, b0 + 1), end = std::min(e1, e0);
    if (begin < end)
      kernels.add_paths(from + begin, blank + begin, from + begin - 1, label + begin - 1, end - begin, to + begin);
  }
  return alpha_[steps_ * width_];
}

void Lattice::share(double total) {
  if (total == kMinusInfinity) {
    for (int64_t d = 0; d < steps_; ++d) {
      std::fill_n(blank_ + d * width_, count_[d], 0.0);
      std::fill_n(label_ + d * width_, count_[d], 0.0);
    }
    return;
  }
  const LossKernels& kernels = loss_kernels();
  beta_next_[0] = 0;
  for (int64_t d = steps_ - 1; d >= 0; --d) {
    const int64_t b0 = base_[d], e0 = b0 + count_[d], b1 = base_[d + 1], e1 = b1 + count_[d + 1];
    double* blank = blank_ + d * width_ - b0;
    double* label = label_ + d * width_ - b0;
    const double* alpha = alpha_ + d * width_ - b0;
    const double* next = beta_next_ - b1;
    double* beta = beta_ - b0;
    // Arcs that arrive somewhere: the blanks of u in [blank_begin, blank_end), the labels one node earlier.
    const int64_t blank_begin = std::clamp(b1, b0, e0), blank_end = std::clamp(e1, b0, e0);
    const int64_t label_begin = std::clamp(b1 - 1, b0, e0), label_end = std::clamp(e1 - 1, b0, e0);
    std::fill(beta + b0, beta + e0, kMinusInfinity);
    if (blank_begin < label_end)
      kernels.add_paths(blank + blank_begin, next + blank_begin, label + blank_begin, next + blank_begin + 1,
                        label_end - blank_begin, beta + blank_begin);
    for (int64_t u = label_begin; u < std::min(blank_begin, label_end); ++u) beta[u] = label[u] + next[u + 1];
    for (int64_t u = std::max(label_end, blank_begin); u < blank_end; ++u) beta[u] = blank[u] + next[u];

    std::fill(blank + b0, blank + blank_begin, 0.0);
    kernels.path_share(alpha + blank_begin, blank + blank_begin, next + blank_begin, total, blank_end - blank_begin,
                       blank + blank_begin);
    std::fill(blank + blank_end, blank + e0, 0.0);
    std::fill(label + b0, label + label_begin, 0.0);
    kernels.path_share(alpha + label_begin, label + label_begin, next + label_begin + 1, total, label_end - label_begin,
                       label + label_begin);
    std::fill(label + label_end, label + e0, 0.0);
    std::swap(beta_, beta_next_);
  }
}

double Lattice::best_path(int64_t symbols, int* times) {
  std::fill(times, times + symbols, -1);
  if (!has(0, 0)) return kMinusInfinity;
  std::fill(alpha_, alpha_ + count_[0], kMinusInfinity);
  alpha_[-base_[0]] = 0;
  // Scores of the two ways into node u of step d + 1.
  const auto by_blank = [&](int64_t d, int64_t u) {
    return has(d, u) ? alpha_[d * width_ + u - base_[d]] + blank(d, u) : kMinusInfinity;
  };
  const auto by_label = [&](int64_t d, int64_t u) {
    return has(d, u - 1) ? alpha_[d * width_ + u - 1 - base_[d]] + label(d, u - 1) : kMinusInfinity;
  };
  for (int64_t d = 0; d < steps_; ++d) {
    for (int64_t u = base_[d + 1]; u < base_[d + 1] + count_[d + 1]; ++u) {
      const double a = by_blank(d, u), b = by_label(d, u);
      alpha_[(d + 1) * width_ + u - base_[d + 1]] = std::isnan(a) || a >= b ? a : b;
    }
  }
  const double score = alpha_[steps_ * width_];
  if (std::isnan(score) || score == kMinusInfinity) return score;
  int64_t u = symbols;
  for (int64_t d = steps_ - 1; d >= 0; --d) {
    if (by_blank(d, u) >= by_label(d, u)) continue;
    --u;
    times[u] = static_cast<int>(regular_ ? d - u : d);
  }
  return score;
}

}  // namespace prnn
