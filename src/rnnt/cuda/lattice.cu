// The recursions over the lattice. One block serves one sequence in one direction and steps through it; alpha and beta
// run side by side. A thread owns a column, keeps the cell it computed last in a register, and passes it to its
// neighbour by a shuffle. A warp follows its neighbour at a distance of some rows, whose edge values it finds in shared
// memory, so that a barrier serves that many rows.
#include <cub/block/block_scan.cuh>

#include "core/cuda/launch.h"
#include "core/cuda/reduce_costs.cuh"
#include "core/cuda/scaled.cuh"
#include "rnnt/cuda/cells.cuh"

namespace prnn::rnnt_cuda {
namespace {

constexpr int kMaxThreads = 1024, kFewThreads = 512;
constexpr int kSetupThreads = 512;
constexpr int kCellThreads = 256;
constexpr int64_t kMaxGridY = 65535;

// By a whole warp.
__device__ bool ranges_valid(const Problem& p, int64_t n, const Sequence& s, int lane) {
  bool valid = true;
  if (p.layout == PRNN_RNNT_PRUNED) {
    const int* begins = p.range_begins + n * p.maxFrames;
    for (int t = lane; t < s.frames; t += 32) {
      valid = valid && begins[t] >= (t == 0 ? 0 : begins[t - 1]) && begins[t] <= p.maxTargets;
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
      if (frames >= 1 && frames <= p.maxFrames && targets >= 0 && targets <= p.maxTargets) {
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
    s.target_begin = p.targetLayout == PRNN_TARGETS_PADDED ? n * p.maxTargets : begin.symbols;
    const bool outside = (p.layout == PRNN_RNNT_PACKED && begin.cells + own.cells > p.rows) ||
                         (p.targetLayout == PRNN_TARGETS_CONCATENATED && p.input != PRNN_LOSS_GATHERED &&
                          begin.symbols + own.symbols > p.targetElements);
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

// CONSTRAINED: a symbol is followed by the blank of the same frame, so its arc scores both. FINAL_BLANK: the last frame
// has no symbol.
template <class Real>
__global__ void constrain_kernel(Problem p, Lattice<Real> lattice) {
  const int64_t width = p.width(), cell = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t t = cell / width, u = cell % width;
  for (int64_t n = blockIdx.y; n < p.batch; n += gridDim.y) {
    const Sequence s = lattice.sequences[n];
    if (t >= s.frames || u >= s.targets) continue;
    Arcs<Real>* arcs = lattice.arcs + (n * p.steps() + t) * width + u;
    if (p.type == PRNN_RNNT_CONSTRAINED) {
      arcs[0].label += arcs[1].blank;
    } else if (t + 1 == s.frames) {
      arcs[0].label = static_cast<Real>(kNever);
    }
  }
}

// One sequence as the recursions read it.
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
    if (!holds(step, u)) return {static_cast<Real>(kNever), static_cast<Real>(kNever)};
    return arcs[static_cast<int64_t>(step) * width + u];
  }
};

// The probability of a sequence's targets: NaN for one with bad lengths or symbols.
template <class Real>
__device__ void write_total(const Problem& p, const Lattice<Real>& lattice, Real* costs, int64_t n,
                            const Scaled<Real>& total) {
  lattice.totals[n] = total;
  const double score = scaled_log(total);
  if (costs) costs[n] = static_cast<Real>(score == kNever && p.zeroInfinity ? 0.0 : -score);
}

// Rows of the lattice that a warp takes between two barriers, and whose arcs are on their way from memory.
template <class Real>
constexpr int kRows = sizeof(Real) == 4 ? 8 : 4;

// The values that pass over the edge between two warps: those of two chunks of rows, those that are being written and
// those that are being read. Beyond the outermost warps there is nothing.
template <class Real>
struct Edges {
  Scaled<Real> at[2][32][kRows<Real>], none[kRows<Real>];
};

__device__ __forceinline__ bool within(int t, int limit) {
  return static_cast<unsigned>(t) < static_cast<unsigned>(limit);
}

// A thread's column of the lattice, for the recursions. Every instruction of a row counts there: loads have no
// condition (outside the column's frames they bring the arcs of another frame, and what must not be taken is left out
// when it is used), so that nothing waits for a load before its value is due.
template <class Real>
struct Column {
  const Arcs<Real>* arcs;  // of frame 0
  int64_t width;
  int frames;

  // Columns after the last target repeat its arcs; they have no label, and nothing gets into them.
  __device__ Column(const Track<Real>& track, int u)
      : arcs(track.arcs + static_cast<int64_t>(min(u, track.targets)) * (track.skew * track.width + 1)),
        width(track.width),
        frames(track.frames) {}
  __device__ __forceinline__ Arcs<Real> load(int t) const {
    return arcs[min(static_cast<unsigned>(t), static_cast<unsigned>(frames - 1)) * width];
  }
  // No label leads on from beyond the frames.
  __device__ __forceinline__ Scaled<Real> label(const Arcs<Real>& a, int t) const {
    return scaled_exp(within(t, frames) ? a.label : static_cast<Real>(kNever));
  }
};

// alpha: the arcs of the step before, taken from each cell to itself one frame on and to its right neighbour.
template <class Real>
__device__ void forward(const Problem& p, const Lattice<Real>& lattice, Real* costs, int64_t n, Edges<Real>& edges) {
  constexpr int R = kRows<Real>;
  const Track<Real> track(p, lattice, n);
  const int u = threadIdx.x, lane = u & 31, warp = u >> 5, warps = track.targets / 32 + 1;
  const Column<Real> column(track, u);
  const int written = u <= track.targets ? track.frames : 0;
  // Chunks end at last_step, so that the first begins before step 0, in rows without cells; in them column 0 stays
  // what it is. A warp begins at the chunk in which its first cell gets a value, one barrier later than its neighbour.
  const int chunks = (track.last_step + R - 1) / R, before = chunks * R - track.last_step;
  const int first = max(0, track.skew * 32 * warp - 1 + before) / R, first_step = first * R - before;
  int t = first_step - track.skew * u;
  Scaled<Real> own = scaled_zero<Real>();
  if (u == 0) own = {1, 0};
  Arcs<Real> ahead[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    ahead[i] = column.load(t + i);
    if (u == 0 && first_step + i < 0) ahead[i].blank = 0;
  }
  Scaled<Real>* out = lattice.alpha + (n * p.steps() + first_step) * track.width + u;
  for (int phase = 0; phase < chunks + warps - 1; ++phase) {
    const int chunk = phase - warp;
    if (warp < warps && chunk >= first && chunk < chunks) {
      Scaled<Real>* sent = edges.at[chunk & 1][warp];
      const Scaled<Real>* received = warp > 0 ? edges.at[chunk & 1][warp - 1] : edges.none;
      own = normalised(own);
      // All of the chunk's exponentials first: they do not wait for one another, as the rows do.
      Scaled<Real> blanks[R], labels[R];
#pragma unroll
      for (int i = 0; i < R; ++i) {
        blanks[i] = scaled_exp(ahead[i].blank);
        labels[i] = column.label(ahead[i], t + i);
        ahead[i] = column.load(t + R + i);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < R; ++i) {
        store_if(within(t, written), out, own);
        out += track.width;
        ++t;
        const Scaled<Real> by_blank = own * blanks[i], by_label = own * labels[i];
        const Scaled<Real> over_edge = received[i];
        if (lane == 31) sent[i] = by_label;
        own = by_blank + select(lane == 0, over_edge, shuffle_up(by_label));
      }
    }
    if (warps > 1) __syncthreads();
  }
  if (u == track.targets) write_total(p, lattice, costs, n, own);
}

// beta: warps follow one another from the right, where the lattice ends.
template <class Real>
__device__ void backward(const Problem& p, const Lattice<Real>& lattice, int64_t n, Edges<Real>& edges) {
  constexpr int R = kRows<Real>;
  const Track<Real> track(p, lattice, n);
  const int u = threadIdx.x, lane = u & 31, warp = u >> 5, warps = track.targets / 32 + 1;
  const Column<Real> column(track, u);
  // Cells of the frame T_n are written too: the shares read there that no path goes on from them.
  const int written = u <= track.targets ? track.frames + 1 : 0;
  const int chunks = (track.last_step + R - 1) / R, late = warps - 1 - warp;
  const int first = max(0, track.skew * (track.targets - 32 * warp - 32)) / R;
  int t = track.last_step - 1 - first * R - track.skew * u;
  Scaled<Real> own = scaled_zero<Real>();
  if (u == track.targets) own = {1, 0};
  Scaled<Real>* out = lattice.beta + (n * p.steps() + track.last_step) * track.width + u;
  if (u <= track.targets) *out = own;
  out -= (1 + first * R) * track.width;
  Arcs<Real> ahead[R];
#pragma unroll
  for (int i = 0; i < R; ++i) ahead[i] = column.load(t - i);
  for (int phase = 0; phase < chunks + warps - 1; ++phase) {
    const int chunk = phase - late;
    if (late >= 0 && chunk >= first && chunk < chunks) {
      Scaled<Real>* sent = edges.at[chunk & 1][warp];
      const Scaled<Real>* received = late > 0 ? edges.at[chunk & 1][warp + 1] : edges.none;
      own = normalised(own);
      Scaled<Real> blanks[R], labels[R];
#pragma unroll
      for (int i = 0; i < R; ++i) {
        blanks[i] = scaled_exp(ahead[i].blank);
        labels[i] = column.label(ahead[i], t - i);
        ahead[i] = column.load(t - R - i);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < R; ++i) {
        const Scaled<Real> over_edge = received[i];
        if (lane == 0) sent[i] = own;
        own = own * blanks[i] + select(lane == 31, over_edge, shuffle_down(own)) * labels[i];
        store_if(within(t, written), out, own);
        out -= track.width;
        --t;
      }
    }
    if (warps > 1) __syncthreads();
  }
}

// A block of at most kThreads, which bounds its registers.
template <int kThreads, class Real>
__global__ void __launch_bounds__(kThreads) recursion_kernel(Problem p, Lattice<Real> lattice, Real* costs) {
  __shared__ Edges<Real> edges;
  const int64_t n = blockIdx.x;
  if (lattice.sequences[n].frames == 0) {
    if (threadIdx.x == 0 && blockIdx.y == 0) write_total(p, lattice, costs, n, {static_cast<Real>(CUDART_NAN), 0});
    return;
  }
  if (threadIdx.x < kRows<Real>) edges.none[threadIdx.x] = scaled_zero<Real>();
  __syncthreads();
  if (blockIdx.y == 0)
    forward(p, lattice, costs, n, edges);
  else
    backward(p, lattice, n, edges);
}

// Sweeps lattices wider than a block has threads: a thread walks over several columns, and the step before is
// read back from memory.
template <class Real>
__global__ void __launch_bounds__(kMaxThreads) wide_recursion_kernel(Problem p, Lattice<Real> lattice, Real* costs) {
  const int64_t n = blockIdx.x;
  const Track<Real> track(p, lattice, n);
  const int64_t width = track.width;
  if (blockIdx.y == 0) {
    Scaled<Real>* out = lattice.alpha + n * p.steps() * width;
    for (int step = 0; step <= track.last_step; ++step) {
      for (int u = threadIdx.x; u <= track.targets; u += blockDim.x) {
        Scaled<Real> own = scaled_zero<Real>();
        if (u == 0 && step == 0) own = {1, 0};
        if (step > 0) {
          Scaled<Real> stay = own, left = own;
          if (track.holds(step - 1, u)) stay = out[(step - 1) * width + u] * scaled_exp(track.load(step - 1, u).blank);
          if (u > 0 && track.holds(step - 1, u - 1))
            left = out[(step - 1) * width + u - 1] * scaled_exp(track.load(step - 1, u - 1).label);
          own = normalised(stay + left);
        }
        if (track.holds(step, u)) out[step * width + u] = own;
        if (step == track.last_step && u == track.targets) {
          if (track.frames == 0) own = {static_cast<Real>(CUDART_NAN), 0};
          write_total(p, lattice, costs, n, own);
        }
      }
      __syncthreads();
    }
  } else if (track.frames > 0) {
    Scaled<Real>* out = lattice.beta + n * p.steps() * width;
    for (int step = track.last_step; step >= 0; --step) {
      for (int u = threadIdx.x; u <= track.targets; u += blockDim.x) {
        if (step != track.last_step && step < track.skew * u) continue;  // nothing comes here
        Scaled<Real> own = scaled_zero<Real>();
        if (step == track.last_step) {
          if (u == track.targets) own = {1, 0};
        } else {
          const Arcs<Real> arcs = track.load(step, u);
          own = out[(step + 1) * width + u] * scaled_exp(arcs.blank);
          if (u < track.targets) own = own + out[(step + 1) * width + u + 1] * scaled_exp(arcs.label);
          own = normalised(own);
        }
        out[step * width + u] = own;
      }
      __syncthreads();
    }
  }
}

template <class Real>
__device__ __forceinline__ void write_shares(const Problem& p, const Lattice<Real>& lattice, Arcs<Real>* shares,
                                             const Cell& cell, const Sequence& s, int64_t row) {
  const Scaled<Real> total = lattice.totals[cell.n];
  Arcs<Real> share{0, 0};
  if (!is_zero(total)) {
    const int64_t at = lattice_index(p, cell), next = at + p.width();
    const Arcs<Real> arcs = lattice.arcs[at];
    const Scaled<Real> alpha = lattice.alpha[at], end = lattice.beta[next];
    share.blank = share_of(alpha * scaled_exp(arcs.blank) * end, total);
    if (cell.u < s.targets) share.label = share_of(alpha * scaled_exp(arcs.label) * lattice.beta[next + 1], total);
    if (p.type == PRNN_RNNT_CONSTRAINED && cell.u > 0) {  // the label of the cell before passes over this blank
      share.blank += share_of(lattice.alpha[at - 1] * scaled_exp(lattice.arcs[at - 1].label) * end, total);
    }
  }
  shares[row] = share;
}

template <class Real>
__global__ void row_shares_kernel(Problem p, Lattice<Real> lattice, Arcs<Real>* shares, ReducedCosts<Real> reduced) {
  if (is_for_reduction(reduced)) return;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= p.activation_cells()) return;
  const Cell cell = find_cell(p, lattice.sequences, row);
  if (cell.real) write_shares(p, lattice, shares, cell, lattice.sequences[cell.n], row);
}

// A warp has 8 frames of 4 columns: what lies side by side in the lattice, along its diagonals, and what lies side by
// side in the activations then fall into few of the 32-byte sectors in which memory is read.
constexpr int kTileFrames = 8, kTileColumns = 4;

template <class Real>
__global__ void shares_kernel(Problem p, Lattice<Real> lattice, Arcs<Real>* shares, ReducedCosts<Real> reduced,
                              unsigned tiles_across) {
  if (is_for_reduction(reduced)) return;
  const unsigned tile = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  const unsigned down = tile / tiles_across;
  Cell cell{0, static_cast<int>(down * kTileFrames + lane / kTileColumns),
            static_cast<int>((tile - down * tiles_across) * kTileColumns + lane % kTileColumns), true};
  for (cell.n = blockIdx.y; cell.n < p.batch; cell.n += gridDim.y) {
    const Sequence s = lattice.sequences[cell.n];
    if (cell.t >= s.frames || cell.u > s.targets) continue;
    const int64_t row = p.layout == PRNN_RNNT_PACKED
                            ? s.cell_begin + static_cast<int64_t>(cell.t) * (s.targets + 1) + cell.u
                            : (cell.n * p.maxFrames + cell.t) * p.width() + cell.u;
    write_shares(p, lattice, shares, cell, s, row);
  }
}

// The best way to each cell, in logarithms. One block a sequence; a thread walks over columns.
template <class Real>
__global__ void __launch_bounds__(kMaxThreads)
    best_kernel(Problem p, Lattice<Real> lattice, double* best, Real* path_scores) {
  const int64_t n = blockIdx.x;
  const Track<Real> track(p, lattice, n);
  const int64_t width = track.width;
  double* out = best + n * p.steps() * width;
  for (int step = 0; step <= track.last_step; ++step) {
    for (int u = threadIdx.x; u <= track.targets; u += blockDim.x) {
      double own = u == 0 && step == 0 ? 0.0 : kNever;
      if (step > 0) {
        double stay = kNever, left = kNever;
        if (track.holds(step - 1, u)) stay = out[(step - 1) * width + u] + track.load(step - 1, u).blank;
        if (u > 0 && track.holds(step - 1, u - 1))
          left = out[(step - 1) * width + u - 1] + track.load(step - 1, u - 1).label;
        own = isnan(stay) || stay >= left ? stay : left;
      }
      if (track.holds(step, u)) out[step * width + u] = own;
      if (step == track.last_step && u == track.targets)
        path_scores[n] = static_cast<Real>(track.frames == 0 ? CUDART_NAN : own);
    }
    __syncthreads();
  }
}

// Walks back from the end, a thread a sequence: the steps depend on each other, and each reads two cells.
template <class Real>
__global__ void walk_kernel(Problem p, Lattice<Real> lattice, const double* best, const Real* path_scores,
                            int* frames) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (n >= p.batch) return;
  const Track<Real> track(p, lattice, n);
  best += n * p.steps() * p.width();
  int* times = frames + n * p.maxTargets;
  for (int64_t i = 0; i < p.maxTargets; ++i) times[i] = -1;
  if (isnan(path_scores[n]) || path_scores[n] == static_cast<Real>(kNever)) return;
  int u = track.targets;
  for (int step = track.last_step - 1; step >= 0 && u >= 0; --step) {
    const int64_t at = static_cast<int64_t>(step) * track.width + u;
    const double by_blank = track.holds(step, u) ? best[at] + track.load(step, u).blank : kNever;
    const double by_label = u > 0 && track.holds(step, u - 1) ? best[at - 1] + track.load(step, u - 1).label : kNever;
    if (by_blank >= by_label) continue;
    --u;
    times[u] = step - track.skew * u;
  }
}

template <class Real>
void constrain(const Problem& problem, const Lattice<Real>& lattice, cudaStream_t stream) {
  if (problem.type != PRNN_RNNT_CONSTRAINED && problem.type != PRNN_RNNT_FINAL_BLANK) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(problem.maxFrames * problem.width(), kCellThreads)),
                  static_cast<unsigned>(problem.batch < kMaxGridY ? problem.batch : kMaxGridY));
  constrain_kernel<<<grid, kCellThreads, 0, stream>>>(problem, lattice);
  check_launch("rnnt constrain_kernel");
}

