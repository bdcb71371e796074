// The recursion of pruned RNN-T: the caller's scores are laid into the lattice of lattice.h, its kernels run, and the
// arcs' probabilities are laid back. Here paths end in the node (s_end, t_end) itself, and in a REGULAR lattice symbols
// may still follow the last frame; so the lattice gets one more frame, whose only blank, at s_end, costs nothing.
#include "rnnt/cuda/mutual_information.h"

#include <cub/block/block_scan.cuh>

#include "core/cuda/launch.h"
#include "core/cuda/scaled.cuh"

namespace prnn::rnnt_cuda {
namespace {

constexpr int kThreads = 256;

struct Boundary {
  int s_begin, t_begin, s_end, t_end;
};

__device__ Boundary find_boundary(const prnnMutualInformationOptions_t& o, const int* boundary, int64_t n) {
  if (boundary == nullptr) return {0, 0, static_cast<int>(o.symbols), static_cast<int>(o.frames)};
  const int* b = boundary + 4 * n;
  return {b[0], b[1], b[2], b[3]};
}

__host__ __device__ int64_t px_columns(const prnnMutualInformationOptions_t& o) {
  return o.type == PRNN_RNNT_REGULAR ? o.frames + 1 : o.frames;
}

__global__ void boundary_kernel(prnnMutualInformationOptions_t o, const int* boundary, Sequence* sequences) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (n >= o.batch) return;
  const Boundary b = find_boundary(o, boundary, n);
  const bool valid = 0 <= b.s_begin && b.s_begin <= b.s_end && b.s_end <= o.symbols && 0 <= b.t_begin &&
                     b.t_begin <= b.t_end && b.t_end <= o.frames;
  sequences[n] = valid ? Sequence{0, 0, b.t_end - b.t_begin + 1, b.s_end - b.s_begin} : Sequence{0, 0, 0, 0};
}

// A thread for each (n, s, t) with t from 0 to T, t fastest as in px and py.
struct Place {
  int64_t n, s, t;

  __device__ Place(const prnnMutualInformationOptions_t& o)
      : t(static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) {
    const int64_t columns = o.frames + 1;
    s = t / columns;
    t -= s * columns;
    n = s / (o.symbols + 1);
    s -= n * (o.symbols + 1);
  }
};

template <class Real>
__global__ void lay_in_kernel(MutualInformationParams params, Problem p, Lattice<Real> lattice) {
  const prnnMutualInformationOptions_t& o = params.options;
  const Place at(o);
  if (at.n >= o.batch) return;
  const Sequence sequence = lattice.sequences[at.n];
  const Boundary b = find_boundary(o, params.boundary, at.n);
  const int64_t t = at.t - b.t_begin, u = at.s - b.s_begin;
  if (sequence.frames == 0 || t < 0 || t >= sequence.frames || u < 0 || u > sequence.targets) return;
  const Real never = static_cast<Real>(kNever);
  Arcs<Real> arcs{never, never};
  if (at.t < b.t_end)
    arcs.blank = static_cast<const Real*>(params.py)[(at.n * (o.symbols + 1) + at.s) * o.frames + at.t];
  else if (u == sequence.targets)
    arcs.blank = 0;
  if (u < sequence.targets && at.t < px_columns(o) && (o.type == PRNN_RNNT_REGULAR || at.t < b.t_end)) {
    arcs.label = static_cast<const Real*>(params.px)[(at.n * o.symbols + at.s) * px_columns(o) + at.t];
  }
  lattice.arcs[(at.n * p.steps() + t + p.skew() * u) * p.width() + u] = arcs;
}

template <class Real>
__global__ void lay_back_kernel(MutualInformationParams params, Problem p, Lattice<Real> lattice) {
  const prnnMutualInformationOptions_t& o = params.options;
  const Place at(o);
  if (at.n >= o.batch) return;
  const Scaled<Real> total = lattice.totals[at.n];
  if (at.s == 0 && at.t == 0) static_cast<Real*>(params.scores)[at.n] = static_cast<Real>(scaled_log(total));
  if (params.py_gradients == nullptr) return;
  const Sequence sequence = lattice.sequences[at.n];
  const Boundary b = find_boundary(o, params.boundary, at.n);
  const int64_t t = at.t - b.t_begin, u = at.s - b.s_begin;
  Arcs<Real> share{0, 0};
  const bool inside = sequence.frames > 0 && t >= 0 && t < sequence.frames && u >= 0 && u <= sequence.targets;
  if (inside && !is_zero(total)) {
    const int64_t cell = (at.n * p.steps() + t + p.skew() * u) * p.width() + u, next = cell + p.width();
    const Arcs<Real> arcs = lattice.arcs[cell];
    const Scaled<Real> alpha = lattice.alpha[cell];
    share.blank = share_of(alpha * scaled_exp(arcs.blank) * lattice.beta[next], total);
    if (u < sequence.targets) share.label = share_of(alpha * scaled_exp(arcs.label) * lattice.beta[next + 1], total);
  }
  if (at.t < o.frames) {
    const bool before_end = at.t < b.t_end;  // not the frame that was added
    static_cast<Real*>(params.py_gradients)[(at.n * (o.symbols + 1) + at.s) * o.frames + at.t] =
        before_end ? share.blank : Real(0);
  }
  if (at.s < o.symbols && at.t < px_columns(o)) {
    static_cast<Real*>(params.px_gradients)[(at.n * o.symbols + at.s) * px_columns(o) + at.t] = share.label;
  }
}

struct Minimum {
  __device__ int64_t operator()(int64_t a, int64_t b) const { return a < b ? a : b; }
};
struct Maximum {
  __device__ int64_t operator()(int64_t a, int64_t b) const { return a > b ? a : b; }
};

// values[t] = join of values[t ..], over all of t, by the whole block. Values are read and written through functions.
template <class Join, class Get, class Put>
__device__ void scan_from_end(int64_t count, int64_t neutral, Get get, Put put) {
  using Scan = cub::BlockScan<int64_t, kThreads>;
  __shared__ typename Scan::TempStorage storage;
  int64_t carried = neutral;
  for (int64_t done = 0; done < count; done += kThreads) {
    const int64_t t = count - 1 - done - threadIdx.x;
    int64_t value = t >= 0 ? get(t) : neutral, total;
    Scan(storage).InclusiveScan(value, value, Join(), total);
    if (t >= 0) put(t, Join()(value, carried));
    carried = Join()(carried, total);
    __syncthreads();
  }
}

// One block a sequence. prune_ranges.cc on the CPU does the same sums in the same order, so that both choose alike.
template <class Real>
__global__ void __launch_bounds__(kThreads) prune_ranges_kernel(PruneRangesParams params) {
  const prnnMutualInformationOptions_t& o = params.options;
  const int64_t n = blockIdx.x, columns = px_columns(o), range = params.prune_range;
  const Boundary b = find_boundary(o, params.boundary, n);
  const Real* px = static_cast<const Real*>(params.px_gradients) + n * o.symbols * columns;
  const Real* py = static_cast<const Real*>(params.py_gradients) + n * (o.symbols + 1) * o.frames;
  int* begins = params.range_begins + n * o.frames;
  const int64_t last = b.s_end - range + 1 > 0 ? b.s_end - range + 1 : 0;
  const int64_t growth = o.type == PRNN_RNNT_REGULAR ? range - 1 : 1;
  for (int64_t t = threadIdx.x; t < o.frames; t += kThreads) {
    int64_t chosen = last;
    if (t < b.t_end - 1) {
      Real best = 0;
      for (int64_t s = 0; s + range <= o.symbols + 1; ++s) {
        Real held = 0;
        for (int64_t i = 0; i < range; ++i) held += py[(s + i) * o.frames + t];
        if (s > 0) held -= px[(s - 1) * columns + t];
        if (s == 0 || held > best) {
          best = held;
          chosen = s;
        }
      }
    }
    begins[t] = static_cast<int>(chosen);
  }
  __syncthreads();
  // Never decreasing; then never growing by more than `growth` a frame, that is
  // begins[t] = max over later t' of begins[t'] - (t' - t) growth; then from 0.
  scan_from_end<Minimum>(
      o.frames, INT64_MAX, [&](int64_t t) { return static_cast<int64_t>(begins[t]); },
      [&](int64_t t, int64_t value) { begins[t] = static_cast<int>(value); });
  scan_from_end<Maximum>(
      o.frames, INT64_MIN, [&](int64_t t) { return begins[t] - t * growth; },
      [&](int64_t t, int64_t value) {
        const int64_t begin = value + t * growth, most = t * growth;
        begins[t] = static_cast<int>(begin < most ? begin : most);
      });
}

}  // namespace

