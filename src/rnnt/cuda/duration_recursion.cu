// The recursions over lattices whose arcs go on by several frames. One block serves one sequence, lattice and direction
// and walks through the steps. A thread has a column, or several of them one after the other; a node pulls what its
// arcs bring from the steps that they reach back to, which lie in a ring in shared memory where that holds them, else
// in the array that is written anyway.
#include "core/cuda/launch.h"
#include "core/cuda/logits.cuh"
#include "rnnt/cuda/duration_cells.cuh"

namespace prnn::duration_cuda {
namespace {

constexpr int kCellThreads = 256;
constexpr int kSetupThreads = 128;
constexpr size_t kRingBytes = 48 << 10;  // what a block has without asking

// Threads of a block for so many arcs: those of many arcs need many registers.
constexpr int max_threads(int arcs) { return arcs <= 10 ? 512 : 256; }

// A warp a sequence.
__global__ void __launch_bounds__(kSetupThreads) setup_kernel(const __grid_constant__ Problem p, Sequence* sequences) {
  const int64_t n = (static_cast<int64_t>(blockIdx.x) * kSetupThreads + threadIdx.x) / 32;
  if (n >= p.batch) return;
  const int lane = threadIdx.x & 31, frames = p.frame_lengths[n], targets = p.target_lengths[n];
  bool valid = frames >= 1 && frames <= p.max_frames && targets >= 0 && targets <= p.max_targets;
  for (int u = lane; valid && u < targets; u += 32) {
    const int symbol = p.targets[n * p.max_targets + u];
    valid = symbol >= 0 && symbol < p.classes && (symbol > p.blank || symbol < p.blank - p.big_blanks);
  }
  valid = __all_sync(~0u, valid);
  if (lane == 0) sequences[n] = valid ? Sequence{frames, targets} : Sequence{0, 0};
}

// log of the sum of exp over `values`, of which minus infinity adds nothing; NaN if one is in it.
template <class Real, int kArcs>
__device__ __forceinline__ double log_sum_exp(const double (&values)[kArcs]) {
  double highest = kNever;
#pragma unroll
  for (int i = 0; i < kArcs; ++i) highest = values[i] > highest ? values[i] : highest;
  const double shift = highest == kNever ? 0.0 : highest;
  Real sum = 0;
#pragma unroll
  for (int i = 0; i < kArcs; ++i) sum += fast_exp(static_cast<Real>(values[i] - shift));
  return shift + log(sum);
}

// One direction of one lattice of one sequence: forward, a node is the sum of the arcs into it, backward of those out
// of it.
template <bool kForward, class Real>
struct Walk {
  const Problem& p;
  const DurationArcs::Lattice lattice;
  const Sequence sequence;
  const Real* scores;  // {steps, arcs, width}
  double* out;         // what is computed, {steps, width}
  double* ring;        // {a power of two, width}: its latest steps; or `out` itself
  int mask;            // of a step, gives its place in the ring

  __device__ bool holds(int t, int u) const { return t >= 0 && t < sequence.frames && u >= 0 && u <= sequence.targets; }
  __device__ double& at(double* steps, int step, int u) const {
    return steps[static_cast<int64_t>(step) * p.width() + u];
  }

  // The scores of the arcs of the node at (step, u).
  template <int kArcs>
  __device__ void load(int step, int u, Real (&held)[kArcs]) const {
    const int64_t rows = p.arcs.count() * p.width();  // from a step to the next
    const Real* own = scores + step * rows + u;
#pragma unroll
    for (int i = 0; i < kArcs; ++i) {
      held[i] = static_cast<Real>(kNever);
      if (lattice.begin + i >= lattice.end) continue;
      const DurationArc& arc = p.arcs.arc[lattice.begin + i];
      const int64_t offset = (lattice.begin + i) * p.width() - (kForward ? arc.step() * rows + arc.label() : 0);
      if (holds(step - u - (kForward ? arc.duration : 0), u - (kForward ? arc.label() : 0))) held[i] = own[offset];
    }
  }

