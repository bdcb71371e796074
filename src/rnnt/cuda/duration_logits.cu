// Between logits and arcs, both ways. A group of lanes has a cell: from its token and duration logits, read once, it
// makes the scores of the cell's arcs, and, in the backward call, with the shares s of the arcs in the cost,
//   d cost / d logit_k = softmax_k (sum of the shares) - (shares of the arcs that score k)
// for the tokens and for the durations alike.
#include "core/cuda/logits.cuh"
#include "rnnt/cuda/duration_cells.cuh"

namespace prnn::duration_cuda {
namespace {

// A row of any length at any address: pieces of kWidth elements from `head` on, and the elements around them.
template <class Element, int kWidth>
struct Split {
  int64_t head, whole, rest;

  __device__ Split(const Element* row, int64_t classes) {
    const int over = static_cast<int>(reinterpret_cast<uintptr_t>(row) / sizeof(Element) % kWidth);
    head = over == 0 ? 0 : kWidth - over;
    if (head > classes) head = classes;
    whole = (classes - head) / kWidth * kWidth;
    rest = classes - whole;
  }
  // Where the i-th of the elements around the pieces lies.
  __device__ int64_t at(int64_t i) const { return i < head ? i : i + whole; }
};

// A few elements of a row, spread over the lanes of a group and fetched ahead of the many that lie in pieces. No more
// than 16, which the durations are, and the elements around pieces.
template <class Real, class Element, int kGroup>
struct Few {
  static constexpr int kEach = kGroup < 16 ? 16 / kGroup : 1;

  Real held[kEach];  // minus infinity where there is none

  template <class Place>
  __device__ Few(const Element* row, int64_t count, int lane, Place place) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      held[i] = static_cast<Real>(kNever);
      if (lane + i * kGroup < count) held[i] = to_real(row[place(lane + i * kGroup)]);
    }
  }

  // log of the sum of exp over them and over something whose such logarithm is known. All lanes of the warp take part.
  __device__ Real log_sum_exp(Real known) const {
    Real highest = known, sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) highest = max(highest, held[i]);
    highest = group_max<kGroup>(highest);
    const Real shift = highest == static_cast<Real>(kNever) ? Real(0) : highest;
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum += fast_exp(held[i] - shift);
    return shift + log(group_sum<kGroup>(sum) + exp(known - shift));
  }
};

