// The recursions over lattices whose arcs go on by several frames. One block serves one sequence, lattice and direction
// and walks through the steps. A thread has a column, or several of them one after the other; a node pulls what its
// arcs bring from the steps that they reach back to, which lie in a ring in shared memory where that holds them, else
// in the array that is written anyway.
#include <climits>
#include <type_traits>

#include "core/cuda/launch.h"
#include "core/cuda/reduce_costs.cuh"
#include "core/cuda/scaled.cuh"
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
  for (int u = lane; valid && !p.gathered && u < targets; u += 32) {
    const int symbol = p.targets[n * p.max_targets + u];
    valid = symbol >= 0 && symbol < p.classes && (symbol > p.blank || symbol < p.blank - p.big_blanks);
  }
  valid = __all_sync(~0u, valid);
  if (lane == 0) sequences[n] = {0, n * p.max_targets, valid ? frames : 0, valid ? targets : 0};
}

// value = *at if `wanted`; else it stays. As one predicated instruction: the compiler may make a branch of an `if`,
// which costs more than the load itself.
__device__ __forceinline__ void load_if(bool wanted, const float* at, float& value) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p ld.global.f32 %0, [%1]; }"
               : "+f"(value)
               : "l"(at), "r"(static_cast<int>(wanted)));
}
__device__ __forceinline__ void load_if(bool wanted, const double* at, double& value) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p ld.global.f64 %0, [%1]; }"
               : "+d"(value)
               : "l"(at), "r"(static_cast<int>(wanted)));
}

// One direction of one lattice of one sequence: forward, a node is the sum of the arcs into it, backward of those out
// of it. kArcs is a bound on the kinds of arcs. With kRing the latest steps are read from shared memory.
template <bool kForward, bool kRing, int kArcs, class Real>
struct Walk {
  using Offset = std::conditional_t<kRing, int, int64_t>;  // what a ring holds is counted in int
  static constexpr int kSign = kForward ? -1 : 1;          // on the way to what a node is made of
  static constexpr int kAhead = kArcs <= 10 ? 2 : 1;       // nodes whose scores are on their way from memory

  const Sequence sequence;
  const Real* scores;  // {steps, arcs, width}, from the lattice's first arc on
  Scaled<Real>* out;   // what is computed, {steps, width}
  Scaled<Real>* ring;  // kRing: {mask + 1, width}, its latest steps, and one element that nobody writes; else `out`
  const int mask;
  const int64_t width, score_rows;
  int durations[kArcs], labels[kArcs];  // of the arcs; those that there are not are too long for any sequence
  Offset offsets[kArcs];                // of their scores, from those of a node

  struct Place {
    int step, u;
    bool last;  // of its step
  };

  __device__ Walk(const Problem& p, const DurationArcs::Lattice& lattice, const Sequence& sequence, const Real* scores,
                  Scaled<Real>* out, Scaled<Real>* ring, int mask)
      : sequence(sequence),
        scores(scores + lattice.begin * p.width()),
        out(out),
        ring(ring),
        mask(mask),
        width(p.width()),
        score_rows(p.score_rows()) {
#pragma unroll
    for (int i = 0; i < kArcs; ++i) {
      const bool there = lattice.begin + i < lattice.end;
      const DurationArc& arc = p.arcs.arc[there ? lattice.begin + i : 0];
      durations[i] = there ? arc.duration : INT_MAX / 2;
      labels[i] = arc.label();
      offsets[i] = static_cast<Offset>(i * width - (kForward ? arc.step() * score_rows + labels[i] : 0));
    }
  }

  __device__ __forceinline__ int end() const { return sequence.frames + sequence.targets; }
  __device__ __forceinline__ bool holds(int t, int u) const {
    return static_cast<unsigned>(t) < static_cast<unsigned>(sequence.frames) &&
           static_cast<unsigned>(u) <= static_cast<unsigned>(sequence.targets);
  }
  __device__ __forceinline__ Offset index(int step, int u) const {
    return (step & mask) * static_cast<Offset>(width) + u;
  }

  // A thread's places: column after column in a step, step after step.
  __device__ __forceinline__ Place place(int step, int u) const {
    return {step, u, u - static_cast<int>(threadIdx.x) + static_cast<int>(blockDim.x) > sequence.targets};
  }
  __device__ __forceinline__ Place next(const Place& at) const {
    return at.last ? place(at.step - kSign, threadIdx.x) : place(at.step, at.u + blockDim.x);
  }

