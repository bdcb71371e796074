// From activations to the log-probabilities of each cell's arcs; a group of lanes reads a cell's V logits once.
#include "core/cuda/logits.cuh"
#include "rnnt/cuda/cells.cuh"

namespace prnn::rnnt_cuda {
namespace {

template <class Element, int kWidth, int kGroup, class Real>
__global__ void __launch_bounds__(kRowThreads) emissions_kernel(Problem p, Lattice<Real> lattice, Real* normalisers) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kGroup;
  const int lane = threadIdx.x % kGroup;
  Cell cell{0, 0, 0, false};
  if (row < p.activation_cells()) cell = find_cell(p, lattice.sequences, row);
  const Element* activations = static_cast<const Element*>(p.activations) + row * p.classes;
  Real normaliser = 0;
  if (p.input == PRNN_LOSS_LOGITS) {
    normaliser = row_log_sum_exp<Real, Element, kWidth, kGroup>(activations, cell.real ? p.classes : 0, lane);
  }
  if (!cell.real || lane != 0) return;
  const Sequence s = lattice.sequences[cell.n];
  Arcs<Real> arcs{0, static_cast<Real>(kNever)};
  const bool gathered = p.input == PRNN_LOSS_GATHERED;
  arcs.blank = to_real(activations[gathered ? 0 : p.blank]) - normaliser;
  if (cell.u < s.targets) {
    arcs.label = to_real(activations[gathered ? 1 : p.targets[s.target_begin + cell.u]]) - normaliser;
    if (p.delay_penalty != 0) {
      arcs.label += static_cast<Real>(p.delay_penalty * (0.5 * (s.frames - 1) - cell.t));
    }
  }
  lattice.arcs[lattice_index(p, cell)] = arcs;
  if (normalisers) normalisers[row] = normaliser;
}

// Cells that pruning left out have no arcs.
template <class Real>
__global__ void prune_kernel(Arcs<Real>* arcs, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    arcs[i] = {static_cast<Real>(kNever), static_cast<Real>(kNever)};
  }
}

template <class Real>
struct EmissionsLaunch {
  const Problem& problem;
  const Lattice<Real>& lattice;
  Real* normalisers;
  cudaStream_t stream;

  template <class Element, int kWidth, int kGroup>
  void run() const {
    emissions_kernel<Element, kWidth, kGroup>
        <<<blocks_for_rows<kGroup>(problem.activation_cells()), kRowThreads, 0, stream>>>(problem, lattice,
                                                                                          normalisers);
    check_launch("rnnt emissions_kernel");
  }
};

}  // namespace

template <class Real>
void run_prune(const Problem& problem, const Lattice<Real>& lattice, cudaStream_t stream) {
  if (problem.layout != PRNN_RNNT_PRUNED) return;
  prune_kernel<<<1024, 256, 0, stream>>>(lattice.arcs, problem.lattice_cells());
  check_launch("rnnt prune_kernel");
}

template <class Real>
void run_emissions(const Problem& problem, const Lattice<Real>& lattice, Real* normalisers, cudaStream_t stream) {
  run_prune(problem, lattice, stream);
  for_rows<Real>(problem.type, problem.classes, problem.classes, {problem.activations},
                 EmissionsLaunch<Real>{problem, lattice, normalisers, stream});
}

template void run_prune(const Problem&, const Lattice<float>&, cudaStream_t);
template void run_prune(const Problem&, const Lattice<double>&, cudaStream_t);
template void run_emissions(const Problem&, const Lattice<float>&, float*, cudaStream_t);
template void run_emissions(const Problem&, const Lattice<double>&, double*, cudaStream_t);

}  // namespace prnn::rnnt_cuda
