// The recursions over the lattice. One block serves one sequence in one direction and steps through it; alpha and beta
// run side by side. A thread owns a column, keeps the cell it computed last in a register, and passes it to its
// neighbour by a shuffle, or through shared memory at a warp's edge, so that a step costs one barrier.
#include <cub/block/block_scan.cuh>

#include "core/cuda/launch.h"
#include "core/cuda/log_math.cuh"
#include "rnnt/cuda/cells.cuh"

namespace prnn::rnnt_cuda {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kSetupThreads = 512;
constexpr int kCellThreads = 256;
constexpr int64_t kMaxGridY = 65535;

// The two checks below are made by a whole warp.
__device__ bool symbols_valid(const Problem& p, const Sequence& s, int lane) {
  bool valid = true;
  if (p.input != PRNN_LOSS_GATHERED) {
    for (int u = lane; u < s.targets; u += 32) {
      const int symbol = p.targets[s.target_begin + u];
      valid = valid && symbol >= 0 && symbol < p.classes && symbol != p.blank;
    }
  }
  return __all_sync(~0u, valid);
}

__device__ bool ranges_valid(const Problem& p, int64_t n, const Sequence& s, int lane) {
  bool valid = true;
  if (p.layout == PRNN_RNNT_PRUNED) {
    const int* begins = p.range_begins + n * p.max_frames;
    for (int t = lane; t < s.frames; t += 32) {
      valid = valid && begins[t] >= (t == 0 ? 0 : begins[t - 1]) && begins[t] <= p.max_targets;
    }
  }
  return __all_sync(~0u, valid);
}

struct Offsets {
  int64_t cells, symbols;
  __device__ Offsets operator+(const Offsets& other) const { return {cells + other.cells, symbols + other.symbols}; }
};

// One block: lengths, then where sequences begin by a prefix sum, then, a warp a sequence, what they point to.
__global__ void __launch_bounds__(kSetupThreads) setup_kernel(Problem p, Sequence* sequences) {
  using Scan = cub::BlockScan<Offsets, kSetupThreads>;
  __shared__ typename Scan::TempStorage scan_storage;
  Offsets carried{0, 0};
  for (int64_t base = 0; base < p.batch; base += kSetupThreads) {
    const int64_t n = base + threadIdx.x;
    Sequence s{0, 0, 0, 0};
    if (n < p.batch) {
      const int frames = p.frame_lengths[n], targets = p.target_lengths[n];
      if (frames >= 1 && frames <= p.max_frames && targets >= 0 && targets <= p.max_targets) {
        s.frames = frames;
        s.targets = targets;
      }
    }
    const Offsets own{static_cast<int64_t>(s.frames) * (s.targets + 1), s.targets};
    Offsets begin, total;
    Scan(scan_storage).ExclusiveScan(own, begin, Offsets{0, 0}, [](Offsets a, Offsets b) { return a + b; }, total);
    begin = begin + carried;
    carried = carried + total;
    s.cell_begin = begin.cells;
    s.target_begin = p.target_layout == PRNN_TARGETS_PADDED ? n * p.max_targets : begin.symbols;
    const bool outside = (p.layout == PRNN_RNNT_PACKED && begin.cells + own.cells > p.rows) ||
                         (p.target_layout == PRNN_TARGETS_CONCATENATED && p.input != PRNN_LOSS_GATHERED &&
                          begin.symbols + own.symbols > p.target_elements);
    if (outside) s.frames = s.targets = 0;
    if (n < p.batch) sequences[n] = s;
    __syncthreads();
  }
  const int lane = threadIdx.x & 31;
  for (int64_t n = threadIdx.x >> 5; n < p.batch; n += kSetupThreads / 32) {
    const Sequence s = sequences[n];
    const bool valid = symbols_valid(p, s, lane) && ranges_valid(p, n, s, lane);
    if (!valid && lane == 0) sequences[n].frames = 0;
  }
}

// CONSTRAINED: a symbol is followed by the blank of the same frame, so its arc scores both.
template <class Real>
__global__ void constrain_kernel(Problem p, Lattice<Real> lattice) {
  const int64_t width = p.width(), cell = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t t = cell / width, u = cell % width;
  for (int64_t n = blockIdx.y; n < p.batch; n += gridDim.y) {
    const Sequence s = lattice.sequences[n];
    if (t >= s.frames || u >= s.targets) continue;
    Arcs<Real>* arcs = lattice.arcs + (n * p.steps() + t) * width + u;
    arcs[0].label += arcs[1].blank;
  }
}

// What the recursions need of one sequence.
template <class Real>
struct Track {
  const Arcs<Real>* arcs;
  int64_t width;
  int frames, targets, skew, last_step;  // last_step: that of the final node (T_n, U_n)

