// The recursions over the states of CTC. One block serves one sequence in one direction and steps through its frames;
// alpha and beta run side by side. A thread owns a column, keeps its two states in registers, and passes them to its
// neighbour by shuffles. A warp follows its neighbour at a distance of some frames, whose edge values it finds in
// shared memory, so that a barrier serves that many frames.
#include <cub/block/block_scan.cuh>

#include "core/cuda/launch.h"
#include "core/cuda/reduce_costs.cuh"
#include "core/cuda/scaled.cuh"
#include "ctc/cuda/ctc_kernels.h"

namespace prnn::ctc_cuda {
namespace {

constexpr int kMaxThreads = 1024, kFewThreads = 512;
constexpr int kSetupThreads = 512;
constexpr int kWarpsPerBlock = 8;

// One block: lengths, then where targets begin by a prefix sum, then, a warp a sequence, the symbols.
__global__ void __launch_bounds__(kSetupThreads) setup_kernel(CtcParams params, Sequence* sequences) {
  const prnnCTCLossOptions_t& o = params.options;
  using Scan = cub::BlockScan<int64_t, kSetupThreads>;
  __shared__ typename Scan::TempStorage scan_storage;
  int64_t carried = 0;
  for (int64_t base = 0; base < o.batch; base += kSetupThreads) {
    const int64_t n = base + threadIdx.x;
    Sequence s = n < o.batch ? lengths_of(params, n) : Sequence{0, -1, 0};
    int64_t begin, total;
    Scan(scan_storage).ExclusiveSum(static_cast<int64_t>(s.targets), begin, total);
    s.target_begin = begin + carried;
    carried += total;
    if (s.target_begin + s.targets > o.targetElements) s = {0, -1, 0};
    if (n < o.batch) sequences[n] = s;
    __syncthreads();
  }
  const int lane = threadIdx.x & 31;
  for (int64_t n = threadIdx.x >> 5; n < o.batch; n += kSetupThreads / 32) {
    const Sequence s = sequences[n];
    bool valid = true;
    for (int i = lane; i < s.targets; i += 32) {
      valid = valid && is_target(o, params.targets[s.target_begin + i]);
    }
    if (!__all_sync(~0u, valid) && lane == 0) sequences[n] = {0, -1, 0};
  }
}

// A thread a position, which looks ahead for its own symbol and back for an earlier one.
__device__ void find_repeats(const CtcParams& params, const Sequence& s, int64_t n, const Repeats& repeats) {
  const int64_t width = params.options.maxTargets + 1;
  const int* targets = params.targets + s.target_begin;
  for (int i = threadIdx.x; i < s.targets; i += blockDim.x) {
    const int symbol = targets[i];
    int later = i + 1, earlier = i - 1;
    while (later < s.targets && targets[later] != symbol) ++later;
    while (earlier >= 0 && targets[earlier] != symbol) --earlier;
    repeats.next[n * width + i] = later < s.targets ? later : -1;
    repeats.first[n * width + i] = earlier < 0;
  }
}

// The rows of a recursion's blocks: alpha, beta, repeats.
constexpr unsigned kAlphaRow = 0, kRepeatsRow = 2, kRows = 3;

// One sequence as the recursions read it.
template <class Real>
struct Track {
  const Real *blanks, *labels;
  int64_t width;
  int frames, targets;

  __device__ Track(const CtcParams& p, const Arrays<Real>& arrays, int64_t n)
      : blanks(arrays.blanks + n * p.options.maxFrames),
        labels(arrays.labels + n * p.options.maxFrames * (p.options.maxTargets + 1)),
        width(p.options.maxTargets + 1),
        frames(arrays.sequences[n].frames),
        targets(arrays.sequences[n].targets) {}

