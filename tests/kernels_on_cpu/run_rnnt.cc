// The recursions over an RNN-T lattice by their kernels, beside the same in logarithms and double: costs, the arcs'
// probabilities, and the best path.
//
//     run_rnnt type=float lattice=regular frames=40 targets=70 batch=3 seed=1
#include "arrays.h"
#include "instructions.h"
#include "rnnt/cuda/lattice.cu"

namespace prnn::rnnt_cuda {
namespace {

double add_logs(double a, double b) {
  const double larger = std::max(a, b);
  return larger == kNever ? kNever : larger + std::log(std::exp(a - larger) + std::exp(b - larger));
}

// A sequence's lattice: (T + 1) x (U + 1) nodes.
template <class Real>
struct Reference {
  const Problem& p;
  const Arcs<Real>* arcs;
  int frames, targets;
  std::vector<double> alpha, beta, best;

  size_t node(int t, int u) const { return size_t(t) * (targets + 1) + u; }
  const Arcs<Real>& at(int t, int u) const { return arcs[(t + p.skew() * u) * p.width() + u]; }
  double blank(int t, int u) const { return at(t, u).blank; }
  double label(int t, int u) const { return u < targets ? static_cast<double>(at(t, u).label) : kNever; }
  int after_label() const { return 1 - p.skew(); }  // frames on

  void run() {
    alpha.assign(node(frames, targets) + 1, kNever);
    beta = best = alpha;
    alpha[0] = best[0] = 0;
    beta.back() = 0;
    for (int t = 0; t < frames; ++t) {
      for (int u = 0; u <= targets; ++u) pass(t, u);
    }
    for (int t = frames - 1; t >= 0; --t) {
      for (int u = targets; u >= 0; --u) {
        beta[node(t, u)] = beta[node(t + 1, u)] + blank(t, u);
        if (u < targets)
          beta[node(t, u)] = add_logs(beta[node(t, u)], beta[node(t + after_label(), u + 1)] + label(t, u));
      }
    }
  }
  void pass(int t, int u) {
    const size_t here = node(t, u), down = node(t + 1, u);
    alpha[down] = add_logs(alpha[down], alpha[here] + blank(t, u));
    best[down] = std::max(best[down], best[here] + blank(t, u));
    if (u == targets) return;
    const size_t on = node(t + after_label(), u + 1);
    alpha[on] = add_logs(alpha[on], alpha[here] + label(t, u));
    best[on] = std::max(best[on], best[here] + label(t, u));
  }
  // Returns the score of the path that emits target u in frame times[u].
  double score(const int* times) const {
    double sum = 0;
    int u = 0;
    for (int t = 0; t < frames; ++t) {
      bool has_left = false;
      for (; u < targets && times[u] == t && !has_left; ++u) {
        sum += label(t, u);
        has_left = after_label() == 1;
      }
      if (!has_left) sum += blank(t, u);
    }
    return u == targets ? sum : kNever;
  }
};

template <class Real>
void run(Problem p) {
  std::mt19937 bits(11);
  std::vector<int> frames, targets;
  for (int64_t n = 0; n < p.batch; ++n) {
    frames.push_back(static_cast<int>(n == 0 ? p.maxFrames : p.maxFrames - bits() % (p.maxFrames / 2)));
    targets.push_back(static_cast<int>(n == 0 ? p.maxTargets : bits() % (p.maxTargets + 1)));
    if (p.skew() == 0) targets[n] = std::min(targets[n], frames[n]);
  }
  p.frame_lengths = frames.data(), p.target_lengths = targets.data();
  const size_t cells = p.lattice_cells(), rows = p.activation_cells();
  std::vector<Sequence> sequences(p.batch);
  std::vector<Arcs<Real>> arcs(cells), shares(rows);
  std::vector<Scaled<Real>> alpha(cells, {Real(7), 7}), beta = alpha, totals(p.batch);
  std::vector<Real> costs(p.batch), path_scores(p.batch);
  std::vector<double> best(cells);
  std::vector<int> times(p.batch * p.maxTargets + 1);
  for (Arcs<Real>& arc : arcs) arc = {Real(normal() - 1), Real(normal() - 1)};

  const Lattice<Real> lattice{sequences.data(), arcs.data(), alpha.data(), beta.data(), totals.data()};
  run_setup(p, sequences.data(), nullptr);
  run_recursion(p, lattice, costs.data(), nullptr);
  run_shares(p, lattice, shares.data(), ReducedCosts<Real>{}, nullptr);
  run_best_path(p, lattice, best.data(), path_scores.data(), times.data(), nullptr);

  Comparison of_costs{"costs"}, of_blanks{"blanks"}, of_labels{"labels"}, of_scores{"best"}, of_paths{"path"};
  for (int64_t n = 0; n < p.batch; ++n) {
    Reference<Real> reference{p, arcs.data() + n * p.steps() * p.width(), frames[n], targets[n], {}, {}, {}};
    reference.run();
    const double total = reference.alpha.back();
    of_costs.add(costs[n], -total);
    of_scores.add(path_scores[n], reference.best.back());
    of_paths.add(reference.score(times.data() + n * p.maxTargets), reference.best.back());
    for (int t = 0; t < frames[n]; ++t) {
      for (int u = 0; u <= targets[n]; ++u) {
        const Arcs<Real> found = shares[(n * p.maxFrames + t) * p.width() + u];
        const double here = reference.alpha[reference.node(t, u)] - total;
        of_blanks.add(found.blank, std::exp(here + reference.blank(t, u) + reference.beta[reference.node(t + 1, u)]));
        if (u == targets[n]) continue;
        const double after = reference.beta[reference.node(t + reference.after_label(), u + 1)];
        of_labels.add(found.label, std::exp(here + reference.label(t, u) + after));
      }
    }
  }
}

}  // namespace
}  // namespace prnn::rnnt_cuda

int main(int count, char** words) {
  prnn::rnnt_cuda::Problem p{};
  p.input = PRNN_LOSS_GATHERED;
  bool is_double = false;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i], name = word.substr(0, word.find('=')), value = word.substr(name.size() + 1);
    if (name == "type") is_double = value == "double";
    if (name == "lattice") p.type = value == "regular" ? PRNN_RNNT_REGULAR : PRNN_RNNT_MODIFIED;
    if (name == "frames") p.maxFrames = std::stoi(value);
    if (name == "targets") p.maxTargets = std::stoi(value);
    if (name == "batch") p.batch = std::stoi(value);
    if (name == "seed") gpu::seed = static_cast<unsigned>(std::stoi(value));
  }
  p.dataType = is_double ? PRNN_DATA_DOUBLE : PRNN_DATA_FLOAT;
  is_double ? prnn::rnnt_cuda::run<double>(p) : prnn::rnnt_cuda::run<float>(p);
  return 0;
}
