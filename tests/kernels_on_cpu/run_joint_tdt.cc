// TDT with its joiner, from the logits of all cells to their gradients, by the kernels around the products, beside the
// same in double: costs, gradients, the bias's, and which cells the backward pass would leave out.
//
//     run_joint_tdt type=float frames=12 targets=5 batch=3 classes=37 omega=0.2 clamp=0.1 seed=1
#include "../../src/core/status.cc"
#include "../../src/rnnt/duration_arcs.cc"
#include "arrays.h"
#include "instructions.h"
#include "rnnt/cuda/duration_recursion.cu"
#include "rnnt/cuda/joint_frames.cu"
// The forms that are run; all of them take the compiler long.
#undef PRNN_FOR_ALL_FORMS
#define PRNN_FOR_ALL_FORMS(INSTANTIATE) INSTANTIATE(DoubleForm) INSTANTIATE(Tf32Form)
#include "rnnt/cuda/joint_logits.cu"
#include "rnnt/cuda/lattice.cu"

extern "C" float __expf(float x) { return std::exp(x); }

namespace prnn::rnnt_cuda {
namespace {

constexpr double kLeast = 1.0 / (1 << 20);

double add_logs(double a, double b) {
  const double larger = std::max(a, b);
  return larger == kNever ? kNever : larger + std::log(std::exp(a - larger) + std::exp(b - larger));
}

std::vector<double> log_softmax(const double* x, int count) {
  double normaliser = kNever;
  for (int i = 0; i < count; ++i) normaliser = add_logs(normaliser, x[i]);
  std::vector<double> result;
  for (int i = 0; i < count; ++i) result.push_back(x[i] - normaliser);
  return result;
}

// The reference for one sequence. logits: {frames, targets + 1, tokens + entries}.
struct Reference {
  const DurationArcs& arcs;
  double fast_emit;
  int frames, targets, tokens, blank;
  const int* labels;
  const double* logits;
  std::vector<double> gradients;  // as the logits
  std::vector<double> shares;     // of a cell
  double cost = 0;

  int classes() const { return tokens + arcs.entries; }
  size_t node(int t, int u) const { return size_t(t) * (targets + 1) + u; }

  double score(const DurationArc& arc, int t, int u) const {
    if (!DurationArcs::leads_on(arc, t, u, frames, targets)) return kNever;
    const double* row = logits + node(t, u) * classes();
    const int token = arc.label() ? labels[u] : blank - arc.blank;
    double sum = log_softmax(row, tokens)[token] - arc.sigma;
    if (arc.entry >= 0) sum += log_softmax(row + tokens, arcs.entries)[arc.entry];
    return sum;
  }