  __device__ Track(const Problem& p, const Lattice<Real>& lattice, int64_t n)
      : arcs(lattice.arcs + n * p.steps() * p.width()), width(p.width()), skew(p.skew()) {
    const Sequence s = lattice.sequences[n];
    frames = s.frames;
    targets = s.targets;
    last_step = frames + skew * targets;
  }
  __device__ bool holds(int step, int u) const {
    const int t = step - skew * u;
    return u <= targets && t >= 0 && t < frames;
  }
  // The arcs of the cell at (step, u), impossible ones where there is no cell.
  __device__ Arcs<Real> load(int step, int u) const {
    if (step < 0 || !holds(step, u)) return {static_cast<Real>(kNever), static_cast<Real>(kNever)};
    Arcs<Real> a = arcs[static_cast<int64_t>(step) * width + u];
    if (u == targets) a.label = static_cast<Real>(kNever);
    return a;
  }
};

// How the ways into a cell are joined.
enum class Paths { kAll, kBest };

template <Paths kPaths, class Real>
__device__ __forceinline__ double join(double by_blank, double by_label) {
  if constexpr (kPaths == Paths::kAll) return log_add<Real>(by_blank, by_label);
  return isnan(by_blank) || by_blank >= by_label ? by_blank : by_label;
}

// The sequence's score: NaN for one with bad lengths or symbols.
template <class Real>
__device__ void write_score(const Problem& p, const Lattice<Real>& lattice, Real* costs, int64_t n, bool bad,
                            double score) {
  if (bad) score = CUDART_NAN;
  lattice.scores[n] = score;
  if (costs) costs[n] = static_cast<Real>(score == kNever && p.zero_infinity ? 0.0 : -score);
}

// Steps whose arcs are on their way from memory.
template <class Real>
constexpr int kAhead = sizeof(Real) == 4 ? 8 : 4;

// alpha: the arcs of the step before, taken from each cell to itself one frame on and to its right neighbour.
template <Paths kPaths, class Real>
__device__ void forward(const Problem& p, const Lattice<Real>& lattice, Real* costs, int64_t n, double (*edge)[33]) {
  const Track<Real> track(p, lattice, n);
  const int u = threadIdx.x, lane = u & 31, warp = u >> 5;
  double* out = lattice.alpha + n * p.steps() * p.width();
  double own = u == 0 ? 0.0 : kNever;
  Arcs<Real> ahead[kAhead<Real>];
#pragma unroll
  for (int i = 0; i < kAhead<Real>; ++i) ahead[i] = track.load(i, u);
  for (int base = 0; base < track.last_step; base += kAhead<Real>) {
#pragma unroll
    for (int i = 0; i < kAhead<Real>; ++i) {
      const int step = base + i;
      if (step >= track.last_step) break;
      if (track.holds(step, u)) out[static_cast<int64_t>(step) * track.width + u] = own;
      const Arcs<Real> arcs = ahead[i];
      ahead[i] = track.load(step + kAhead<Real>, u);
      const double stay = own + arcs.blank, move = own + arcs.label;
      double left = __shfl_up_sync(~0u, move, 1);
      if (lane == 31) edge[step & 1][warp + 1] = move;
      __syncthreads();
      if (lane == 0) left = warp == 0 ? kNever : edge[step & 1][warp];
      own = join<kPaths, Real>(stay, left);
    }
  }
  if (u == track.targets) write_score(p, lattice, costs, n, track.frames == 0, own);
}

template <class Real>
__device__ void backward(const Problem& p, const Lattice<Real>& lattice, int64_t n, double (*edge)[33]) {
  const Track<Real> track(p, lattice, n);
  const int u = threadIdx.x, lane = u & 31, warp = u >> 5, warps = blockDim.x >> 5;
  double* out = lattice.beta + n * p.steps() * p.width();
  double own = u == track.targets ? 0.0 : kNever;
  if (track.frames > 0 && u <= track.targets) out[static_cast<int64_t>(track.last_step) * track.width + u] = own;
  Arcs<Real> ahead[kAhead<Real>];
#pragma unroll
  for (int i = 0; i < kAhead<Real>; ++i) ahead[i] = track.load(track.last_step - 1 - i, u);
  for (int base = 0; base < track.last_step; base += kAhead<Real>) {
#pragma unroll
    for (int i = 0; i < kAhead<Real>; ++i) {
      const int step = track.last_step - 1 - base - i;
      if (step < 0) break;
      const Arcs<Real> arcs = ahead[i];
      ahead[i] = track.load(step - kAhead<Real>, u);
      double right = __shfl_down_sync(~0u, own, 1);
      if (lane == 0) edge[step & 1][warp] = own;
      __syncthreads();
      if (lane == 31) right = warp + 1 == warps ? kNever : edge[step & 1][warp + 1];
      own = log_add<Real>(own + arcs.blank, right + arcs.label);
      // Cells of the frame T_n too: the shares read there that no path goes on from them.
      if (u <= track.targets && step >= track.skew * u) out[static_cast<int64_t>(step) * track.width + u] = own;
    }
  }
}

template <Paths kPaths, class Real>
__global__ void __launch_bounds__(kMaxThreads) recursion_kernel(Problem p, Lattice<Real> lattice, Real* costs) {
  __shared__ double edge[2][33];
  if (blockIdx.y == 0)
    forward<kPaths>(p, lattice, costs, blockIdx.x, edge);
  else
    backward(p, lattice, blockIdx.x, edge);
}

// The same for lattices wider than a block has threads: a thread walks over several columns, and the step before is
// read back from memory.
template <Paths kPaths, class Real>
__global__ void __launch_bounds__(kMaxThreads) wide_recursion_kernel(Problem p, Lattice<Real> lattice, Real* costs) {
  const int64_t n = blockIdx.x;
  const Track<Real> track(p, lattice, n);
  const int64_t width = track.width;
  if (blockIdx.y == 0) {
    double* out = lattice.alpha + n * p.steps() * width;
    for (int step = 0; step <= track.last_step; ++step) {
      for (int u = threadIdx.x; u <= track.targets; u += blockDim.x) {
        double own = u == 0 && step == 0 ? 0.0 : kNever;
        if (step > 0) {
          double stay = kNever, left = kNever;
          if (track.holds(step - 1, u)) stay = out[(step - 1) * width + u] + track.load(step - 1, u).blank;
          if (u > 0 && track.holds(step - 1, u - 1))
            left = out[(step - 1) * width + u - 1] + track.load(step - 1, u - 1).label;
          own = join<kPaths, Real>(stay, left);
        }
        if (step < track.last_step && track.holds(step, u)) out[step * width + u] = own;
        if (step == track.last_step && u == track.targets) write_score(p, lattice, costs, n, false, own);
      }
      __syncthreads();
    }
    if (track.frames == 0 && threadIdx.x == 0) write_score(p, lattice, costs, n, true, 0.0);
  } else if (track.frames > 0) {
    double* out = lattice.beta + n * p.steps() * width;
    for (int step = track.last_step; step >= 0; --step) {
      for (int u = threadIdx.x; u <= track.targets; u += blockDim.x) {
        double own = u == track.targets ? 0.0 : kNever;
        if (step < track.last_step) {
          const Arcs<Real> arcs = track.load(step, u);
          const double right = u < track.targets ? out[(step + 1) * width + u + 1] : kNever;
          own = log_add<Real>(out[(step + 1) * width + u] + arcs.blank, right + arcs.label);
        }
        if (step == track.last_step || step >= track.skew * u) out[step * width + u] = own;
      }
      __syncthreads();
    }
  }
}

template <class Real>
__global__ void shares_kernel(Problem p, Lattice<Real> lattice, Arcs<Real>* shares) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= p.activation_cells()) return;
  const Cell cell = find_cell(p, lattice.sequences, row);
  if (!cell.real) return;
  const double score = lattice.scores[cell.n];
  Arcs<Real> share{0, 0};
  if (score != kNever) {
    const int64_t at = lattice_index(p, cell), next = at + p.width();
    const bool has_label = cell.u < lattice.sequences[cell.n].targets;
    const Arcs<Real> arcs = lattice.arcs[at];
    const double alpha = lattice.alpha[at] - score;
    share.blank = exp(static_cast<Real>(alpha + arcs.blank + lattice.beta[next]));
    if (has_label) share.label = exp(static_cast<Real>(alpha + arcs.label + lattice.beta[next + 1]));
    if (p.lattice == PRNN_RNNT_CONSTRAINED && cell.u > 0) {  // the label of the cell before passes over this blank
      share.blank +=
          exp(static_cast<Real>(lattice.alpha[at - 1] - score + lattice.arcs[at - 1].label + lattice.beta[next]));
    }
  }
  shares[row] = share;
}

