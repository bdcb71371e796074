// Gradients of the activations. A group of lanes reads a cell's V activations once and writes V gradients, which may be
// in the same place. With b and l the posteriors of a cell's blank and label arc (l times 1 + the FastEmit weight),
//   d cost / d logit_v = (b + l) softmax_v - [v is the blank] b - [v is the label] l.
#include "core/cuda/logits.cuh"
#include "rnnt/cuda/cells.cuh"

namespace prnn::rnnt_cuda {
namespace {

template <class Element, int kWidth, int kGroup, class Real>
__global__ void __launch_bounds__(kRowThreads, 2)
    gradients_kernel(Problem p, const Sequence* sequences, Shares<Real> shares, const Real* cost_gradients,
                     Element* gradients) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kGroup;
  const int lane = threadIdx.x % kGroup;
  if (row >= p.activation_cells()) return;
  const Cell cell = find_cell(p, sequences, row);
  Real blank = 0, label = 0, normaliser = 0, scale = 1;
  int blank_at = p.blank, label_at = -1;
  if (cell.real) {
    const Sequence s = sequences[cell.n];
    const Arcs<Real> arcs = shares.arcs[row];
    blank = arcs.blank;
    if (cell.u < s.targets) {
      label = arcs.label * static_cast<Real>(1 + p.fast_emit);
      label_at = p.input == PRNN_LOSS_GATHERED ? 1 : p.targets[s.target_begin + cell.u];
    }
    if (p.input == PRNN_LOSS_GATHERED) blank_at = 0;
    if (shares.normalisers) normaliser = shares.normalisers[row];
    if (cost_gradients) scale = cost_gradients[cell.n];
  }
  // Softmax times zero is not zero where the softmax is NaN: a cell without probability, padding above all, is not
  // read.
  const Real both = p.input == PRNN_LOSS_LOGITS ? blank + label : Real(0);
  const bool reads = both != 0;
  const Real limit = p.clamp > 0 ? static_cast<Real>(p.clamp) : static_cast<Real>(CUDART_INF);
  row_map<Element, kWidth, kGroup>(
      static_cast<const Element*>(p.activations) + row * p.classes, gradients + row * p.classes, p.classes, lane, reads,
      [&](int64_t v, Real x) {
        Real gradient = reads ? both * fast_exp(x - normaliser) : Real(0);
        if (v == blank_at) gradient -= blank;
        if (v == label_at) gradient -= label;
        gradient = gradient > limit ? limit : gradient < -limit ? -limit : gradient;  // NaN stays NaN
        return gradient * scale;
      });
}

template <class Real>
struct GradientsLaunch {
  const Problem& problem;
  const Sequence* sequences;
  const Shares<Real>& shares;
  const Real* cost_gradients;
  void* gradients;
  cudaStream_t stream;

  template <class Element, int kWidth, int kGroup>
  void run() const {
    gradients_kernel<Element, kWidth, kGroup>
        <<<blocks_for_rows<kGroup>(problem.activation_cells()), kRowThreads, 0, stream>>>(
            problem, sequences, shares, cost_gradients, static_cast<Element*>(gradients));
    check_launch("rnnt gradients_kernel");
  }
};

}  // namespace

template <class Real>
void run_gradients(const Problem& problem, const Sequence* sequences, const Shares<Real>& shares,
                   const Real* cost_gradients, void* gradients, cudaStream_t stream) {
  for_rows<Real>(problem.type, problem.classes, problem.classes, {problem.activations, gradients},
                 GradientsLaunch<Real>{problem, sequences, shares, cost_gradients, gradients, stream});
}

template void run_gradients(const Problem&, const Sequence*, const Shares<float>&, const float*, void*, cudaStream_t);
template void run_gradients(const Problem&, const Sequence*, const Shares<double>&, const double*, void*, cudaStream_t);

}  // namespace prnn::rnnt_cuda