  // Log-probabilities of column i's states in frame t; kNever for a state or frame that does not exist.
  __device__ Real blank(int t, int i) const {
    return t >= 0 && t < frames && i <= targets ? blanks[t] : static_cast<Real>(kNever);
  }
  __device__ Real label(int t, int i) const {
    return t >= 0 && t < frames && i < targets ? labels[t * width + i] : static_cast<Real>(kNever);
  }
};

// Whether Y(i) may follow Y(i - 1) without a blank.
__device__ bool may_skip(const CtcParams& p, const Sequence& s, int i) {
  const int* targets = p.targets + s.target_begin;
  return i > 0 && i < s.targets && targets[i] != targets[i - 1];
}

// The states of a column in a frame from those of the frame before: `own`, and the label to its left.
template <class Real>
__device__ __forceinline__ States<Real> advance(const States<Real>& own, const Scaled<Real>& left_label, bool skip,
                                                const Scaled<Real>& blank, const Scaled<Real>& label) {
  const Scaled<Real> skipping = select(skip, left_label, scaled_zero<Real>());
  return {(own.blank + left_label) * blank, (own.label + own.blank + skipping) * label};
}

// beta of a column in a frame; ahead: beta times the frame's own probability, one frame on.
template <class Real>
__device__ __forceinline__ States<Real> retreat(const States<Real>& ahead, const States<Real>& right_ahead,
                                                bool right_skip) {
  const Scaled<Real> skipping = select(right_skip, right_ahead.label, scaled_zero<Real>());
  return {ahead.blank + ahead.label, ahead.label + right_ahead.blank + skipping};
}

// The state before the first frame: the only way on is into the column's own states.
template <class Real>
__device__ __forceinline__ States<Real> start(int i) {
  States<Real> states{scaled_zero<Real>(), scaled_zero<Real>()};
  if (i == 0) states.blank = {1, 0};
  return states;
}

// beta of the last frame.
template <class Real>
__device__ __forceinline__ States<Real> finish(int i, int targets) {
  States<Real> states{scaled_zero<Real>(), scaled_zero<Real>()};
  if (i == targets) states.blank = {1, 0};
  if (i + 1 == targets) states.label = {1, 0};
  return states;
}

template <class Real>
__device__ __forceinline__ States<Real> normalised(const States<Real>& states) {
  return {normalised(states.blank), normalised(states.label)};
}

template <class Real>
__device__ void write_total(const CtcParams& p, const Arrays<Real>& arrays, Real* costs, int64_t n,
                            const Scaled<Real>& total) {
  arrays.totals[n] = total;
  const double score = scaled_log(total);
  if (costs) costs[n] = static_cast<Real>(score == kNever && p.options.zeroInfinity ? 0.0 : 0.0 - score);
}

// From the last frame's states, which all of the block has written.
template <class Real>
__device__ void write_total(const CtcParams& p, const Arrays<Real>& arrays, Real* costs, int64_t n,
                            const Track<Real>& track, const States<Real>* last) {
  Scaled<Real> total = last[track.targets].blank;
  if (track.targets > 0) total = total + last[track.targets - 1].label;
  write_total(p, arrays, costs, n, total);
}

// Sequences without frames, and bad ones. Returns whether n was one.
template <class Real>
__device__ bool write_trivial_total(const CtcParams& p, const Arrays<Real>& arrays, Real* costs, int64_t n) {
  const Sequence s = arrays.sequences[n];
  if (s.frames > 0) return false;
  if (threadIdx.x == 0 && blockIdx.y == kAlphaRow) {
    Scaled<Real> total = scaled_zero<Real>();
    if (s.frames < 0) total.mantissa = static_cast<Real>(CUDART_NAN);
    if (s.frames == 0 && s.targets == 0) total = {1, 0};
    write_total(p, arrays, costs, n, total);
  }
  return true;
}

// Frames that a warp takes between two barriers, and whose log-probabilities are on their way from memory.
template <class Real>
constexpr int kFrames = sizeof(Real) == 4 ? 8 : 4;

// The values that pass over the edge between two warps: those of two chunks of frames, those that are being written and
// those that are being read. Beyond the outermost warps there is nothing.
template <class Real>
struct Edges {
  States<Real> at[2][32][kFrames<Real>], none[kFrames<Real>];
};

// A thread's column, for the recursions. Every instruction of a frame counts there: loads have no condition, so that
// nothing waits for a load before its value is due. Columns without a label have the blanks in its place, finite
// numbers that nothing comes of: a label there is impossible from the start, or leads nowhere.
template <class Real>
struct Column {
  const Real *blanks, *labels;
  int64_t stride;  // of labels
  int last;        // frame

