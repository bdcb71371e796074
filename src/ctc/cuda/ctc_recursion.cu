// The recursions over the states of CTC. One block serves one sequence in one direction and steps through its frames;
// alpha and beta run side by side. A thread owns a column, keeps its two states in registers, and passes them to its
// neighbour by shuffles, or through shared memory at a warp's edge, so that a frame costs one barrier.
#include <cub/block/block_scan.cuh>

#include "core/cuda/launch.h"
#include "core/cuda/log_math.cuh"
#include "ctc/cuda/ctc_kernels.h"

namespace prnn::ctc_cuda {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kSetupThreads = 512;
constexpr int kWarpsPerBlock = 8;

// One block: lengths, then where targets begin by a prefix sum, then, a warp a sequence, the symbols.
__global__ void __launch_bounds__(kSetupThreads) setup_kernel(CtcParams params, Sequence* sequences) {
  const prnnCTCLossOptions_t& o = params.options;
  using Scan = cub::BlockScan<int64_t, kSetupThreads>;
  __shared__ typename Scan::TempStorage scan_storage;
  const bool padded = o.targetLayout == PRNN_TARGETS_PADDED;
  int64_t carried = 0;
  for (int64_t base = 0; base < o.batch; base += kSetupThreads) {
    const int64_t n = base + threadIdx.x;
    Sequence s{0, -1, 0};
    if (n < o.batch) {
      const int frames = params.frame_lengths[n], targets = params.target_lengths[n];
      if (frames >= 0 && frames <= o.maxFrames && targets >= 0 && targets <= o.maxTargets) s = {0, frames, targets};
    }
    int64_t begin, total;
    Scan(scan_storage).ExclusiveSum(static_cast<int64_t>(s.targets), begin, total);
    s.target_begin = padded ? n * o.maxTargets : begin + carried;
    carried += total;
    if (!padded && s.target_begin + s.targets > o.targetElements) s = {0, -1, 0};
    if (n < o.batch) sequences[n] = s;
    __syncthreads();
  }
  const int lane = threadIdx.x & 31;
  for (int64_t n = threadIdx.x >> 5; n < o.batch; n += kSetupThreads / 32) {
    const Sequence s = sequences[n];
    bool valid = true;
    for (int i = lane; i < s.targets; i += 32) {
      const int symbol = params.targets[s.target_begin + i];
      valid = valid && symbol >= 0 && symbol < o.classes && symbol != o.blank;
    }
    if (!__all_sync(~0u, valid) && lane == 0) sequences[n] = {0, -1, 0};
  }
}

// A block a sequence, a thread a position, which looks ahead for its own symbol and back for an earlier one.
__global__ void repeats_kernel(CtcParams params, const Sequence* sequences, int* next, bool* first) {
  const int64_t n = blockIdx.x, width = params.options.maxTargets + 1;
  const Sequence s = sequences[n];
  const int* targets = params.targets + s.target_begin;
  for (int i = threadIdx.x; i < s.targets; i += blockDim.x) {
    const int symbol = targets[i];
    int later = i + 1, earlier = i - 1;
    while (later < s.targets && targets[later] != symbol) ++later;
    while (earlier >= 0 && targets[earlier] != symbol) --earlier;
    next[n * width + i] = later < s.targets ? later : -1;
    first[n * width + i] = earlier < 0;
  }
}

// What the recursions need of one sequence.
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
__device__ __forceinline__ States advance(const States& own, double left_label, bool skip, double blank, double label) {
  States now;
  now.blank = log_add<Real>(own.blank, left_label) + blank;
  now.label = log_add<Real>(log_add<Real>(own.label, own.blank), skip ? left_label : kNever) + label;
  return now;
}

__device__ __forceinline__ States first_frame(int i, double blank, double label) {
  return {i == 0 ? blank : kNever, i == 0 ? label : kNever};
}

// The same for the best path only: `moves` becomes by how many states it moved on into the column's two states. Staying
// wins a tie, then the smaller move.
__device__ __forceinline__ States advance_best(const States& own, double left_label, bool skip, double blank,
                                               double label, unsigned char moves[2]) {
  const auto consider = [](double& score, unsigned char& move, double other, unsigned char by) {
    if (other > score || isnan(other)) score = other, move = by;
  };
  States now = own;
  moves[0] = moves[1] = 0;
  consider(now.blank, moves[0], left_label, 1);
  consider(now.label, moves[1], own.blank, 1);
  if (skip) consider(now.label, moves[1], left_label, 2);
  now.blank += blank;
  now.label += label;
  return now;
}

// beta of a column in a frame; ahead: beta plus the frame's own log-probability, one frame on.
template <class Real>
__device__ __forceinline__ States retreat(const States& ahead, const States& right_ahead, bool right_skip) {
  States now;
  now.blank = log_add<Real>(ahead.blank, ahead.label);
  now.label = log_add<Real>(log_add<Real>(ahead.label, right_ahead.blank), right_skip ? right_ahead.label : kNever);
  return now;
}

template <class Real>
__device__ void write_score(const CtcParams& p, const Arrays<Real>& arrays, Real* costs, int64_t n, double score) {
  arrays.scores[n] = score;
  if (costs) costs[n] = static_cast<Real>(score == kNever && p.options.zeroInfinity ? 0.0 : 0.0 - score);
}

// Sequences without frames, and bad ones. Returns whether n was one.
template <class Real>
__device__ bool write_trivial_score(const CtcParams& p, const Arrays<Real>& arrays, Real* costs, int64_t n) {
  const Sequence s = arrays.sequences[n];
  if (s.frames > 0) return false;
  if (threadIdx.x == 0) {
    write_score(p, arrays, costs, n, s.frames < 0 ? CUDART_NAN : s.targets == 0 ? 0.0 : kNever);
  }
  return true;
}

// Frames whose log-probabilities are on their way from memory.
template <class Real>
constexpr int kAhead = sizeof(Real) == 4 ? 4 : 2;

template <bool kBest, class Real>
__device__ void forward(const CtcParams& p, const Arrays<Real>& arrays, Real* costs, unsigned char* moves, int64_t n,
                        double (*edge)[33]) {
  const Track<Real> track(p, arrays, n);
  const int i = threadIdx.x, lane = i & 31, warp = i >> 5;
  const bool skip = may_skip(p, arrays.sequences[n], i);
  const int64_t first = n * p.options.maxFrames * track.width + i;
  States own{kNever, kNever};
  Real blank_ahead[kAhead<Real>], label_ahead[kAhead<Real>];
#pragma unroll
  for (int k = 0; k < kAhead<Real>; ++k) blank_ahead[k] = track.blank(k, i), label_ahead[k] = track.label(k, i);
  for (int base = 0; base < track.frames; base += kAhead<Real>) {
#pragma unroll
    for (int k = 0; k < kAhead<Real>; ++k) {
      const int t = base + k;
      if (t >= track.frames) break;
      const double blank = blank_ahead[k], label = label_ahead[k];
      blank_ahead[k] = track.blank(t + kAhead<Real>, i);
      label_ahead[k] = track.label(t + kAhead<Real>, i);
      double left = __shfl_up_sync(~0u, own.label, 1);
      if (lane == 31) edge[t & 1][warp + 1] = own.label;
      __syncthreads();
      if (lane == 0) left = warp == 0 ? kNever : edge[t & 1][warp];
      const int64_t at = first + t * track.width;
      if constexpr (kBest) {
        unsigned char moved[2] = {0, 0};
        own = t == 0 ? first_frame(i, blank, label) : advance_best(own, left, skip, blank, label, moved);
        if (i <= track.targets) moves[2 * at] = moved[0], moves[2 * at + 1] = moved[1];
      } else {
        own = t == 0 ? first_frame(i, blank, label) : advance<Real>(own, left, skip, blank, label);
      }
      if (i <= track.targets) arrays.alpha[at] = own;
    }
  }
  __syncthreads();
  if (i != 0) return;
  const States* last = arrays.alpha + first + (track.frames - 1) * track.width + track.targets;
  const double end_label = track.targets > 0 ? last[-1].label : kNever;
  if constexpr (kBest)
    write_score(p, arrays, costs, n, end_label > last->blank || isnan(end_label) ? end_label : last->blank);
  else
    write_score(p, arrays, costs, n, log_add<Real>(last->blank, end_label));
}

template <class Real>
__device__ void backward(const CtcParams& p, const Arrays<Real>& arrays, int64_t n, double (*edge)[33],
                         double (*edge_label)[33]) {
  const Track<Real> track(p, arrays, n);
  const int i = threadIdx.x, lane = i & 31, warp = i >> 5, warps = blockDim.x >> 5;
  const bool right_skip = may_skip(p, arrays.sequences[n], i + 1);
  States* out = arrays.beta + n * p.options.maxFrames * track.width + i;
  States own{i == track.targets ? 0.0 : kNever, i + 1 == track.targets ? 0.0 : kNever};
  if (i <= track.targets) out[(track.frames - 1) * track.width] = own;
  Real blank_ahead[kAhead<Real>], label_ahead[kAhead<Real>];
#pragma unroll
  for (int k = 0; k < kAhead<Real>; ++k) {
    blank_ahead[k] = track.blank(track.frames - 1 - k, i);
    label_ahead[k] = track.label(track.frames - 1 - k, i);
  }
  for (int base = track.frames - 2; base >= 0; base -= kAhead<Real>) {
#pragma unroll
    for (int k = 0; k < kAhead<Real>; ++k) {
      const int t = base - k;
      if (t < 0) break;
      const States ahead{own.blank + blank_ahead[k], own.label + label_ahead[k]};
      blank_ahead[k] = track.blank(t + 1 - kAhead<Real>, i);
      label_ahead[k] = track.label(t + 1 - kAhead<Real>, i);
      States right{__shfl_down_sync(~0u, ahead.blank, 1), __shfl_down_sync(~0u, ahead.label, 1)};
      if (lane == 0) edge[t & 1][warp] = ahead.blank, edge_label[t & 1][warp] = ahead.label;
      __syncthreads();
      if (lane == 31) {
        const bool none = warp + 1 == warps;
        right.blank = none ? kNever : edge[t & 1][warp + 1];
        right.label = none ? kNever : edge_label[t & 1][warp + 1];
      }
      own = retreat<Real>(ahead, right, right_skip);
      if (i <= track.targets) out[t * track.width] = own;
    }
  }
}

template <bool kBest, class Real>
__global__ void __launch_bounds__(kMaxThreads)
    recursion_kernel(CtcParams p, Arrays<Real> arrays, Real* costs, unsigned char* moves) {
  __shared__ double edge[2][2][33];
  const int64_t n = blockIdx.x;
  if (arrays.sequences[n].frames <= 0) {
    if (blockIdx.y == 0) write_trivial_score(p, arrays, costs, n);
    return;
  }
  if (blockIdx.y == 0)
    forward<kBest>(p, arrays, costs, moves, n, edge[0]);
  else
    backward(p, arrays, n, edge[0], edge[1]);
}

// The same for targets longer than a block has threads: a thread walks over several columns, and the frame before is
// read back from memory.
template <bool kBest, class Real>
__global__ void __launch_bounds__(kMaxThreads)
    wide_recursion_kernel(CtcParams p, Arrays<Real> arrays, Real* costs, unsigned char* moves) {
  const int64_t n = blockIdx.x;
  if (arrays.sequences[n].frames <= 0) {
    if (blockIdx.y == 0) write_trivial_score(p, arrays, costs, n);
    return;
  }
  const Track<Real> track(p, arrays, n);
  const Sequence s = arrays.sequences[n];
  const int64_t first = n * p.options.maxFrames * track.width;
  if (blockIdx.y == 0) {
    States* out = arrays.alpha + first;
    for (int t = 0; t < track.frames; ++t, out += track.width) {
      const States* before = out - track.width;
      for (int i = threadIdx.x; i <= track.targets; i += blockDim.x) {
        const double blank = track.blank(t, i), label = track.label(t, i);
        const double left = t > 0 && i > 0 ? before[i - 1].label : kNever;
        if constexpr (kBest) {
          unsigned char* moved = moves + 2 * (first + t * track.width + i);
          moved[0] = moved[1] = 0;
          out[i] = t == 0 ? first_frame(i, blank, label)
                          : advance_best(before[i], left, may_skip(p, s, i), blank, label, moved);
        } else {
          out[i] =
              t == 0 ? first_frame(i, blank, label) : advance<Real>(before[i], left, may_skip(p, s, i), blank, label);
        }
      }
      __syncthreads();
    }
    if (threadIdx.x != 0) return;
    const States* last = out - track.width + track.targets;
    const double end_label = track.targets > 0 ? last[-1].label : kNever;
    if constexpr (kBest)
      write_score(p, arrays, costs, n, end_label > last->blank || isnan(end_label) ? end_label : last->blank);
    else
      write_score(p, arrays, costs, n, log_add<Real>(last->blank, end_label));
  } else {
    for (int t = track.frames - 1; t >= 0; --t) {
      States* out = arrays.beta + first + t * track.width;
      const States* later = out + track.width;
      for (int i = threadIdx.x; i <= track.targets; i += blockDim.x) {
        if (t == track.frames - 1) {
          out[i] = {i == track.targets ? 0.0 : kNever, i + 1 == track.targets ? 0.0 : kNever};
          continue;
        }
        const States ahead{later[i].blank + track.blank(t + 1, i), later[i].label + track.label(t + 1, i)};
        States right{kNever, kNever};
        if (i < track.targets) {
          right = {later[i + 1].blank + track.blank(t + 1, i + 1), later[i + 1].label + track.label(t + 1, i + 1)};
        }
        out[i] = retreat<Real>(ahead, right, may_skip(p, s, i + 1));
      }
      __syncthreads();
    }
  }
}

// A warp a frame. Sums are made in a fixed order.
template <class Real>
__global__ void shares_kernel(CtcParams p, Arrays<Real> arrays, Real* shares) {
  const prnnCTCLossOptions_t& o = p.options;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + (threadIdx.x >> 5);
  const int lane = threadIdx.x & 31;
  if (row >= o.batch * o.maxFrames) return;
  const int64_t n = row / o.maxFrames, t = row - n * o.maxFrames, width = o.maxTargets + 1;
  const Sequence s = arrays.sequences[n];
  if (t >= s.frames) return;
  const double score = arrays.scores[n];
  const States *alpha = arrays.alpha + row * width, *beta = arrays.beta + row * width;
  Real* out = shares + row * (width + 1);
  Real blanks = 0;
  for (int i = lane; i <= s.targets; i += 32) {
    Real label = 0;
    if (score != kNever) {
      blanks += exp(static_cast<Real>(alpha[i].blank + beta[i].blank - score));
      if (i < s.targets) label = exp(static_cast<Real>(alpha[i].label + beta[i].label - score));
    }
    if (i < s.targets) out[1 + i] = label;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) blanks += __shfl_xor_sync(~0u, blanks, step);
  if (lane == 0) out[0] = blanks;
}

// Walks back from the end, a thread a sequence.
template <class Real>
__global__ void walk_kernel(CtcParams p, Arrays<Real> arrays, const unsigned char* moves, Real* path_scores,
                            int* begins, int* ends) {
  const prnnCTCLossOptions_t& o = p.options;
  const int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (n >= o.batch) return;
  const Sequence s = arrays.sequences[n];
  const double score = arrays.scores[n];
  begins += n * o.maxTargets;
  ends += n * o.maxTargets;
  path_scores[n] = static_cast<Real>(score);
  for (int64_t i = 0; i < o.maxTargets; ++i) begins[i] = ends[i] = -1;
  if (isnan(score) || score == kNever || s.frames <= 0) return;
  const int64_t width = o.maxTargets + 1, first = n * o.maxFrames * width;
  const States* last = arrays.alpha + first + (s.frames - 1) * width + s.targets;
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

template <bool kBest, class Real>
void launch_recursion(const CtcParams& params, const Arrays<Real>& arrays, Real* costs, unsigned char* moves,
                      cudaStream_t stream) {
  const int64_t width = params.options.maxTargets + 1;
  const dim3 grid(static_cast<unsigned>(params.options.batch), arrays.beta ? 2 : 1);
  if (width <= kMaxThreads) {
    const unsigned threads = static_cast<unsigned>(32 * ceil_div(width, 32));
    recursion_kernel<kBest><<<grid, threads, 0, stream>>>(params, arrays, costs, moves);
  } else {
    wide_recursion_kernel<kBest><<<grid, kMaxThreads, 0, stream>>>(params, arrays, costs, moves);
  }
  check_launch("ctc recursion_kernel");
}

}  // namespace

void run_setup(const CtcParams& params, Sequence* sequences, cudaStream_t stream) {
  setup_kernel<<<1, kSetupThreads, 0, stream>>>(params, sequences);
  check_launch("ctc setup_kernel");
}

void run_repeats(const CtcParams& params, const Sequence* sequences, int* next, bool* first, cudaStream_t stream) {
  repeats_kernel<<<static_cast<unsigned>(params.options.batch), 256, 0, stream>>>(params, sequences, next, first);
  check_launch("ctc repeats_kernel");
}

template <class Real>
void run_recursion(const CtcParams& params, const Arrays<Real>& arrays, Real* costs, cudaStream_t stream) {
  launch_recursion<false>(params, arrays, costs, nullptr, stream);
}

template <class Real>
void run_shares(const CtcParams& params, const Arrays<Real>& arrays, Real* shares, cudaStream_t stream) {
  const int64_t rows = params.options.batch * params.options.maxFrames;
  shares_kernel<<<static_cast<unsigned>(ceil_div(rows, kWarpsPerBlock)), 32 * kWarpsPerBlock, 0, stream>>>(
      params, arrays, shares);
  check_launch("ctc shares_kernel");
}

template <class Real>
void run_best_path(const CtcParams& params, const Arrays<Real>& arrays, unsigned char* moves, Real* path_scores,
                   int* begins, int* ends, cudaStream_t stream) {
  launch_recursion<true>(params, arrays, static_cast<Real*>(nullptr), moves, stream);
  walk_kernel<<<static_cast<unsigned>(ceil_div(params.options.batch, 32)), 32, 0, stream>>>(params, arrays, moves,
                                                                                            path_scores, begins, ends);
  check_launch("ctc walk_kernel");
}

#define PRNN_INSTANTIATE(Real)                                                             \
  template void run_recursion(const CtcParams&, const Arrays<Real>&, Real*, cudaStream_t); \
  template void run_shares(const CtcParams&, const Arrays<Real>&, Real*, cudaStream_t);    \
  template void run_best_path(const CtcParams&, const Arrays<Real>&, unsigned char*, Real*, int*, int*, cudaStream_t);
PRNN_INSTANTIATE(float)
PRNN_INSTANTIATE(double)

}  // namespace prnn::ctc_cuda