  // The scores of the arcs of a node, without branches.
  __device__ __forceinline__ void load(const Place& at, Real (&held)[kArcs]) const {
    const Real* own = scores + at.step * score_rows + at.u;
    const int t = at.step - at.u;
#pragma unroll
    for (int i = 0; i < kArcs; ++i) {
      held[i] = static_cast<Real>(kNever);
      const bool there =
          kForward ? holds(t - durations[i], at.u - labels[i]) : holds(t, at.u) && durations[i] != INT_MAX / 2;
      load_if(there, own + offsets[i], held[i]);
    }
  }

  __device__ __forceinline__ Scaled<Real> sum(const Place& at, const Real (&held)[kArcs]) const {
    Scaled<Real> parts[kArcs];
    int exponent = kLowestExponent;
#pragma unroll
    for (int i = 0; i < kArcs; ++i) {
      const bool wanted = !(held[i] < -kLargestArc);
      const Offset from = index(at.step + kSign * (durations[i] + labels[i]), at.u + kSign * labels[i]);
      const Offset unused = kRing ? (mask + 1) * static_cast<Offset>(width) : 0;
      const Scaled<Real> part = ring[wanted ? from : unused] * scaled_exp(held[i]);
      parts[i] = select(wanted, part, scaled_zero<Real>());
      exponent = max(exponent, parts[i].exponent);
    }
    Real total = 0;
#pragma unroll
    for (int i = 0; i < kArcs; ++i)
      total = fma(parts[i].mantissa, power_of_two<Real>(parts[i].exponent - exponent), total);
    return normalised(Scaled<Real>{total, exponent});
  }

  __device__ __forceinline__ void keep(bool wanted, int step, int u, const Scaled<Real>& value) const {
    store_if(wanted, &out[step * width + u], value);
    if (kRing && wanted) ring[index(step, u)] = value;
  }

  // The result forward is that of the last node, (T_n, U_n), in its own thread.
  __device__ void run(Scaled<Real>* total) const {
    keep(threadIdx.x == 0, kForward ? 0 : end(), kForward ? 0 : sequence.targets, {1, 0});
    __syncthreads();
    Real held[kAhead][kArcs];
    Place places[kAhead];
    Place at = place(kForward ? 1 : end() - 1, threadIdx.x);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      places[i] = at;
      load(at, held[i]);
      at = next(at);
    }
    for (;;) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const Place own = places[i];
        if (kForward ? own.step > end() : own.step < 0) return;
        const Scaled<Real> value = sum(own, held[i]);
        places[i] = at;
        load(at, held[i]);
        at = next(at);
        keep(holds(own.step - own.u, own.u), own.step, own.u, value);
        if (kForward && own.step == end() && own.u == sequence.targets) *total = value;
        if (own.last) __syncthreads();
      }
    }
  }
};

// kArcs: of a lattice, at most.
template <int kArcs, bool kRing, class Real>
__global__ void __launch_bounds__(max_threads(kArcs), 1)
    recursion_kernel(const __grid_constant__ Problem p, Lattices<Real> lattices, int mask) {
  extern __shared__ char shared_ring[];
  const int64_t n = blockIdx.x, l = blockIdx.z, walk = l * p.batch + n;
  const Sequence sequence = lattices.sequences[n];
  const DurationArcs::Lattice lattice = p.arcs.lattice[l];
  const Real* scores = lattices.scores + n * p.steps() * p.score_rows();
  Scaled<Real>* out = (blockIdx.y == 0 ? lattices.alpha : lattices.beta) + walk * p.steps() * p.width();
  Scaled<Real>* ring = kRing ? reinterpret_cast<Scaled<Real>*>(shared_ring) : out;
  if (sequence.frames == 0) {
    if (blockIdx.y == 0 && threadIdx.x == 0) lattices.totals[walk] = {static_cast<Real>(CUDART_NAN), 0};
  } else if (blockIdx.y == 0) {
    Walk<true, kRing, kArcs, Real>(p, lattice, sequence, scores, out, ring, mask).run(&lattices.totals[walk]);
  } else {
    Walk<false, kRing, kArcs, Real>(p, lattice, sequence, scores, out, ring, mask).run(nullptr);
  }
}

// The lattices' costs, weighted; infinity where one of them has no path.
template <class Real>
__device__ double cost_of(const Problem& p, const Lattices<Real>& lattices, int64_t n) {
  double cost = 0;
  for (int l = 0; l < p.arcs.lattices; ++l)
    cost -= p.arcs.lattice[l].weight * scaled_log(lattices.totals[l * p.batch + n]);
  return cost;
}

template <class Real>
__global__ void costs_kernel(const __grid_constant__ Problem p, Lattices<Real> lattices, Real* costs) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (n >= p.batch) return;
  const double cost = cost_of(p, lattices, n);
  costs[n] = static_cast<Real>(cost == -kNever && p.zero_infinity ? 0.0 : cost);
}

