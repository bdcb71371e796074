// Between logits and arcs, both ways. A group of lanes has a cell: from its token and duration logits, read once, it
// makes the scores of the cell's arcs, and, in the backward call, with the shares s of the arcs in the cost,
//   d cost / d logit_k = softmax_k (sum of the shares) - (shares of the arcs that score k)
// for the tokens and for the durations alike.
#include "core/cuda/logits.cuh"
#include "rnnt/cuda/duration_cells.cuh"

namespace prnn::duration_cuda {
namespace {

// Elements of a row that whole pieces of kWidth hold. Other logits may follow the row, so that its end need not be that
// of a piece.
template <int kWidth>
__device__ __forceinline__ int64_t in_pieces(int64_t classes) {
  return classes / kWidth * kWidth;
}

// row_log_sum_exp() of a row of any length. All lanes of the warp take part, with the same `classes`; a group whose row
// is not wanted has `real` false.
template <class Real, class Element, int kWidth, int kGroup>
__device__ __forceinline__ Real log_sum_exp(const Element* row, int64_t classes, bool real, int lane) {
  const int64_t begin = in_pieces<kWidth>(classes);
  const Real whole = row_log_sum_exp<Real, Element, kWidth, kGroup>(row, real ? begin : 0, lane);
  if (begin == classes) return whole;
  const Real rest = row_log_sum_exp<Real, Element, 1, kGroup>(row + begin, real ? classes - begin : 0, lane);
  const Real highest = max(whole, rest);
  const Real shift = highest == static_cast<Real>(kNever) ? Real(0) : highest;
  return shift + log(exp(whole - shift) + exp(rest - shift));
}

template <class Element, int kWidth, int kGroup, class Real>
__global__ void __launch_bounds__(kRowThreads)
    emissions_kernel(const __grid_constant__ Problem p, Lattices<Real> lattices, Shares<Real> shares) {
  const int64_t index = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kGroup;
  const int lane = threadIdx.x % kGroup;
  const Cell cell(p, lattices.sequences, index < p.cells() ? index : 0);
  const bool real = index < p.cells() && cell.real;
  const Element* tokens = static_cast<const Element*>(p.tokens) + index * p.token_stride;
  const Element* durations = static_cast<const Element*>(p.durations) + index * p.duration_stride;
  const int entries = p.arcs.entries;
  const Real token_norm = log_sum_exp<Real, Element, kWidth, kGroup>(tokens, p.classes, real, lane);
  Real duration_norm = 0;
  if (entries > 0) duration_norm = log_sum_exp<Real, Element, 1, kGroup>(durations, entries, real, lane);
  if (!real) return;
  if (lane == 0 && shares.token_normalisers) {
    shares.token_normalisers[index] = token_norm;
    if (entries > 0) shares.duration_normalisers[index] = duration_norm;
  }
  Real* scores = lattices.scores + (cell.n * p.steps() + cell.t + cell.u) * p.arcs.count() * p.width() + cell.u;
  for (int i = lane; i < p.arcs.count(); i += kGroup) {
    const DurationArc& arc = p.arcs.arc[i];
    Real score = static_cast<Real>(kNever);
    if (DurationArcs::leads_on(arc, cell.t, cell.u, cell.sequence.frames, cell.sequence.targets)) {
      const int token = arc.label() ? p.targets[cell.n * p.max_targets + cell.u] : p.blank - arc.blank;
      score = to_real(tokens[token]) - token_norm - static_cast<Real>(arc.sigma);
      if (arc.entry >= 0) score += to_real(durations[arc.entry]) - duration_norm;
    }
    scores[i * p.width()] = score;
  }
}

// What the gradients of a row of logits have in common.
template <class Real>
struct Limits {
  Real limit, scale;
  __device__ Real operator()(Real gradient) const {
    gradient = gradient > limit ? limit : gradient < -limit ? -limit : gradient;  // NaN stays NaN
    return gradient * scale;
  }
};

template <class Element, int kWidth, int kGroup, class Real>
__global__ void __launch_bounds__(kRowThreads, 2)
    gradients_kernel(const __grid_constant__ Problem p, const Sequence* sequences, Shares<Real> shares,
                     const Real* cost_gradients, Element* token_gradients, Element* duration_gradients) {
  const int64_t index = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kGroup;
  const int lane = threadIdx.x % kGroup;
  if (index >= p.cells()) return;
  const Cell cell(p, sequences, index);
  const int blanks = p.arcs.blanks, entries = p.arcs.entries;
  const Real* slots = shares.slots + index * p.arcs.slots();
  Real token_total = 0, entry_total = 0, token_norm = 0, duration_norm = 0;
  int symbol = -1;
  Limits<Real> limits{p.clamp > 0 ? static_cast<Real>(p.clamp) : static_cast<Real>(CUDART_INF), 1};
  if (cell.real) {
    for (int i = 0; i <= blanks; ++i) token_total += slots[i];
    for (int i = 0; i < entries; ++i) entry_total += slots[1 + blanks + i];
    token_norm = shares.token_normalisers[index];
    if (entries > 0) duration_norm = shares.duration_normalisers[index];
    if (cell.u < cell.sequence.targets) symbol = p.targets[cell.n * p.max_targets + cell.u];
    if (cost_gradients) limits.scale = cost_gradients[cell.n];
  }
  // Softmax times zero is not zero where the softmax is NaN: a cell without probability, padding above all, is not
  // read.
  const bool reads = token_total != 0;
  const auto gradient = [&](int64_t v, Real x) {
    Real value = 0;
    if (reads) {
      value = token_total * fast_exp(x - token_norm);
      if (v == symbol) value -= slots[0];
      if (v <= p.blank && v > p.blank - blanks) value -= slots[1 + p.blank - v];
    }
    return limits(value);
  };
  const Element* tokens = static_cast<const Element*>(p.tokens) + index * p.token_stride;
  token_gradients += index * p.token_stride;
  const int64_t begin = in_pieces<kWidth>(p.classes);
  row_map<Element, kWidth, kGroup>(tokens, token_gradients, begin, lane, reads, gradient);
  if constexpr (kWidth > 1) {
    row_map<Element, 1, kGroup>(tokens + begin, token_gradients + begin, p.classes - begin, lane, reads,
                                [&](int64_t v, Real x) { return gradient(begin + v, x); });
  }
  if (entries == 0) return;
  const bool reads_entries = entry_total != 0;
  row_map<Element, 1, kGroup>(static_cast<const Element*>(p.durations) + index * p.duration_stride,
                              duration_gradients + index * p.duration_stride, entries, lane, reads_entries,
                              [&](int64_t v, Real x) {
                                if (!reads_entries) return limits(Real(0));
                                return limits(entry_total * fast_exp(x - duration_norm) - slots[1 + blanks + v]);
                              });
}

template <class Real>
struct EmissionsLaunch {
  const Problem& problem;
  const Lattices<Real>& lattices;
  const Shares<Real>& shares;
  cudaStream_t stream;