// Walks back from the end, a thread a sequence: the steps depend on each other, and each reads two cells.
template <class Real>
__global__ void walk_kernel(Problem p, Lattice<Real> lattice, Real* path_scores, int* frames) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (n >= p.batch) return;
  const Track<Real> track(p, lattice, n);
  const double score = lattice.scores[n];
  const double* alpha = lattice.alpha + n * p.steps() * p.width();
  int* times = frames + n * p.max_targets;
  path_scores[n] = static_cast<Real>(score);
  for (int64_t i = 0; i < p.max_targets; ++i) times[i] = -1;
  if (isnan(score) || score == kNever) return;
  int u = track.targets;
  for (int step = track.last_step - 1; step >= 0 && u >= 0; --step) {
    const int64_t at = static_cast<int64_t>(step) * track.width + u;
    const double by_blank = track.holds(step, u) ? alpha[at] + track.load(step, u).blank : kNever;
    const double by_label = u > 0 && track.holds(step, u - 1) ? alpha[at - 1] + track.load(step, u - 1).label : kNever;
    if (by_blank >= by_label) continue;
    --u;
    times[u] = step - track.skew * u;
  }
}

template <Paths kPaths, class Real>
void launch_recursion(const Problem& problem, const Lattice<Real>& lattice, Real* costs, cudaStream_t stream) {
  if (problem.lattice == PRNN_RNNT_CONSTRAINED) {
    const dim3 grid(static_cast<unsigned>(ceil_div(problem.max_frames * problem.width(), kCellThreads)),
                    static_cast<unsigned>(problem.batch < kMaxGridY ? problem.batch : kMaxGridY));
    constrain_kernel<<<grid, kCellThreads, 0, stream>>>(problem, lattice);
    check_launch("rnnt constrain_kernel");
  }
  const dim3 grid(static_cast<unsigned>(problem.batch), lattice.beta ? 2 : 1);
  if (problem.width() <= kMaxThreads) {
    const unsigned threads = static_cast<unsigned>(32 * ceil_div(problem.width(), 32));
    recursion_kernel<kPaths><<<grid, threads, 0, stream>>>(problem, lattice, costs);
  } else {
    wide_recursion_kernel<kPaths><<<grid, kMaxThreads, 0, stream>>>(problem, lattice, costs);
  }
  check_launch("rnnt recursion_kernel");
}

}  // namespace