Problem mutual_information_problem(const prnnMutualInformationOptions_t& options) {
  Problem problem{};
  problem.dataType = options.dataType;
  problem.type = options.type == PRNN_RNNT_REGULAR ? PRNN_RNNT_REGULAR : PRNN_RNNT_MODIFIED;
  problem.batch = options.batch;
  problem.maxFrames = options.frames + 1;
  problem.maxTargets = options.symbols;
  return problem;
}

template <class Real>
void run_mutual_information(const MutualInformationParams& params, const Lattice<Real>& lattice, cudaStream_t stream) {
  const prnnMutualInformationOptions_t& o = params.options;
  const Problem problem = mutual_information_problem(o);
  const auto blocks = [](int64_t count) { return static_cast<unsigned>(ceil_div(count, kThreads)); };
  const int64_t places = o.batch * (o.symbols + 1) * (o.frames + 1);
  boundary_kernel<<<blocks(o.batch), kThreads, 0, stream>>>(o, params.boundary, lattice.sequences);
  check_launch("rnnt boundary_kernel");
  lay_in_kernel<<<blocks(places), kThreads, 0, stream>>>(params, problem, lattice);
  check_launch("rnnt lay_in_kernel");
  run_recursion(problem, lattice, static_cast<Real*>(nullptr), stream);
  lay_back_kernel<<<blocks(places), kThreads, 0, stream>>>(params, problem, lattice);
  check_launch("rnnt lay_back_kernel");
}

template <class Real>
void run_prune_ranges(const PruneRangesParams& params, cudaStream_t stream) {
  prune_ranges_kernel<Real><<<static_cast<unsigned>(params.options.batch), kThreads, 0, stream>>>(params);
  check_launch("rnnt prune_ranges_kernel");
}

template void run_mutual_information(const MutualInformationParams&, const Lattice<float>&, cudaStream_t);
template void run_mutual_information(const MutualInformationParams&, const Lattice<double>&, cudaStream_t);
template void run_prune_ranges<float>(const PruneRangesParams&, cudaStream_t);
template void run_prune_ranges<double>(const PruneRangesParams&, cudaStream_t);

}  // namespace prnn::rnnt_cuda