  __device__ Column(const Track<Real>& track, int i)
      : blanks(track.blanks),
        labels(i < track.targets ? track.labels + i : track.blanks),
        stride(i < track.targets ? track.width : 1),
        last(track.frames - 1) {}
  __device__ __forceinline__ int clamp(int t) const { return min(max(t, 0), last); }
  __device__ __forceinline__ Real blank(int t) const { return blanks[clamp(t)]; }
  __device__ __forceinline__ Real label(int t) const { return labels[clamp(t) * stride]; }
};

template <class Real>
__device__ void forward(const CtcParams& p, const Arrays<Real>& arrays, Real* costs, int64_t n, Edges<Real>& edges) {
  constexpr int F = kFrames<Real>;
  const Track<Real> track(p, arrays, n);
  const int i = threadIdx.x, lane = i & 31, warp = i >> 5, warps = track.targets / 32 + 1;
  const Column<Real> column(track, i);
  const bool skip = may_skip(p, arrays.sequences[n], i), real = i <= track.targets;
  // Chunks end with the last frame; the first may begin before the first frame, where nothing moves on.
  const int chunks = (track.frames + F - 1) / F;
  int t = track.frames - chunks * F;
  States<Real>* all = arrays.alpha + n * p.options.maxFrames * track.width;
  States<Real>* out = all + t * track.width + i;
  States<Real> own = start<Real>(i);
  Real blanks_ahead[F], labels_ahead[F];
#pragma unroll
  for (int k = 0; k < F; ++k) {
    blanks_ahead[k] = t + k < 0 ? Real(0) : column.blank(t + k);
    labels_ahead[k] = t + k < 0 ? static_cast<Real>(kNever) : column.label(t + k);
  }
  for (int phase = 0; phase < chunks + warps - 1; ++phase) {
    const int chunk = phase - warp;
    if (warp < warps && chunk >= 0 && chunk < chunks) {
      States<Real>* sent = edges.at[chunk & 1][warp];
      const States<Real>* received = warp > 0 ? edges.at[chunk & 1][warp - 1] : edges.none;
      own = normalised(own);
      // All of the chunk's exponentials first: they do not wait for one another, as the frames do.
      Scaled<Real> blanks[F], labels[F];
#pragma unroll
      for (int k = 0; k < F; ++k) {
        blanks[k] = scaled_exp(blanks_ahead[k]);
        labels[k] = scaled_exp(labels_ahead[k]);
        blanks_ahead[k] = column.blank(t + F + k);
        labels_ahead[k] = column.label(t + F + k);
      }
      __syncwarp();
#pragma unroll
      for (int k = 0; k < F; ++k) {
        const Scaled<Real> over_edge = received[k].label;
        if (lane == 31) sent[k].label = own.label;
        own = advance(own, select(lane == 0, over_edge, shuffle_up(own.label)), skip, blanks[k], labels[k]);
        store_if(real && t >= 0, out, own);
        out += track.width;
        ++t;
      }
    }
    if (warps > 1) __syncthreads();
  }
  __syncthreads();
  if (i == 0) write_total(p, arrays, costs, n, track, all + (track.frames - 1) * track.width);
}

// Warps follow one another from the right.
template <class Real>
__device__ void backward(const CtcParams& p, const Arrays<Real>& arrays, int64_t n, Edges<Real>& edges) {
  constexpr int F = kFrames<Real>;
  const Track<Real> track(p, arrays, n);
  const int i = threadIdx.x, lane = i & 31, warp = i >> 5, warps = track.targets / 32 + 1;
  const Column<Real> column(track, i);
  const bool right_skip = may_skip(p, arrays.sequences[n], i + 1), real = i <= track.targets;
  const int last = track.frames - 1, chunks = (last + F - 1) / F, late = warps - 1 - warp;
  States<Real>* out = arrays.beta + (n * p.options.maxFrames + last) * track.width + i;
  States<Real> own = finish<Real>(i, track.targets);
  if (real) *out = own;
  out -= track.width;
  Real blanks_ahead[F], labels_ahead[F];
#pragma unroll
  for (int k = 0; k < F; ++k) blanks_ahead[k] = column.blank(last - k), labels_ahead[k] = column.label(last - k);
  int t = last - 1;
  for (int phase = 0; phase < chunks + warps - 1; ++phase) {
    const int chunk = phase - late;
    if (late >= 0 && chunk >= 0 && chunk < chunks) {
      States<Real>* sent = edges.at[chunk & 1][warp];
      const States<Real>* received = late > 0 ? edges.at[chunk & 1][warp + 1] : edges.none;
      own = normalised(own);
      Scaled<Real> blanks[F], labels[F];
#pragma unroll
      for (int k = 0; k < F; ++k) {
        blanks[k] = scaled_exp(blanks_ahead[k]);
        labels[k] = scaled_exp(labels_ahead[k]);
        blanks_ahead[k] = column.blank(t + 1 - F - k);
        labels_ahead[k] = column.label(t + 1 - F - k);
      }
      __syncwarp();
#pragma unroll
      for (int k = 0; k < F; ++k) {
        const States<Real> here{own.blank * blanks[k], own.label * labels[k]};
        const States<Real> over_edge = received[k];
        if (lane == 0) sent[k] = here;
        own = retreat(here,
                      {select(lane == 31, over_edge.blank, shuffle_down(here.blank)),
                       select(lane == 31, over_edge.label, shuffle_down(here.label))},
                      right_skip);
        store_if(real && t >= 0, out, own);
        out -= track.width;
        --t;
      }
    }
    if (warps > 1) __syncthreads();
  }
}

// A block of at most kThreads, which bounds its registers.
template <int kThreads, class Real>
__global__ void __launch_bounds__(kThreads)
    recursion_kernel(CtcParams p, Arrays<Real> arrays, Repeats repeats, Real* costs) {
  __shared__ Edges<Real> edges;
  const int64_t n = blockIdx.x;
  if (blockIdx.y == kRepeatsRow) return find_repeats(p, arrays.sequences[n], n, repeats);
  if (threadIdx.x < kFrames<Real>) edges.none[threadIdx.x] = {scaled_zero<Real>(), scaled_zero<Real>()};
  if (write_trivial_total(p, arrays, costs, n)) return;
  __syncthreads();
  if (blockIdx.y == kAlphaRow)
    forward(p, arrays, costs, n, edges);
  else
    backward(p, arrays, n, edges);
}

// Sweeps targets longer than a block has threads: a thread walks over several columns, and the frame before is
// read back from memory.
template <class Real>
__global__ void __launch_bounds__(kMaxThreads)
    wide_recursion_kernel(CtcParams p, Arrays<Real> arrays, Repeats repeats, Real* costs) {
  const int64_t n = blockIdx.x;
  if (blockIdx.y == kRepeatsRow) return find_repeats(p, arrays.sequences[n], n, repeats);
  if (write_trivial_total(p, arrays, costs, n)) return;
  const Track<Real> track(p, arrays, n);
  const Sequence s = arrays.sequences[n];
  const int64_t first = n * p.options.maxFrames * track.width;
  if (blockIdx.y == kAlphaRow) {
    States<Real>* out = arrays.alpha + first;
    for (int t = 0; t < track.frames; ++t, out += track.width) {
      const States<Real>* earlier = out - track.width;
      for (int i = threadIdx.x; i <= track.targets; i += blockDim.x) {
        const Scaled<Real> left = t > 0 && i > 0 ? earlier[i - 1].label : scaled_zero<Real>();
        out[i] = normalised(advance(t > 0 ? earlier[i] : start<Real>(i), left, may_skip(p, s, i),
                                    scaled_exp(track.blank(t, i)), scaled_exp(track.label(t, i))));
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) write_total(p, arrays, costs, n, track, out - track.width);
  } else {
    for (int t = track.frames - 1; t >= 0; --t) {
      States<Real>* out = arrays.beta + first + t * track.width;
      const States<Real>* later = out + track.width;
      const auto ahead = [&](int i) {
        return States<Real>{later[i].blank * scaled_exp(track.blank(t + 1, i)),
                            later[i].label * scaled_exp(track.label(t + 1, i))};
      };
      for (int i = threadIdx.x; i <= track.targets; i += blockDim.x) {
        if (t == track.frames - 1) {
          out[i] = finish<Real>(i, track.targets);
          continue;
        }
        States<Real> right{scaled_zero<Real>(), scaled_zero<Real>()};
        if (i < track.targets) right = ahead(i + 1);
        out[i] = normalised(retreat(ahead(i), right, may_skip(p, s, i + 1)));
      }
      __syncthreads();
    }
  }
}

// A warp a frame. Sums are made in a fixed order.
template <class Real>
__global__ void shares_kernel(CtcParams p, Arrays<Real> arrays, Real* shares, ReducedCosts<Real> reduced) {
  if (is_for_reduction(reduced)) return;
  const prnnCTCLossOptions_t& o = p.options;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + (threadIdx.x >> 5);
  const int lane = threadIdx.x & 31;
  if (row >= o.batch * o.maxFrames) return;
  const int64_t n = row / o.maxFrames, t = row - n * o.maxFrames, width = o.maxTargets + 1;
  const Sequence s = arrays.sequences[n];
  if (t >= s.frames) return;
  const Scaled<Real> total = arrays.totals[n];
  const bool possible = !is_zero(total);
  const States<Real>*alpha = arrays.alpha + row * width, *beta = arrays.beta + row * width;
  Real* out = shares + row * (width + 1);
  Real blanks = 0;
  for (int i = lane; i <= s.targets; i += 32) {
    Real label = 0;
    if (possible) {
      blanks += share_of(alpha[i].blank * beta[i].blank, total);
      if (i < s.targets) label = share_of(alpha[i].label * beta[i].label, total);
    }
    if (i < s.targets) out[1 + i] = label;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) blanks += __shfl_xor_sync(~0u, blanks, step);
  if (lane == 0) out[0] = blanks;
}

// The best way into a column's states, and by how many states it moves on into them. Staying wins a tie, then the
// smaller move.
__device__ BestStates advance_best(const BestStates& own, double left_label, bool skip, double blank, double label,
                                   unsigned char moves[2]) {
  const auto consider = [](double& score, unsigned char& move, double other, unsigned char by) {
    if (other > score || isnan(other)) score = other, move = by;
  };
  BestStates now = own;
  moves[0] = moves[1] = 0;
  consider(now.blank, moves[0], left_label, 1);
  consider(now.label, moves[1], own.blank, 1);
  if (skip) consider(now.label, moves[1], left_label, 2);
  now.blank += blank;
  now.label += label;
  return now;
}

// One block a sequence; a thread walks over columns.
template <class Real>
__global__ void __launch_bounds__(kMaxThreads)
    best_kernel(CtcParams p, Arrays<Real> arrays, BestStates* best, unsigned char* moves, Real* path_scores) {
  const int64_t n = blockIdx.x;
  const Sequence s = arrays.sequences[n];
  if (s.frames <= 0) {
    const double score = s.frames < 0 ? CUDART_NAN : s.targets == 0 ? 0.0 : kNever;
    if (threadIdx.x == 0) path_scores[n] = static_cast<Real>(score);
    return;
  }
  const Track<Real> track(p, arrays, n);
  const int64_t first = n * p.options.maxFrames * track.width;
  BestStates* out = best + first;
  for (int t = 0; t < track.frames; ++t, out += track.width) {
    const BestStates* earlier = out - track.width;
    for (int i = threadIdx.x; i <= track.targets; i += blockDim.x) {
      const double blank = track.blank(t, i), label = track.label(t, i);
      unsigned char* moved = moves + 2 * (first + t * track.width + i);
      moved[0] = moved[1] = 0;
      if (t == 0)
        out[i] = {i == 0 ? blank : kNever, i == 0 ? label : kNever};
      else
        out[i] =
            advance_best(earlier[i], i > 0 ? earlier[i - 1].label : kNever, may_skip(p, s, i), blank, label, moved);
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  const BestStates* last = out - track.width + track.targets;
  const double end_label = track.targets > 0 ? last[-1].label : kNever;
  path_scores[n] = static_cast<Real>(end_label > last->blank || isnan(end_label) ? end_label : last->blank);
}

// Walks back from the end, a thread a sequence.
template <class Real>
__global__ void walk_kernel(CtcParams p, Arrays<Real> arrays, const BestStates* best, const unsigned char* moves,
                            const Real* path_scores, int* begins, int* ends) {
  const prnnCTCLossOptions_t& o = p.options;
  const int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (n >= o.batch) return;
  const Sequence s = arrays.sequences[n];
  const Real score = path_scores[n];
  begins += n * o.maxTargets;
  ends += n * o.maxTargets;
  for (int64_t i = 0; i < o.maxTargets; ++i) begins[i] = ends[i] = -1;
  if (isnan(score) || score == static_cast<Real>(kNever) || s.frames <= 0) return;
  const int64_t width = o.maxTargets + 1, first = n * o.maxFrames * width;
  const BestStates* last = best + first + (s.frames - 1) * width + s.targets;
  int state = 2 * s.targets;  // B(i) is 2 i, Y(i) is 2 i + 1
  if (s.targets > 0 && last[-1].label > last->blank) --state;
  for (int t = s.frames - 1; t >= 0; --t) {
    if (state % 2 == 1) {
      begins[state / 2] = t;
      if (ends[state / 2] < 0) ends[state / 2] = t + 1;
    }
    state -= moves[2 * (first + t * width) + state];
  }
}

// Threads of a block with a column each.
unsigned column_threads(const prnnCTCLossOptions_t& o) {
  return o.maxTargets < kMaxThreads ? static_cast<unsigned>(32 * ceil_div(o.maxTargets + 1, 32)) : kMaxThreads;
}

}  // namespace

void run_setup(const CtcParams& params, Sequence* sequences, cudaStream_t stream) {
  if (params.options.targetLayout == PRNN_TARGETS_PADDED) return;
  setup_kernel<<<1, kSetupThreads, 0, stream>>>(params, sequences);
  check_launch("ctc setup_kernel");
}

template <class Real>
void run_recursion(const CtcParams& params, const Arrays<Real>& arrays, const Repeats& repeats, Real* costs,
                   cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(params.options.batch), arrays.beta ? kRows : 1);
  if (params.options.maxTargets < kFewThreads)
    recursion_kernel<kFewThreads><<<grid, column_threads(params.options), 0, stream>>>(params, arrays, repeats, costs);
  else if (params.options.maxTargets < kMaxThreads)
    recursion_kernel<kMaxThreads><<<grid, column_threads(params.options), 0, stream>>>(params, arrays, repeats, costs);
  else
    wide_recursion_kernel<<<grid, kMaxThreads, 0, stream>>>(params, arrays, repeats, costs);
  check_launch("ctc recursion_kernel");
}

template <class Real>
void run_shares(const CtcParams& params, const Arrays<Real>& arrays, Real* shares, const ReducedCosts<Real>& reduced,
                cudaStream_t stream) {
  static_assert(32 * kWarpsPerBlock == kReduceThreads);
  const int64_t rows = params.options.batch * params.options.maxFrames;
  const unsigned blocks = static_cast<unsigned>(ceil_div(rows, kWarpsPerBlock)) + blocks_for_reduction(reduced);
  shares_kernel<<<blocks, kReduceThreads, 0, stream>>>(params, arrays, shares, reduced);
  check_launch("ctc shares_kernel");
}

template <class Real>
void run_best_path(const CtcParams& params, const Arrays<Real>& arrays, BestStates* best, unsigned char* moves,
                   Real* path_scores, int* begins, int* ends, cudaStream_t stream) {
  const auto batch = static_cast<unsigned>(params.options.batch);
  best_kernel<<<batch, column_threads(params.options), 0, stream>>>(params, arrays, best, moves, path_scores);
  check_launch("ctc best_kernel");
  walk_kernel<<<static_cast<unsigned>(ceil_div(batch, 32)), 32, 0, stream>>>(params, arrays, best, moves, path_scores,
                                                                             begins, ends);
  check_launch("ctc walk_kernel");
}

#define PRNN_INSTANTIATE(Real)                                                                                       \
  template void run_recursion(const CtcParams&, const Arrays<Real>&, const Repeats&, Real*, cudaStream_t);           \
  template void run_shares(const CtcParams&, const Arrays<Real>&, Real*, const ReducedCosts<Real>&, cudaStream_t);   \
  template void run_best_path(const CtcParams&, const Arrays<Real>&, BestStates*, unsigned char*, Real*, int*, int*, \
                              cudaStream_t);
PRNN_INSTANTIATE(float)
PRNN_INSTANTIATE(double)

}  // namespace prnn::ctc_cuda
