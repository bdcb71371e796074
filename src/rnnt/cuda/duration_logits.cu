// Between logits and arcs, both ways. A group of lanes has a cell: from its token and duration logits, read once, it
// makes the scores of the cell's arcs, and, in the backward call, with the shares s of the arcs in the cost,
//   d cost / d logit_k = softmax_k (sum of the shares) - (shares of the arcs that score k)
// for the tokens and for the durations alike.
#include "core/cuda/logits.cuh"
#include "rnnt/cuda/duration_cells.cuh"

namespace prnn::duration_cuda {
namespace {

// A cell's duration logits.
template <class Shape>
using Durations = Few<typename Shape::Real, Shape::kGroup, PRNN_MAX_DURATIONS>;

template <class Shape, class Real>
__global__ void __launch_bounds__(kRowThreads)
    emissions_kernel(const __grid_constant__ Problem p, Lattices<Real> lattices, Shares<Real> shares) {
  using Element = typename Shape::Element;
  constexpr int kGroup = Shape::kGroup;
  __shared__ DurationArc arcs[DurationArcs::kMaxArcs];  // lanes look at different ones
  if (threadIdx.x < DurationArcs::kMaxArcs) arcs[threadIdx.x] = p.arcs.arc[threadIdx.x];
  __syncthreads();
  const int64_t index = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kGroup;
  const int lane = threadIdx.x % kGroup;
  const Cell cell(p, lattices.sequences, index < p.cells() ? index : 0);
  const bool real = index < p.cells() && cell.real;
  const Element* tokens = static_cast<const Element*>(p.tokens) + index * p.token_stride;
  const Element* durations = static_cast<const Element*>(p.durations) + index * p.duration_stride;
  const int entries = p.arcs.entries;
  const Durations<Shape> few(durations, real ? entries : 0, lane, [](int i) { return i; });
  Real token_norm = row_log_sum_exp<Shape>(tokens, real ? static_cast<int>(p.classes) : 0, lane);
  const Real shift = shift_of(group_max<kGroup>(few.highest(static_cast<Real>(kNever))));
  Real duration_norm = shift + log(group_sum<kGroup>(few.sum_exp(shift)));
  if (p.gathered) token_norm = duration_norm = 0;
  if (!real) return;
  if (lane == 0 && shares.token_normalisers) {
    shares.token_normalisers[index] = token_norm;
    if (entries > 0) shares.duration_normalisers[index] = duration_norm;
  }
  Real* scores = lattices.scores + (cell.n * p.steps() + cell.t + cell.u) * p.score_rows() + cell.u;
  for (int i = lane; i < p.arcs.count(); i += kGroup) {
    const DurationArc arc = arcs[i];
    Real score = static_cast<Real>(kNever);
    if (DurationArcs::leads_on(arc, cell.t, cell.u, cell.sequence.frames, cell.sequence.targets)) {
      const int token = !arc.label() ? p.blank - arc.blank
                        : p.gathered ? 1
                                     : p.targets[cell.n * p.max_targets + cell.u];
      score = to_real(tokens[token]) - token_norm - static_cast<Real>(arc.sigma);
      if (arc.entry >= 0) score += to_real(durations[arc.entry]) - duration_norm;
    }
    scores[i * p.width()] = score;
  }
}

// The terms that the gradients of a row of logits have in common.
template <class Real>
struct Limits {
  Real limit, scale;
  __device__ Real operator()(Real gradient) const {
    gradient = gradient > limit ? limit : gradient < -limit ? -limit : gradient;  // NaN stays NaN
    return gradient * scale;
  }
};

template <class Shape, class Real>
__global__ void __launch_bounds__(kRowThreads, 2)
    gradients_kernel(const __grid_constant__ Problem p, const Sequence* sequences, Shares<Real> shares,
                     CostGradients<Real> cost_gradients, typename Shape::Element* token_gradients,
                     typename Shape::Element* duration_gradients) {
  using Element = typename Shape::Element;
  constexpr int kGroup = Shape::kGroup;
  const int64_t index = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kGroup;
  const int lane = threadIdx.x % kGroup;
  if (index >= p.cells()) return;
  const Cell cell(p, sequences, index);
  const int blanks = p.arcs.blanks, entries = p.arcs.entries;
  const Real* record = shares.records + index * p.record_size();
  const Real* slots = record + kSums;
  Real token_total = 0, entry_total = 0, token_norm = 0, duration_norm = 0;
  int symbol = -1;
  Limits<Real> limits{p.clamp > 0 ? static_cast<Real>(p.clamp) : static_cast<Real>(CUDART_INF), 1};
  if (cell.real) {
    token_total = record[0];
    entry_total = record[1];
    token_norm = shares.token_normalisers[index];
    if (entries > 0) duration_norm = shares.duration_normalisers[index];
    if (cell.u < cell.sequence.targets) symbol = p.gathered ? 1 : p.targets[cell.n * p.max_targets + cell.u];
    limits.scale = cost_gradients(cell.n);
  }
  // Softmax times zero is not zero where the softmax is NaN: a cell without probability, padding above all, is not
  // read.
  const bool reads = token_total != 0, reads_entries = entry_total != 0;
  const int last_blank = p.blank;
  const auto gradient = [&](int v, Real x) {
    Real value = 0;
    if (reads) {
      value = p.gathered ? 0 : token_total * fast_exp(x - token_norm);
      if (v == symbol) value -= slots[0];
      const unsigned blank = last_blank - v;
      if (blank < static_cast<unsigned>(blanks)) value -= slots[1 + blank];
    }
    return limits(value);
  };
  const Element* tokens = static_cast<const Element*>(p.tokens) + index * p.token_stride;
  const Element* durations = static_cast<const Element*>(p.durations) + index * p.duration_stride;
  token_gradients += index * p.token_stride;
  duration_gradients += index * p.duration_stride;
  const Durations<Shape> few(durations, reads_entries ? entries : 0, lane, [](int i) { return i; });
  row_map<Shape>(tokens, token_gradients, static_cast<int>(p.classes), lane, reads, gradient);
#pragma unroll
  for (int i = 0; i < Durations<Shape>::kEach; ++i) {
    const int at = lane + i * kGroup;
    if (at >= entries) continue;
    Real value = 0;
    if (reads_entries)
      value = (p.gathered ? 0 : entry_total * fast_exp(few.held[i] - duration_norm)) - slots[1 + blanks + at];
    from_real(duration_gradients[at], limits(value));
  }
}

template <class Real>
struct EmissionsLaunch {
  const Problem& problem;
  const Lattices<Real>& lattices;
  const Shares<Real>& shares;
  cudaStream_t stream;