  void run() {
    const size_t count = node(frames, targets) + 1;
    gradients.assign(count * classes(), 0);
    shares.assign(count, 0);
    for (int l = 0; l < arcs.lattices; ++l) run(arcs.lattice[l], count);
  }
  void run(const DurationArcs::Lattice& lattice, size_t count) {
    std::vector<double> alpha(count, kNever), beta(count, kNever);
    alpha[0] = beta[node(frames, targets)] = 0;
    const auto for_arcs = [&](int t, int u, auto&& function) {
      for (int i = lattice.begin; i < lattice.end; ++i) {
        const DurationArc& arc = arcs.arc[i];
        if (const double own = score(arc, t, u); own != kNever)
          function(arc, own, node(t + arc.duration, u + arc.label()));
      }
    };
    // Labels of no duration lead on within a frame.
    for (int t = 0; t < frames; ++t)
      for (int u = 0; u <= targets; ++u)
        for_arcs(t, u, [&](const DurationArc&, double own, size_t to) {
          alpha[to] = add_logs(alpha[to], alpha[node(t, u)] + own);
        });
    for (int t = frames - 1; t >= 0; --t)
      for (int u = targets; u >= 0; --u)
        for_arcs(t, u, [&](const DurationArc&, double own, size_t to) {
          beta[node(t, u)] = add_logs(beta[node(t, u)], beta[to] + own);
        });
    cost -= lattice.weight * beta[0];
    for (int t = 0; t < frames; ++t)
      for (int u = 0; u <= targets; ++u)
        for_arcs(t, u, [&](const DurationArc& arc, double own, size_t to) {
          const double gain = lattice.weight * (arc.label() ? 1 + fast_emit : 1);
          add(t, u, arc, gain * std::exp(alpha[node(t, u)] + own + beta[to] - beta[0]));
        });
  }
  void add(int t, int u, const DurationArc& arc, double share) {
    const double* row = logits + node(t, u) * classes();
    double* out = gradients.data() + node(t, u) * classes();
    shares[node(t, u)] += share;
    const auto all = log_softmax(row, tokens);
    for (int v = 0; v < tokens; ++v) out[v] += share * std::exp(all[v]);
    out[arc.label() ? labels[u] : blank] -= share;
    if (arc.entry < 0) return;
    const auto own = log_softmax(row + tokens, arcs.entries);
    for (int i = 0; i < arcs.entries; ++i) out[tokens + i] += share * std::exp(own[i]);
    out[tokens + arc.entry] -= share;
  }
};

template <class Form>
void run(prnnDurationRNNTLossOptions_t o) {
  using Real = typename Form::Real;
  std::mt19937 bits(11);
  std::vector<int> frames, targets, labels;
  for (int64_t n = 0; n < o.batch; ++n) {
    frames.push_back(static_cast<int>(n == 0 ? o.maxFrames : o.maxFrames - bits() % (o.maxFrames / 2)));
    targets.push_back(static_cast<int>(n == 0 ? o.maxTargets : bits() % (o.maxTargets + 1)));
  }
  for (int64_t i = 0; i < o.batch * o.maxTargets; ++i) {
    const int label = static_cast<int>(bits() % (o.classes - 1));
    labels.push_back(label + (label >= o.blank));
  }
  int64_t cells = 0;
  for (int64_t n = 0; n < o.batch; ++n) cells += int64_t{frames[n]} * (targets[n] + 1);

  prnnRNNTLossOptions_t lattice{};
  lattice.dataType = o.dataType;
  lattice.layout = PRNN_RNNT_PACKED;
  lattice.batch = o.batch, lattice.maxFrames = o.maxFrames, lattice.maxTargets = o.maxTargets;
  lattice.rows = cells, lattice.classes = o.classes, lattice.blank = o.blank, lattice.clamp = o.clamp;
  const Problem p{lattice, nullptr, labels.data(), frames.data(), targets.data(), nullptr};
  DurationParams params{};
  params.options = o;
  const duration_cuda::Problem tdt(params);
  const int entries = tdt.arcs.entries, classes = static_cast<int>(o.classes) + entries;
  Joint joint{};
  joint.classes = classes, joint.tokens = o.classes, joint.padded_classes = (classes + 7) / 8 * 8;
  const int64_t stride = joint.padded_classes;

  // Products and bias, whose sums are the logits.
  std::vector<Real> products(cells * stride, Real(0)), bias(stride, Real(kNever)), given(classes);
  std::vector<double> logits(cells * classes);
  for (int v = 0; v < classes; ++v) given[v] = Real(normal());
  for (int64_t v = 0; v < o.classes; ++v) bias[v] = given[v];
  for (int64_t cell = 0; cell < cells; ++cell)
    for (int v = 0; v < classes; ++v) {
      products[cell * stride + v] = Real(2 * normal());
      logits[cell * classes + v] = double(products[cell * stride + v]) + given[v];
    }

  std::vector<Sequence> sequences(o.batch);
  std::vector<int64_t> first(o.batch * o.maxFrames + 1), chunk_frames(2);
  std::vector<int> begin(o.batch * o.maxFrames);
  const Scales scales{1, 1, 4};
  const Frames of_cells{first.data(), begin.data(), chunk_frames.data()};
  std::vector<Real> scores(tdt.arcs.count() * tdt.nodes()), costs(o.batch), cost_gradients;
  std::vector<Real> token_normalisers(tdt.cells()), duration_normalisers(tdt.cells());
  void* aligned = nullptr;
  if (posix_memalign(&aligned, 64, tdt.record_size() * tdt.cells() * sizeof(Real)) != 0) std::abort();
  Real* const records = static_cast<Real*>(aligned);
  std::vector<Scaled<Real>> alpha(tdt.arcs.lattices * tdt.nodes()), beta = alpha, totals(2 * o.batch);
  for (int64_t n = 0; n < o.batch; ++n) cost_gradients.push_back(Real(0.5 + n));
  DurationHead<Real> head;
  head.entries = entries, head.first = static_cast<int>(o.classes), head.bias = given.data() + o.classes;
  head.arcs = tdt.arcs, head.scores = scores.data(), head.record_size = tdt.record_size();
  head.shares = {records, token_normalisers.data(), duration_normalisers.data()};
  const duration_cuda::Lattices<Real> lattices{sequences.data(), scores.data(), alpha.data(), beta.data(),
                                               totals.data()};
  const int64_t some = 50;
  const auto for_chunks = [&](auto&& function) {
    for (int64_t at = 0; at < cells; at += some)
      function(Chunk{p, joint, of_cells, sequences.data(), &scales, at, std::min(some, cells - at)});
  };
  run_setup(p, sequences.data(), nullptr);
  run_frames<Real>(p, sequences.data(), {}, 0, of_cells, nullptr);
  for_chunks([&](const Chunk& chunk) {
    // The scales of activations and weight are ones.
    run_joint_emissions<Form>(chunk, {products.data() + chunk.first * stride, bias.data(), {nullptr, nullptr, head}},
                              nullptr);
  });
  duration_cuda::run_recursion(tdt, lattices, costs.data(), nullptr);
  duration_cuda::run_shares(tdt, lattices, records, ReducedCosts<Real>{}, nullptr);

  std::vector<typename Form::Matrix> gradients(cells * stride);
  const int64_t slots = joint_bias_slots(some);
  std::vector<Real> bias_sums(slots * stride, Real(0)), bias_gradients(classes);
  const CellWeights<Real> weights{nullptr, records, tdt.record_size()};
  for_chunks([&](const Chunk& chunk) {
    run_joint_gradients<Form>(chunk,
                              {{weights, token_normalisers.data(), cost_gradients.data()},
                               head,
                               products.data() + chunk.first * stride,
                               bias.data(),
                               gradients.data() + chunk.first * stride,
                               bias_sums.data()},
                              nullptr);
  });
  run_finish_bias(joint, bias_sums.data(), slots, &scales, bias_gradients.data(), nullptr);
  run_frames<Real>(p, sequences.data(), weights, Real(kLeast), of_cells, nullptr);

  Comparison of_costs{"costs"}, of_gradients{"gradients"}, of_bias{"bias"}, of_frames{"frames"};
  std::vector<double> bias_expected(classes, 0);
  int64_t cell = 0, kept = 0;
  for (int64_t n = 0; n < o.batch; ++n) {
    Reference reference{tdt.arcs,
                        o.fastEmitLambda,
                        frames[n],
                        targets[n],
                        static_cast<int>(o.classes),
                        static_cast<int>(o.blank),
                        labels.data() + n * o.maxTargets,
                        logits.data() + cell * classes};
    reference.run();
    of_costs.add(costs[n], reference.cost);
    for (int t = 0; t < o.maxFrames; ++t) {
      of_frames.add(first[n * o.maxFrames + t], kept);
      if (t >= frames[n]) continue;
      int from = targets[n] + 1, to = -1;
      for (int u = 0; u <= targets[n]; ++u, ++cell) {
        if (reference.shares[reference.node(t, u)] > kLeast) from = std::min(from, u), to = u;
        for (int v = 0; v < stride; ++v) {
          double expected = v < classes ? reference.gradients[reference.node(t, u) * classes + v] : 0;
          if (o.clamp > 0) expected = std::max(-o.clamp, std::min(o.clamp, expected));
          expected *= cost_gradients[n];
          if (v < classes) bias_expected[v] += expected;
          of_gradients.add(gradients[cell * stride + v], expected * scales.gradient);
        }
      }
      if (to >= from) {
        of_frames.add(begin[n * o.maxFrames + t], from);
        kept += to - from + 1;
      }
    }
  }
  of_frames.add(first.back(), kept);
  for (int v = 0; v < classes; ++v) of_bias.add(bias_gradients[v], bias_expected[v]);
  std::free(aligned);
}

}  // namespace
}  // namespace prnn::rnnt_cuda

int main(int count, char** words) {
  prnnDurationRNNTLossOptions_t o{};
  const int durations[] = {2, 0, 1, 4};
  o.durationCount = 4;
  std::copy_n(durations, 4, o.durations);
  o.blank = 3;
  o.sigma = 0.05;
  o.fastEmitLambda = 0.1;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i], name = word.substr(0, word.find('=')), value = word.substr(name.size() + 1);
    if (name == "type") o.dataType = value == "double" ? PRNN_DATA_DOUBLE : PRNN_DATA_FLOAT;
    if (name == "frames") o.maxFrames = std::stoi(value);
    if (name == "targets") o.maxTargets = std::stoi(value);
    if (name == "batch") o.batch = std::stoi(value);
    if (name == "classes") o.classes = std::stoi(value);
    if (name == "omega") o.omega = std::stod(value);
    if (name == "clamp") o.clamp = std::stod(value);
    if (name == "seed") gpu::seed = static_cast<unsigned>(std::stoi(value));
  }
  using namespace prnn::rnnt_cuda;
  o.dataType == PRNN_DATA_DOUBLE ? run<DoubleForm>(o) : run<Tf32Form>(o);
  return 0;
}
