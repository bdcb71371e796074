// The recursions of CTC by their kernels, beside the same in logarithms and double: costs, the probabilities of being
// in a state, and the best path.
//
//     run_ctc type=float frames=90 targets=40 batch=3 seed=1
#include "arrays.h"
#include "instructions.h"

#include "ctc/cuda/ctc_recursion.cu"

namespace prnn::ctc_cuda {
namespace {

double add_logs(double a, double b) {
  const double larger = std::max(a, b);
  return larger == kNever ? kNever : larger + std::log(std::exp(a - larger) + std::exp(b - larger));
}

// A sequence's states, blanks at even places and labels at odd ones.
template <class Real>
struct Reference {
  const Real *blanks, *labels;
  int64_t width;
  const int* symbols;
  int frames, targets;
  std::vector<double> alpha, beta, best;

  int states() const { return 2 * targets + 1; }
  size_t at(int t, int state) const { return size_t(t) * states() + state; }
  double arc(int t, int state) const {
    return state % 2 == 0 ? static_cast<double>(blanks[t]) : static_cast<double>(labels[t * width + state / 2]);
  }
  bool may_follow(int state, int earlier) const {
    const int by = state - earlier;
    return by <= 1 || (by == 2 && state % 2 == 1 && symbols[state / 2] != symbols[state / 2 - 1]);
  }

  void run() {
    alpha.assign(at(frames, 0), kNever);
    beta = best = alpha;
    for (int t = 0; t < frames; ++t) {
      for (int state = 0; state < states(); ++state) {
        double sum = t == 0 && state < 2 ? 0 : kNever, most = sum;
        for (int earlier = std::max(0, state - 2); t > 0 && earlier <= state; ++earlier) {
          if (!may_follow(state, earlier)) continue;
          sum = add_logs(sum, alpha[at(t - 1, earlier)]);
          most = std::max(most, best[at(t - 1, earlier)]);
        }
        alpha[at(t, state)] = sum + arc(t, state);
        best[at(t, state)] = most + arc(t, state);
      }
    }
    for (int t = frames - 1; t >= 0; --t) {
      for (int state = 0; state < states(); ++state) {
        double& sum = beta[at(t, state)];
        if (t + 1 == frames && state >= states() - 2) sum = 0;
        for (int later = state; t + 1 < frames && later < std::min(state + 3, states()); ++later) {
          if (may_follow(later, state)) sum = add_logs(sum, beta[at(t + 1, later)] + arc(t + 1, later));
        }
      }
    }
  }
  template <class Join>
  double end(const std::vector<double>& values, const Join& join) const {
    const double blank = values[at(frames - 1, states() - 1)];
    return targets > 0 ? join(blank, values[at(frames - 1, states() - 2)]) : blank;
  }
  // Returns the score of the path with target i in frames [begins[i], ends[i]).
  double score(const int* begins, const int* ends) const {
    double sum = 0;
    int i = 0;
    for (int t = 0; t < frames; ++t) {
      while (i < targets && t >= ends[i]) ++i;
      sum += arc(t, i < targets && t >= begins[i] ? 2 * i + 1 : 2 * i);
    }
    return sum;
  }
};

template <class Real>
void run(CtcParams p) {
  prnnCTCLossOptions_t& o = p.options;
  std::mt19937 bits(11);
  std::vector<int> frames, targets, symbols;
  for (int64_t n = 0; n < o.batch; ++n) {
    targets.push_back(static_cast<int>(n == 0 ? o.maxTargets : bits() % (o.maxTargets + 1)));
    frames.push_back(static_cast<int>(n == 0 ? o.maxFrames : std::min<int64_t>(o.maxFrames, 2 * targets[n] + 1)));
    for (int i = 0; i < targets[n]; ++i) symbols.push_back(1 + static_cast<int>(bits() % 3));
  }
  o.targetElements = static_cast<int64_t>(symbols.size());
  p.targets = symbols.data(), p.frame_lengths = frames.data(), p.target_lengths = targets.data();
  const size_t width = o.maxTargets + 1, rows = o.batch * o.maxFrames;
  std::vector<Sequence> sequences(o.batch);
  std::vector<Real> blanks(rows), labels(rows * width), shares(rows * (width + 1)), costs(o.batch), scores(o.batch);
  std::vector<States<Real>> alpha(rows * width), beta(rows * width);
  std::vector<Scaled<Real>> totals(o.batch);
  std::vector<BestStates> best(rows * width);
  std::vector<unsigned char> moves(rows * width * 2), first(o.batch * width);
  std::vector<int> next(o.batch * width), begins(o.batch * width), ends(o.batch * width);
  for (Real& blank : blanks) blank = static_cast<Real>(normal() - 1);
  for (Real& label : labels) label = static_cast<Real>(normal() - 1);

  const Arrays<Real> arrays{sequences.data(), blanks.data(), labels.data(), alpha.data(), beta.data(), totals.data()};
  run_setup(p, sequences.data(), nullptr);
  run_recursion(p, arrays, Repeats{next.data(), reinterpret_cast<bool*>(first.data())}, costs.data(), nullptr);
  run_shares(p, arrays, shares.data(), ReducedCosts<Real>{}, nullptr);
  run_best_path(p, arrays, best.data(), moves.data(), scores.data(), begins.data(), ends.data(), nullptr);

  Comparison of_costs{"costs"}, of_blanks{"blanks"}, of_labels{"labels"}, of_scores{"best"}, of_paths{"path"};
  const int* own_symbols = symbols.data();
  for (int64_t n = 0; n < o.batch; ++n) {
    const size_t row = n * o.maxFrames;
    Reference<Real> reference{&blanks[row],
                              &labels[row * width],
                              static_cast<int64_t>(width),
                              own_symbols,
                              frames[n],
                              targets[n],
                              {},
                              {},
                              {}};
    own_symbols += targets[n];
    reference.run();
    const double total = reference.end(reference.alpha, add_logs);
    const double most = reference.end(reference.best, [](double a, double b) { return std::max(a, b); });
    of_costs.add(costs[n], -total);
    of_scores.add(scores[n], most);
    of_paths.add(reference.score(&begins[n * o.maxTargets], &ends[n * o.maxTargets]), most);
    for (int t = 0; t < frames[n]; ++t) {
      const Real* const found = &shares[(row + t) * (width + 1)];
      double of_blank = 0;
      for (int state = 0; state < reference.states(); ++state) {
        const size_t at = reference.at(t, state);
        const double share = std::exp(reference.alpha[at] + reference.beta[at] - total);
        if (state % 2 == 0) of_blank += share;
        if (state % 2 == 1) of_labels.add(found[1 + state / 2], share);
      }
      of_blanks.add(found[0], of_blank);
    }
  }
}

}  // namespace
}  // namespace prnn::ctc_cuda

int main(int count, char** words) {
  prnn::CtcParams p{};
  p.options.targetLayout = PRNN_TARGETS_CONCATENATED;
  p.options.classes = 4;
  bool is_double = false;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i], name = word.substr(0, word.find('=')), value = word.substr(name.size() + 1);
    if (name == "type") is_double = value == "double";
    if (name == "frames") p.options.maxFrames = std::stoi(value);
    if (name == "targets") p.options.maxTargets = std::stoi(value);
    if (name == "batch") p.options.batch = std::stoi(value);
    if (name == "seed") gpu::seed = static_cast<unsigned>(std::stoi(value));
  }
  p.options.dataType = is_double ? PRNN_DATA_DOUBLE : PRNN_DATA_FLOAT;
  is_double ? prnn::ctc_cuda::run<double>(p) : prnn::ctc_cuda::run<float>(p);
  return 0;
}