// A thread a node, in the order of the lattice, whose arrays make most of the traffic.
template <class Real>
__global__ void __launch_bounds__(kCellThreads)
    shares_kernel(const __grid_constant__ Problem p, Lattices<Real> lattices, Real* records,
                  ReducedCosts<Real> reduced) {
  if (is_for_reduction(reduced)) return;
  const int64_t node = static_cast<int64_t>(blockIdx.x) * kCellThreads + threadIdx.x;
  if (node >= p.nodes()) return;
  int64_t row, n;
  int u, step;
  rnnt_cuda::divide(node, p.width(), row, u);
  rnnt_cuda::divide(row, p.steps(), n, step);
  const Sequence sequence = lattices.sequences[n];
  const int t = step - u;
  if (t < 0 || t >= sequence.frames || u > sequence.targets) return;
  alignas(16) Real record[kSums + DurationArcs::kMaxSlots + 3];
  for (int i = 0; i < p.record_size(); ++i) record[i] = 0;
  const Real* scores = lattices.scores + row * p.score_rows() + u;
  bool possible = true;
  for (int l = 0; l < p.arcs.lattices; ++l) possible = possible && !is_zero(lattices.totals[l * p.batch + n]);
  for (int l = 0; possible && l < p.arcs.lattices; ++l) {
    const DurationArcs::Lattice& lattice = p.arcs.lattice[l];
    const Scaled<Real>* beta = lattices.beta + l * p.nodes() + node;
    const Scaled<Real> alpha = lattices.alpha[l * p.nodes() + node], total = lattices.totals[l * p.batch + n];
    for (int i = lattice.begin; i < lattice.end; ++i) {
      const DurationArc& arc = p.arcs.arc[i];
      const Real score = scores[i * p.width()];
      if (score == static_cast<Real>(kNever)) continue;
      const Scaled<Real> after = beta[arc.step() * p.width() + arc.label()];
      const double weight = lattice.weight * (arc.label() ? 1 + p.fast_emit : 1);
      const Real share = static_cast<Real>(weight) * share_of(alpha * scaled_exp(score) * after, total);
      record[0] += share;
      record[kSums + p.arcs.token_slot(arc)] += share;
      if (arc.entry < 0) continue;
      record[1] += share;
      record[kSums + p.arcs.entry_slot(arc)] += share;
    }
  }
  const int64_t cell = (n * p.max_frames + t) * p.width() + u;
  auto* to = reinterpret_cast<float4*>(records + cell * p.record_size());
  const auto* from = reinterpret_cast<const float4*>(record);
  for (int i = 0; i < p.record_size() * sizeof(Real) / sizeof(float4); ++i) to[i] = from[i];
}

template <int kArcs, class Real>
void launch_recursion(const Problem& problem, const Lattices<Real>& lattices, cudaStream_t stream) {
  int64_t ring_steps = 1;  // a power of two: the step being written and all that arcs reach back to
  while (ring_steps < problem.arcs.longest + 2) ring_steps *= 2;
  const size_t bytes = (ring_steps * problem.width() + 1) * sizeof(Scaled<Real>);
  const int64_t wanted = 32 * ceil_div(problem.width(), 32);
  const auto threads = static_cast<unsigned>(wanted < max_threads(kArcs) ? wanted : max_threads(kArcs));
  const dim3 grid(static_cast<unsigned>(problem.batch), lattices.beta ? 2 : 1, problem.arcs.lattices);
  if (bytes <= kRingBytes)
    recursion_kernel<kArcs, true>
        <<<grid, threads, bytes, stream>>>(problem, lattices, static_cast<int>(ring_steps - 1));
  else
    recursion_kernel<kArcs, false><<<grid, threads, 0, stream>>>(problem, lattices, ~0);
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
void run_shares(const Problem& problem, const Lattices<Real>& lattices, Real* records,
                const ReducedCosts<Real>& reduced, cudaStream_t stream) {
  static_assert(kCellThreads == kReduceThreads);
  const auto blocks = static_cast<unsigned>(ceil_div(problem.nodes(), kCellThreads)) + blocks_for_reduction(reduced);
  shares_kernel<<<blocks, kCellThreads, 0, stream>>>(problem, lattices, records, reduced);
  check_launch("duration shares_kernel");
}

template void run_recursion(const Problem&, const Lattices<float>&, float*, cudaStream_t);
template void run_recursion(const Problem&, const Lattices<double>&, double*, cudaStream_t);
template void run_shares(const Problem&, const Lattices<float>&, float*, const ReducedCosts<float>&, cudaStream_t);
template void run_shares(const Problem&, const Lattices<double>&, double*, const ReducedCosts<double>&, cudaStream_t);

}  // namespace prnn::duration_cuda