  template <class Shape>
  void run() const {
    emissions_kernel<Shape>
        <<<blocks_for_rows<Shape::kGroup>(problem.cells()), kRowThreads, 0, stream>>>(problem, lattices, shares);
    check_launch("duration emissions_kernel");
  }
};

template <class Real>
struct GradientsLaunch {
  const Problem& problem;
  const Sequence* sequences;
  const Shares<Real>& shares;
  const CostGradients<Real>& cost_gradients;
  void *token_gradients, *duration_gradients;
  cudaStream_t stream;

  template <class Shape>
  void run() const {
    using Element = typename Shape::Element;
    gradients_kernel<Shape><<<blocks_for_rows<Shape::kGroup>(problem.cells()), kRowThreads, 0, stream>>>(
        problem, sequences, shares, cost_gradients, static_cast<Element*>(token_gradients),
        static_cast<Element*>(duration_gradients));
    check_launch("duration gradients_kernel");
  }
};

}  // namespace

template <class Real>
void run_emissions(const Problem& problem, const Lattices<Real>& lattices, const Shares<Real>& shares,
                   cudaStream_t stream) {
  for_rows<Real>(problem.type, problem.classes, problem.token_stride, {problem.tokens},
                 EmissionsLaunch<Real>{problem, lattices, shares, stream});
}

template <class Real>
void run_gradients(const Problem& problem, const Sequence* sequences, const Shares<Real>& shares,
                   const CostGradients<Real>& cost_gradients, void* token_gradients, void* duration_gradients,
                   cudaStream_t stream) {
  for_rows<Real>(
      problem.type, problem.classes, problem.token_stride, {problem.tokens, token_gradients},
      GradientsLaunch<Real>{problem, sequences, shares, cost_gradients, token_gradients, duration_gradients, stream});
}

template void run_emissions(const Problem&, const Lattices<float>&, const Shares<float>&, cudaStream_t);
template void run_emissions(const Problem&, const Lattices<double>&, const Shares<double>&, cudaStream_t);
template void run_gradients(const Problem&, const Sequence*, const Shares<float>&, const CostGradients<float>&, void*,
                            void*, cudaStream_t);
template void run_gradients(const Problem&, const Sequence*, const Shares<double>&, const CostGradients<double>&, void*,
                            void*, cudaStream_t);

}  // namespace prnn::duration_cuda
