// From activations to the log-probabilities of each cell's arcs; a group of lanes reads a cell's V logits once.
#include "core/cuda/logits.cuh"
#include "rnnt/cuda/cells.cuh"

namespace prnn::rnnt_cuda {
namespace {

// The sequences of a problem that has offsets, and of one without.
struct EmissionSequences {
  const Problem& problem;
  const Sequence* found;

  __device__ __forceinline__ Sequence operator[](int64_t n) const {
    return problem.has_offsets() ? found[n] : PaddedSequences{problem}[n];
  }
};

// Writes a sequence of a problem without offsets for the kernels that follow. By a whole warp, one that has its first
// cell.
__device__ __forceinline__ void write_sequence(const Problem& p, Sequence* sequences, int64_t n) {
  const int lane = threadIdx.x % 32;
  Sequence s = PaddedSequences{p}[n];
  if (!symbols_valid(p, s, lane)) s.frames = 0;
  if (lane == 0) sequences[n] = s;
}

__device__ __forceinline__ bool begins_sequence(const Problem& p, const Cell& cell) {
  return !p.has_offsets() && cell.t == 0 && cell.u == 0;
}

// The arcs of a cell.
template <class Element, class Real>
__device__ __forceinline__ void write_arcs(const Problem& p, const Lattice<Real>& lattice, Real* normalisers,
                                           const Sequence& s, const Cell& cell, int64_t row, Real normaliser) {
  const Element* activations = static_cast<const Element*>(p.activations) + row * p.classes;
  Arcs<Real> arcs{0, static_cast<Real>(kNever)};
  const bool gathered = p.input == PRNN_LOSS_GATHERED;
  arcs.blank = to_real(activations[gathered ? 0 : p.blank]) - normaliser;
  if (cell.u < s.targets) {
    const int symbol = gathered ? 1 : p.targets[s.target_begin + cell.u];
    if (gathered || is_target(p, symbol)) arcs.label = to_real(activations[symbol]) - normaliser;
    if (p.delayPenalty != 0) {
      arcs.label += static_cast<Real>(p.delayPenalty * (0.5 * (s.frames - 1) - cell.t));
    }
  }
  lattice.arcs[lattice_index(p, cell)] = arcs;
  if (normalisers) normalisers[row] = normaliser;
}

template <class Shape, class Real>
__global__ void __launch_bounds__(kRowThreads) emissions_kernel(Problem p, Lattice<Real> lattice, Real* normalisers) {
  using Element = typename Shape::Element;
  constexpr int kGroup = Shape::kGroup;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kGroup;
  const int lane = threadIdx.x % kGroup;
  const EmissionSequences sequences{p, lattice.sequences};
  Cell cell{0, 0, 0, false};
  if (row < p.activation_cells()) {
    cell = find_cell(p, sequences, row);
    static_assert(kGroup == 32);
    if (begins_sequence(p, cell)) write_sequence(p, lattice.sequences, cell.n);
  }
  const Element* activations = static_cast<const Element*>(p.activations) + row * p.classes;
  Real normaliser = 0;
  if (p.input == PRNN_LOSS_LOGITS) {
    normaliser = row_log_sum_exp<Shape>(activations, cell.real ? static_cast<int>(p.classes) : 0, lane);
  }
  if (cell.real && lane == 0) {
    write_arcs<Element>(p, lattice, normalisers, sequences[cell.n], cell, row, normaliser);
  }
}

// Each lane has a row, of which it finds out what it is and whose arcs it writes; the sums are made by groups of lanes.
template <class Shape, class Real>
__global__ void __launch_bounds__(kRowThreads)
    short_emissions_kernel(Problem p, Lattice<Real> lattice, Real* normalisers, int rounds) {
  using Element = typename Shape::Element;
  constexpr int kGroup = Shape::kGroup, kGroups = 32 / kGroup;
  const int lane = threadIdx.x % 32;
  const int64_t first =
      (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / 32 * (kGroups * rounds);  // of the warp's rows
  const int64_t row = first + lane;
  const EmissionSequences sequences{p, lattice.sequences};
  Cell cell{0, 0, 0, false};
  bool begins = false;
  if (lane < kGroups * rounds && row < p.activation_cells()) {
    cell = find_cell(p, sequences, row);
    begins = begins_sequence(p, cell);
  }
  for (unsigned lanes = __ballot_sync(~0u, begins); lanes != 0; lanes &= lanes - 1) {
    write_sequence(p, lattice.sequences, __shfl_sync(~0u, cell.n, __ffs(lanes) - 1));
  }
  Real normaliser = 0;
  if (p.input == PRNN_LOSS_LOGITS) {
    const int classes = static_cast<int>(p.classes);
    const Element* activations = static_cast<const Element*>(p.activations) + first * p.classes;
    for (int round = 0; round < rounds; ++round) {
      const int at = round * kGroups + lane / kGroup;
      const Real sum = held_row_log_sum_exp<Shape>(activations + at * p.classes, classes,
                                                   __shfl_sync(~0u, cell.real, at), lane % kGroup);
      const Real mine = __shfl_sync(~0u, sum, lane % kGroups * kGroup);
      if (round == lane / kGroups) normaliser = mine;
    }
  }
  if (cell.real) write_arcs<Element>(p, lattice, normalisers, sequences[cell.n], cell, row, normaliser);
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

  template <class Shape>
  void run() const {
    constexpr int kGroup = Shape::kGroup;
    const int64_t rows = problem.activation_cells();
    if constexpr (Shape::kHeld) {
      const int rounds = rounds_for_rows<kGroup>(rows);
      const unsigned blocks = blocks_for_rows<kGroup>(ceil_div(rows, rounds));
      short_emissions_kernel<Shape><<<blocks, kRowThreads, 0, stream>>>(problem, lattice, normalisers, rounds);
    } else {
      emissions_kernel<Shape><<<blocks_for_rows<kGroup>(rows), kRowThreads, 0, stream>>>(problem, lattice, normalisers);
    }
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
  for_rows<Real>(problem.dataType, problem.classes, problem.classes, {problem.activations},
                 EmissionsLaunch<Real>{problem, lattice, normalisers, stream});
}

template void run_prune(const Problem&, const Lattice<float>&, cudaStream_t);
template void run_prune(const Problem&, const Lattice<double>&, cudaStream_t);
template void run_emissions(const Problem&, const Lattice<float>&, float*, cudaStream_t);
template void run_emissions(const Problem&, const Lattice<double>&, double*, cudaStream_t);

}  // namespace prnn::rnnt_cuda
