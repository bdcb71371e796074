// Which cells of the lattice are computed: those of each frame, and where they lie among all.
#include <cub/block/block_scan.cuh>

#include "core/cuda/warp_reduce.cuh"
#include "rnnt/cuda/joint.cuh"

namespace prnn::rnnt_cuda {
namespace {

constexpr int kThreads = 256, kScanThreads = 512, kScanItems = 8;

// row, cell: with and without padding left out. What is not a number is above any limit.
template <class Real>
__device__ __forceinline__ Real cell_weight(const CellWeights<Real>& weights, int64_t row, int64_t cell) {
  if (weights.records) return abs(weights.records[cell * weights.record_size]);
  const Arcs<Real> arcs = weights.arcs[row];
  return abs(arcs.blank) + abs(arcs.label);
}

// A warp a frame: its first position, and in `first` how many there are.
template <class Real>
__global__ void __launch_bounds__(kThreads)
    frames_kernel(Problem p, const Sequence* sequences, CellWeights<Real> weights, Real least, Frames frames) {
  const int64_t frame = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (frame >= p.batch * p.maxFrames) return;
  int64_t n;
  int t;
  divide(frame, p.maxFrames, n, t);
  const Sequence s = sequences[n];
  FrameRows rows{0, 0, 0};
  if (t < s.frames) rows = frame_rows(p, s, n, t);
  int from = 0, to = rows.count - 1;
  if (weights.arcs || weights.records) {
    int lowest = rows.count, highest = -1;
    for (int i = lane; i < rows.count; i += 32) {
      if (cell_weight(weights, rows.first + i, frame * p.width() + rows.begin + i) <= least) continue;
      lowest = min(lowest, i);
      highest = i;
    }
    from = warp_min(lowest);
    to = warp_max(highest);
  }
  if (lane != 0) return;
  frames.begin[frame] = rows.begin + from;
  frames.first[frame] = to < from ? 0 : to - from + 1;
}

// One block: prefix sums in place.
__global__ void __launch_bounds__(kScanThreads) frames_scan_kernel(int64_t count, int64_t* first) {
  using Scan = cub::BlockScan<int64_t, kScanThreads>;
  __shared__ typename Scan::TempStorage storage;
  int64_t carried = 0;
  for (int64_t base = 0; base < count; base += kScanThreads * kScanItems) {
    const int64_t at = base + threadIdx.x * kScanItems;
    int64_t items[kScanItems], total;
#pragma unroll
    for (int i = 0; i < kScanItems; ++i) items[i] = at + i < count ? first[at + i] : 0;
    Scan(storage).ExclusiveSum(items, items, total);
#pragma unroll
    for (int i = 0; i < kScanItems; ++i) {
      if (at + i < count) first[at + i] = carried + items[i];
    }
    carried += total;
    __syncthreads();
  }
  if (threadIdx.x == 0) first[count] = carried;
}

}  // namespace

template <class Real>
void run_frames(const Problem& problem, const Sequence* sequences, const CellWeights<Real>& weights, Real least,
                const Frames& frames, cudaStream_t stream) {
  const int64_t count = problem.batch * problem.maxFrames;
  frames_kernel<<<static_cast<unsigned>(ceil_div(count, kThreads / 32)), kThreads, 0, stream>>>(problem, sequences,
                                                                                                weights, least, frames);
  check_launch("joint frames_kernel");
  frames_scan_kernel<<<1, kScanThreads, 0, stream>>>(count, frames.first);
  check_launch("joint frames_scan_kernel");
}

template void run_frames(const Problem&, const Sequence*, const CellWeights<float>&, float, const Frames&,
                         cudaStream_t);
template void run_frames(const Problem&, const Sequence*, const CellWeights<double>&, double, const Frames&,
                         cudaStream_t);

}  // namespace prnn::rnnt_cuda