template <class Element, int kWidth, int kGroup, class Real>
__global__ void __launch_bounds__(kRowThreads)
    emissions_kernel(const __grid_constant__ Problem p, Lattices<Real> lattices, Shares<Real> shares) {
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
  const Split<Element, kWidth> split(tokens, real ? p.classes : 0);
  const Few<Real, Element, kGroup> around(tokens, split.rest, lane, [&](int64_t i) { return split.at(i); });
  const Few<Real, Element, kGroup> few(durations, real ? entries : 0, lane, [](int64_t i) { return i; });
  const Real inside = row_log_sum_exp<Real, Element, kWidth, kGroup>(tokens + split.head, split.whole, lane);
  const Real token_norm = around.log_sum_exp(inside), duration_norm = few.log_sum_exp(static_cast<Real>(kNever));
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
    if (cell.u < cell.sequence.targets) symbol = p.targets[cell.n * p.max_targets + cell.u];
    if (cost_gradients) limits.scale = cost_gradients[cell.n];
  }
  // Softmax times zero is not zero where the softmax is NaN: a cell without probability, padding above all, is not
  // read.
  const bool reads = token_total != 0, reads_entries = entry_total != 0;
  const int last_blank = p.blank;
  const auto gradient = [&](int v, Real x) {
    Real value = 0;
    if (reads) {
      value = token_total * fast_exp(x - token_norm);
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
  using Small = Few<Real, Element, kGroup>;
  const Split<Element, kWidth> split(tokens, p.classes);
  const Small around(tokens, reads ? split.rest : 0, lane, [&](int64_t i) { return split.at(i); });
  const Small few(durations, reads_entries ? entries : 0, lane, [](int64_t i) { return i; });
  const int head = static_cast<int>(split.head);
  row_map<Element, kWidth, kGroup>(tokens + head, token_gradients + head, split.whole, lane, reads,
                                   [&](int64_t v, Real x) { return gradient(head + static_cast<int>(v), x); });
#pragma unroll
  for (int i = 0; i < Small::kEach; ++i) {
    const int at = lane + i * kGroup;
    if (at < split.rest)
      from_real(token_gradients[split.at(at)], gradient(static_cast<int>(split.at(at)), around.held[i]));
    if (at < entries) {
      Real value = 0;
      if (reads_entries) value = entry_total * fast_exp(few.held[i] - duration_norm) - slots[1 + blanks + at];
      from_real(duration_gradients[at], limits(value));
    }
  }
}

// Elements of a piece.
template <class Element>
constexpr int kWide = 16 / sizeof(Element);

// Calls launch.run<Element, kGroup>(): short rows get few lanes, so that none is without work.
template <class Element, class Launch>
void for_group(int64_t classes, const Launch& launch) {
  if (classes <= 8 * kPieces * kWide<Element>)
    launch.template run<Element, 8>();
  else
    launch.template run<Element, 32>();
}

// The same, over the element types that are computed in Real.
template <class Real, class Launch>
void for_types(const Problem& problem, const Launch& launch) {
  if constexpr (sizeof(Real) == sizeof(double)) {
    for_group<double>(problem.classes, launch);
  } else if (problem.type == PRNN_DATA_HALF) {
    for_group<__half>(problem.classes, launch);
  } else if (problem.type == PRNN_DATA_BFLOAT16) {
    for_group<__nv_bfloat16>(problem.classes, launch);
  } else {
    for_group<float>(problem.classes, launch);
  }
}

template <class Real>
struct EmissionsLaunch {
  const Problem& problem;
  const Lattices<Real>& lattices;
  const Shares<Real>& shares;
  cudaStream_t stream;

  template <class Element, int kGroup>
  void run() const {
    emissions_kernel<Element, kWide<Element>, kGroup>
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

  template <class Element, int kGroup>
  void run() const {
    // Pieces must lie alike in logits and gradients.
    const auto apart = reinterpret_cast<uintptr_t>(problem.tokens) - reinterpret_cast<uintptr_t>(token_gradients);
    if (apart % 16 == 0)
      launch<Element, kWide<Element>, kGroup>();
    else
      launch<Element, 1, 32>();
  }

  template <class Element, int kWidth, int kGroup>
  void launch() const {
    gradients_kernel<Element, kWidth, kGroup><<<blocks_for_rows<kGroup>(problem.cells()), kRowThreads, 0, stream>>>(
        problem, sequences, shares, cost_gradients, static_cast<Element*>(token_gradients),
        static_cast<Element*>(duration_gradients));
    check_launch("duration gradients_kernel");
  }
};

}  // namespace

template <class Real>
void run_emissions(const Problem& problem, const Lattices<Real>& lattices, const Shares<Real>& shares,
                   cudaStream_t stream) {
  for_types<Real>(problem, EmissionsLaunch<Real>{problem, lattices, shares, stream});
}

template <class Real>
void run_gradients(const Problem& problem, const Sequence* sequences, const Shares<Real>& shares,
                   const Real* cost_gradients, void* token_gradients, void* duration_gradients, cudaStream_t stream) {
  for_types<Real>(problem, GradientsLaunch<Real>{problem, sequences, shares, cost_gradients, token_gradients,
                                                 duration_gradients, stream});
}

template void run_emissions(const Problem&, const Lattices<float>&, const Shares<float>&, cudaStream_t);
template void run_emissions(const Problem&, const Lattices<double>&, const Shares<double>&, cudaStream_t);
template void run_gradients(const Problem&, const Sequence*, const Shares<float>&, const float*, void*, void*,
                            cudaStream_t);
template void run_gradients(const Problem&, const Sequence*, const Shares<double>&, const double*, void*, void*,
                            cudaStream_t);

}  // namespace prnn::duration_cuda