// Threads of a block with a column each.
unsigned column_threads(const Problem& problem) {
  return problem.width() <= kMaxThreads ? static_cast<unsigned>(32 * ceil_div(problem.width(), 32)) : kMaxThreads;
}

}  // namespace

void run_setup(const Problem& problem, Sequence* sequences, cudaStream_t stream) {
  setup_kernel<<<1, kSetupThreads, 0, stream>>>(problem, sequences);
  check_launch("rnnt setup_kernel");
}

template <class Real>
void run_recursion(const Problem& problem, const Lattice<Real>& lattice, Real* costs, cudaStream_t stream) {
  constrain(problem, lattice, stream);
  const dim3 grid(static_cast<unsigned>(problem.batch), lattice.beta ? 2 : 1);
  if (problem.width() <= kFewThreads)
    recursion_kernel<kFewThreads><<<grid, column_threads(problem), 0, stream>>>(problem, lattice, costs);
  else if (problem.width() <= kMaxThreads)
    recursion_kernel<kMaxThreads><<<grid, column_threads(problem), 0, stream>>>(problem, lattice, costs);
  else
    wide_recursion_kernel<<<grid, kMaxThreads, 0, stream>>>(problem, lattice, costs);
  check_launch("rnnt recursion_kernel");
}

template <class Real>
void run_shares(const Problem& problem, const Lattice<Real>& lattice, Arcs<Real>* shares,
                const ReducedCosts<Real>& reduced, cudaStream_t stream) {
  static_assert(kCellThreads == kReduceThreads);
  const int64_t across = ceil_div(problem.width(), kTileColumns);
  const int64_t tiles = across * ceil_div(problem.maxFrames, kTileFrames);
  // A packed batch may come without bounds on its lengths, and then has far more tiles than rows.
  if (problem.layout == PRNN_RNNT_PRUNED || tiles > INT32_MAX / 32 ||
      8 * tiles * problem.batch > problem.activation_cells()) {
    const auto blocks = static_cast<unsigned>(ceil_div(problem.activation_cells(), kCellThreads));
    row_shares_kernel<<<blocks + blocks_for_reduction(reduced), kCellThreads, 0, stream>>>(problem, lattice, shares,
                                                                                           reduced);
  } else {
    const dim3 grid(static_cast<unsigned>(ceil_div(tiles, kCellThreads / 32)) + blocks_for_reduction(reduced),
                    static_cast<unsigned>(problem.batch < kMaxGridY ? problem.batch : kMaxGridY));
    shares_kernel<<<grid, kCellThreads, 0, stream>>>(problem, lattice, shares, reduced, static_cast<unsigned>(across));
  }
  check_launch("rnnt shares_kernel");
}

