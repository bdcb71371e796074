// Gradients of the activations. A group of lanes reads a cell's V activations once and writes V gradients, which may be
// in the same place. With b and l the posteriors of a cell's blank and label arc (l times 1 + the FastEmit weight),
//   d cost / d logit_v = (b + l) softmax_v - [v is the blank] b - [v is the label] l.
#include "core/cuda/logits.cuh"
#include "rnnt/cuda/cells.cuh"

namespace prnn::rnnt_cuda {
namespace {

// The terms of a row's gradients.
template <class Real>
struct Row {
  Real blank, label, both, normaliser, scale;
  int label_at;
  bool reads;

  __device__ Row(const Problem& p, const Sequence* sequences, const Shares<Real>& shares,
                 const CostGradients<Real>& cost_gradients, const Cell& cell, int64_t row)
      : blank(0), label(0), normaliser(0), scale(1), label_at(-1) {
    if (cell.real) {
      const Sequence s = sequences[cell.n];
      const Arcs<Real> arcs = shares.arcs[row];
      blank = arcs.blank;
      if (cell.u < s.targets) {
        label = arcs.label * static_cast<Real>(1 + p.fastEmitLambda);
        label_at = p.input == PRNN_LOSS_GATHERED ? 1 : p.targets[s.target_begin + cell.u];
      }
      if (shares.normalisers) normaliser = shares.normalisers[row];
      scale = cost_gradients(cell.n);
    }
    both = p.input == PRNN_LOSS_LOGITS ? blank + label : Real(0);
    // Softmax times zero is not zero where the softmax is NaN: a cell without probability, padding above all, is not
    // read.
    reads = both != 0;
  }
  __device__ Row(const Row& other, int lane)  // that of another lane
      : blank(__shfl_sync(~0u, other.blank, lane)),
        label(__shfl_sync(~0u, other.label, lane)),
        both(__shfl_sync(~0u, other.both, lane)),
        normaliser(__shfl_sync(~0u, other.normaliser, lane)),
        scale(__shfl_sync(~0u, other.scale, lane)),
        label_at(__shfl_sync(~0u, other.label_at, lane)),
        reads(both != 0) {}
};

// The gradient of activation x of class v in a row.
template <class Real>
struct Gradient {
  Real limit;
  int blank_at;

  __device__ explicit Gradient(const Problem& p)
      : limit(p.clamp > 0 ? static_cast<Real>(p.clamp) : static_cast<Real>(-kNever)),
        blank_at(p.input == PRNN_LOSS_GATHERED ? 0 : p.blank) {}
  __device__ __forceinline__ Real operator()(const Row<Real>& row, int v, Real x) const {
    Real gradient = row.reads ? row.both * fast_exp(x - row.normaliser) : Real(0);
    if (v == blank_at) gradient -= row.blank;
    if (v == row.label_at) gradient -= row.label;
    gradient = gradient > limit ? limit : gradient < -limit ? -limit : gradient;  // NaN stays NaN
    return gradient * row.scale;
  }
};

template <class Shape, class Real>
__global__ void __launch_bounds__(kRowThreads, 2)
    gradients_kernel(Problem p, const Sequence* sequences, Shares<Real> shares, CostGradients<Real> cost_gradients,
                     typename Shape::Element* gradients) {
  using Element = typename Shape::Element;
  constexpr int kGroup = Shape::kGroup;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kGroup;
  const int lane = threadIdx.x % kGroup;
  if (at >= p.activation_cells()) return;
  const Row<Real> row(p, sequences, shares, cost_gradients, find_cell(p, sequences, at), at);
  const Gradient<Real> gradient(p);
  row_map<Shape>(static_cast<const Element*>(p.activations) + at * p.classes, gradients + at * p.classes,
                 static_cast<int>(p.classes), lane, row.reads, [&](int v, Real x) { return gradient(row, v, x); });
}

// Each lane finds out about a row; the gradients are made by groups of lanes.
template <class Shape, class Real>
__global__ void __launch_bounds__(kRowThreads)
    short_gradients_kernel(Problem p, const Sequence* sequences, Shares<Real> shares,
                           CostGradients<Real> cost_gradients, typename Shape::Element* gradients, int rounds) {
  using Element = typename Shape::Element;
  constexpr int kGroup = Shape::kGroup, kGroups = 32 / kGroup;
  const int lane = threadIdx.x % 32, classes = static_cast<int>(p.classes);
  const int64_t rows = p.activation_cells();
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / 32 * (kGroups * rounds);
  Cell cell{0, 0, 0, false};
  if (lane < kGroups * rounds && first + lane < rows) cell = find_cell(p, sequences, first + lane);
  const Row<Real> own(p, sequences, shares, cost_gradients, cell, first + lane);
  const Gradient<Real> gradient(p);
  const Element* source = static_cast<const Element*>(p.activations) + first * classes;
  for (int round = 0; round < rounds; ++round) {
    const int at = round * kGroups + lane / kGroup;
    const Row<Real> row(own, at);
    if (first + at < rows) {
      held_row_map<Shape>(source + at * classes, gradients + (first + at) * classes, classes, lane % kGroup, row.reads,
                          [&](int v, Real x) { return gradient(row, v, x); });
    }
  }
}

template <class Real>
struct GradientsLaunch {
  const Problem& problem;
  const Sequence* sequences;
  const Shares<Real>& shares;
  const CostGradients<Real>& cost_gradients;
  void* gradients;
  cudaStream_t stream;

  template <class Shape>
  void run() const {
    using Element = typename Shape::Element;
    constexpr int kGroup = Shape::kGroup;
    const int64_t rows = problem.activation_cells();
    if constexpr (Shape::kHeld) {
      const int rounds = rounds_for_rows<kGroup>(rows);
      const unsigned blocks = blocks_for_rows<kGroup>(ceil_div(rows, rounds));
      short_gradients_kernel<Shape><<<blocks, kRowThreads, 0, stream>>>(problem, sequences, shares, cost_gradients,
                                                                        static_cast<Element*>(gradients), rounds);
    } else {
      gradients_kernel<Shape><<<blocks_for_rows<kGroup>(rows), kRowThreads, 0, stream>>>(
          problem, sequences, shares, cost_gradients, static_cast<Element*>(gradients));
    }
    check_launch("rnnt gradients_kernel");
  }
};

}  // namespace

template <class Real>
void run_gradients(const Problem& problem, const Sequence* sequences, const Shares<Real>& shares,
                   const CostGradients<Real>& cost_gradients, void* gradients, cudaStream_t stream) {
  for_rows<Real>(problem.dataType, problem.classes, problem.classes, {problem.activations, gradients},
                 GradientsLaunch<Real>{problem, sequences, shares, cost_gradients, gradients, stream});
}

template void run_gradients(const Problem&, const Sequence*, const Shares<float>&, const CostGradients<float>&, void*,
                            cudaStream_t);
template void run_gradients(const Problem&, const Sequence*, const Shares<double>&, const CostGradients<double>&, void*,
                            cudaStream_t);

}  // namespace prnn::rnnt_cuda