  template <int kArcs>
  __device__ double sum(int step, int u, const Real (&held)[kArcs]) const {
    double values[kArcs];
#pragma unroll
    for (int i = 0; i < kArcs; ++i) {
      values[i] = kNever;
      if (lattice.begin + i >= lattice.end || held[i] == static_cast<Real>(kNever)) continue;
      const DurationArc& arc = p.arcs.arc[lattice.begin + i];
      const int sign = kForward ? -1 : 1;
      values[i] = at(ring, (step + sign * arc.step()) & mask, u + sign * arc.label()) + held[i];
    }
    return log_sum_exp<Real>(values);
  }

  __device__ void keep(int step, int u, double value) const {
    at(out, step, u) = value;
    if (ring != out) at(ring, step & mask, u) = value;
  }

  // Pieces of work are a step's columns, chunk by chunk. The scores of the next piece are on their way while one is
  // computed. The result is that of the last node, (T_n, U_n) forward, in its own thread.
  template <int kArcs>
  __device__ void run(double* total) const {
    const int end = sequence.frames + sequence.targets, threads = blockDim.x, thread = threadIdx.x;
    if (thread == 0) keep(kForward ? 0 : end, kForward ? 0 : sequence.targets, 0.0);
    __syncthreads();
    int step = kForward ? 1 : end - 1, u = thread;
    Real next[kArcs];
    load(step, u, next);
    while (kForward ? step <= end : step >= 0) {
      Real held[kArcs];
#pragma unroll
      for (int i = 0; i < kArcs; ++i) held[i] = next[i];
      const int own_step = step, own_u = u;
      u += threads;
      const bool last_chunk = u - thread > sequence.targets;
      if (last_chunk) {
        step += kForward ? 1 : -1;
        u = thread;
      }
      load(step, u, next);
      if (holds(own_step - own_u, own_u))
        keep(own_step, own_u, sum(own_step, own_u, held));
      else if (kForward && own_step == end && own_u == sequence.targets)
        *total = sum(own_step, own_u, held);
      if (last_chunk) __syncthreads();
    }
  }
};

template <int kArcs, class Real>
__global__ void __launch_bounds__(max_threads(kArcs), 1)
    recursion_kernel(const __grid_constant__ Problem p, Lattices<Real> lattices, int ring_steps) {
  extern __shared__ double shared_ring[];
  const int64_t n = blockIdx.x, l = blockIdx.z, walk = l * p.batch + n;
  const Sequence sequence = lattices.sequences[n];
  const DurationArcs::Lattice lattice = p.arcs.lattice[l];
  const Real* scores = lattices.scores + n * p.steps() * p.arcs.count() * p.width();
  const int64_t first = walk * p.steps() * p.width();
  const int mask = ring_steps > 0 ? ring_steps - 1 : ~0;
  if (sequence.frames == 0) {
    if (blockIdx.y == 0 && threadIdx.x == 0) lattices.totals[walk] = CUDART_NAN;
  } else if (blockIdx.y == 0) {
    double* out = lattices.alpha + first;
    Walk<true, Real>{p, lattice, sequence, scores, out, ring_steps > 0 ? shared_ring : out, mask}.template run<kArcs>(
        &lattices.totals[walk]);
  } else {
    double* out = lattices.beta + first;
    Walk<false, Real>{p, lattice, sequence, scores, out, ring_steps > 0 ? shared_ring : out, mask}.template run<kArcs>(
        nullptr);
  }
}

// The lattices' totals, weighted; minus infinity where none of the paths is possible.
template <class Real>
__device__ double cost_of(const Problem& p, const Lattices<Real>& lattices, int64_t n) {
  double cost = 0;
  for (int l = 0; l < p.arcs.lattices; ++l) cost -= p.arcs.lattice[l].weight * lattices.totals[l * p.batch + n];
  return cost;
}

template <class Real>
__global__ void costs_kernel(const __grid_constant__ Problem p, Lattices<Real> lattices, Real* costs) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (n >= p.batch) return;
  const double cost = cost_of(p, lattices, n);
  costs[n] = static_cast<Real>(cost == -kNever && p.zero_infinity ? 0.0 : cost);
}

template <class Real>
__global__ void __launch_bounds__(kCellThreads)
    shares_kernel(const __grid_constant__ Problem p, Lattices<Real> lattices, Real* slots) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kCellThreads + threadIdx.x;
  if (index >= p.cells()) return;
  const Cell cell(p, lattices.sequences, index);
  if (!cell.real) return;
  Real sums[DurationArcs::kMaxSlots];
  for (int i = 0; i < p.arcs.slots(); ++i) sums[i] = 0;
  const int64_t node = (cell.n * p.steps() + cell.t + cell.u) * p.width() + cell.u;
  const Real* scores = lattices.scores + (node - cell.u) * p.arcs.count() + cell.u;
  const bool possible = cost_of(p, lattices, cell.n) != -kNever;
  for (int l = 0; possible && l < p.arcs.lattices; ++l) {
    const DurationArcs::Lattice& lattice = p.arcs.lattice[l];
    const double* beta = lattices.beta + l * p.nodes();
    const double before = lattices.alpha[l * p.nodes() + node] - lattices.totals[l * p.batch + cell.n];
    for (int i = lattice.begin; i < lattice.end; ++i) {
      const DurationArc& arc = p.arcs.arc[i];
      const Real score = scores[i * p.width()];
      if (score == static_cast<Real>(kNever)) continue;
      const double after = beta[node + arc.step() * p.width() + arc.label()];
      const double weight = lattice.weight * (arc.label() ? 1 + p.fast_emit : 1);
      const Real share = static_cast<Real>(weight) * exp(static_cast<Real>(before + score + after));
      sums[p.arcs.token_slot(arc)] += share;
      if (arc.entry >= 0) sums[p.arcs.entry_slot(arc)] += share;
    }
  }
  for (int i = 0; i < p.arcs.slots(); ++i) slots[index * p.arcs.slots() + i] = sums[i];
}