void run_setup(const Problem& problem, Sequence* sequences, cudaStream_t stream) {
  setup_kernel<<<1, kSetupThreads, 0, stream>>>(problem, sequences);
  check_launch("rnnt setup_kernel");
}

template <class Real>
void run_recursion(const Problem& problem, const Lattice<Real>& lattice, Real* costs, cudaStream_t stream) {
  launch_recursion<Paths::kAll>(problem, lattice, costs, stream);
}

template <class Real>
void run_shares(const Problem& problem, const Lattice<Real>& lattice, Arcs<Real>* shares, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(problem.activation_cells(), kCellThreads));
  shares_kernel<<<blocks, kCellThreads, 0, stream>>>(problem, lattice, shares);
  check_launch("rnnt shares_kernel");
}

template <class Real>
void run_best_path(const Problem& problem, const Lattice<Real>& lattice, Real* path_scores, int* frames,
                   cudaStream_t stream) {
  launch_recursion<Paths::kBest>(problem, lattice, static_cast<Real*>(nullptr), stream);
  walk_kernel<<<static_cast<unsigned>(ceil_div(problem.batch, 32)), 32, 0, stream>>>(problem, lattice, path_scores,
                                                                                     frames);
  check_launch("rnnt walk_kernel");
}

template void run_recursion(const Problem&, const Lattice<float>&, float*, cudaStream_t);
template void run_recursion(const Problem&, const Lattice<double>&, double*, cudaStream_t);
template void run_shares(const Problem&, const Lattice<float>&, Arcs<float>*, cudaStream_t);
template void run_shares(const Problem&, const Lattice<double>&, Arcs<double>*, cudaStream_t);
template void run_best_path(const Problem&, const Lattice<float>&, float*, int*, cudaStream_t);
template void run_best_path(const Problem&, const Lattice<double>&, double*, int*, cudaStream_t);

}  // namespace prnn::rnnt_cuda