  template <class Element, int kWidth, int kGroup>
  void run() const {
    emissions_kernel<Element, kWidth, kGroup>
        <<<blocks_for_rows<kGroup>(problem.cells()), kRowThreads, 0, stream>>>(problem, lattices, shares);
    check_launch("duration emissions_kernel");
  }
};

template <class Real>
struct GradientsLaunch {
  const Problem& problem;
  const Sequence* sequences;
  const Shares<Real>& shares;
  const Real* cost_gradients;
  void *token_gradients, *duration_gradients;
  cudaStream_t stream;

  template <class Element, int kWidth, int kGroup>
  void run() const {
    gradients_kernel<Element, kWidth, kGroup><<<blocks_for_rows<kGroup>(problem.cells()), kRowThreads, 0, stream>>>(
        problem, sequences, shares, cost_gradients, static_cast<Element*>(token_gradients),
        static_cast<Element*>(duration_gradients));
    check_launch("duration gradients_kernel");
  }
};

}  // namespace

// The pieces are as wide as the distance between cells allows, whatever the number of classes.
template <class Real>
void run_emissions(const Problem& problem, const Lattices<Real>& lattices, const Shares<Real>& shares,
                   cudaStream_t stream) {
  for_rows<Real>(problem.type, problem.token_stride, problem.token_stride, {problem.tokens},
                 EmissionsLaunch<Real>{problem, lattices, shares, stream});
}

template <class Real>
void run_gradients(const Problem& problem, const Sequence* sequences, const Shares<Real>& shares,
                   const Real* cost_gradients, void* token_gradients, void* duration_gradients, cudaStream_t stream) {
  for_rows<Real>(
      problem.type, problem.token_stride, problem.token_stride, {problem.tokens, token_gradients},
      GradientsLaunch<Real>{problem, sequences, shares, cost_gradients, token_gradients, duration_gradients, stream});
}

template void run_emissions(const Problem&, const Lattices<float>&, const Shares<float>&, cudaStream_t);
template void run_emissions(const Problem&, const Lattices<double>&, const Shares<double>&, cudaStream_t);
template void run_gradients(const Problem&, const Sequence*, const Shares<float>&, const float*, void*, void*,
                            cudaStream_t);
template void run_gradients(const Problem&, const Sequence*, const Shares<double>&, const double*, void*, void*,
                            cudaStream_t);

}  // namespace prnn::duration_cuda