template <int kArcs, class Real>
void launch_recursion(const Problem& problem, const Lattices<Real>& lattices, cudaStream_t stream) {
  int64_t ring_steps = 1;  // a power of two: the step being written and all that arcs reach back to
  while (ring_steps < problem.arcs.longest + 2) ring_steps *= 2;
  if (ring_steps * problem.width() * sizeof(double) > kRingBytes) ring_steps = 0;
  const int64_t wanted = 32 * ceil_div(problem.width(), 32);
  const auto threads = static_cast<unsigned>(wanted < max_threads(kArcs) ? wanted : max_threads(kArcs));
  const dim3 grid(static_cast<unsigned>(problem.batch), lattices.beta ? 2 : 1, problem.arcs.lattices);
  const size_t bytes = ring_steps * problem.width() * sizeof(double);
  recursion_kernel<kArcs><<<grid, threads, bytes, stream>>>(problem, lattices, static_cast<int>(ring_steps));
  check_launch("duration recursion_kernel");
}

}  // namespace

void run_setup(const Problem& problem, Sequence* sequences, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(problem.batch, kSetupThreads / 32));
  setup_kernel<<<blocks, kSetupThreads, 0, stream>>>(problem, sequences);
  check_launch("duration setup_kernel");
}

template <class Real>
void run_recursion(const Problem& problem, const Lattices<Real>& lattices, Real* costs, cudaStream_t stream) {
  int most = 0;
  for (int l = 0; l < problem.arcs.lattices; ++l) {
    const int count = problem.arcs.lattice[l].end - problem.arcs.lattice[l].begin;
    most = count > most ? count : most;
  }
  if (most <= 5)
    launch_recursion<5>(problem, lattices, stream);
  else if (most <= 10)
    launch_recursion<10>(problem, lattices, stream);
  else
    launch_recursion<2 * PRNN_MAX_DURATIONS>(problem, lattices, stream);
  costs_kernel<<<static_cast<unsigned>(ceil_div(problem.batch, kCellThreads)), kCellThreads, 0, stream>>>(
      problem, lattices, costs);
  check_launch("duration costs_kernel");
}

template <class Real>
void run_shares(const Problem& problem, const Lattices<Real>& lattices, Real* slots, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(problem.cells(), kCellThreads));
  shares_kernel<<<blocks, kCellThreads, 0, stream>>>(problem, lattices, slots);
  check_launch("duration shares_kernel");
}

template void run_recursion(const Problem&, const Lattices<float>&, float*, cudaStream_t);
template void run_recursion(const Problem&, const Lattices<double>&, double*, cudaStream_t);
template void run_shares(const Problem&, const Lattices<float>&, float*, cudaStream_t);
template void run_shares(const Problem&, const Lattices<double>&, double*, cudaStream_t);

}  // namespace prnn::duration_cuda