template <class Real>
void run_best_path(const Problem& problem, const Lattice<Real>& lattice, double* best, Real* path_scores, int* frames,
                   cudaStream_t stream) {
  constrain(problem, lattice, stream);
  best_kernel<<<static_cast<unsigned>(problem.batch), column_threads(problem), 0, stream>>>(problem, lattice, best,
                                                                                            path_scores);
  check_launch("rnnt best_kernel");
  walk_kernel<<<static_cast<unsigned>(ceil_div(problem.batch, 32)), 32, 0, stream>>>(problem, lattice, best,
                                                                                     path_scores, frames);
  check_launch("rnnt walk_kernel");
}

template void run_recursion(const Problem&, const Lattice<float>&, float*, cudaStream_t);
template void run_recursion(const Problem&, const Lattice<double>&, double*, cudaStream_t);
template void run_shares(const Problem&, const Lattice<float>&, Arcs<float>*, const ReducedCosts<float>&, cudaStream_t);
template void run_shares(const Problem&, const Lattice<double>&, Arcs<double>*, const ReducedCosts<double>&,
                         cudaStream_t);
template void run_best_path(const Problem&, const Lattice<float>&, double*, float*, int*, cudaStream_t);
template void run_best_path(const Problem&, const Lattice<double>&, double*, double*, int*, cudaStream_t);

}  // namespace prnn::rnnt_cuda
