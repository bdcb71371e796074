// From activations to the log-probabilities of the blank and of the target symbols in each frame, and back: gradients.
// A group of lanes has one frame of one sequence and reads its V activations once.
#include "core/cuda/logits.cuh"
#include "ctc/cuda/ctc_kernels.h"

namespace prnn::ctc_cuda {
namespace {

struct Frame {
  int64_t n, t, row;  // row = n T + t, also that of the arrays

  template <int kGroup>
  static __device__ __forceinline__ Frame of_group(const prnnCTCLossOptions_t& o) {
    Frame frame;
    frame.row = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kGroup;
    frame.n = frame.row / o.maxFrames;
    frame.t = frame.row - frame.n * o.maxFrames;
    return frame;
  }
};

// The sequence of PADDED targets that a group's frame belongs to, its symbols not looked at.
__device__ __forceinline__ Sequence padded_sequence(const CtcParams& p, int64_t n) {
  Sequence s = lengths_of(p, n);
  s.target_begin = n * p.options.maxTargets;
  return s;
}

// Whether a group's lanes all found `valid`. All lanes of the warp call it.
template <int kGroup>
__device__ __forceinline__ bool all_of_group(bool valid) {
  constexpr unsigned kMask = ~0u >> (32 - kGroup);
  return (__ballot_sync(~0u, valid) >> (threadIdx.x % 32 / kGroup * kGroup) & kMask) == kMask;
}

template <class Shape, class Real>
__global__ void __launch_bounds__(kRowThreads) emissions_kernel(CtcParams p, Arrays<Real> arrays, Real* normalisers) {
  using Element = typename Shape::Element;
  constexpr int kGroup = Shape::kGroup;
  const prnnCTCLossOptions_t& o = p.options;
  const int lane = threadIdx.x % kGroup;
  const bool padded = o.targetLayout == PRNN_TARGETS_PADDED;
  const Frame frame = Frame::of_group<kGroup>(o);
  Sequence s{0, -1, 0};
  if (frame.n < o.batch) s = padded ? padded_sequence(p, frame.n) : arrays.sequences[frame.n];
  const bool real = frame.t < s.frames, first = padded && frame.n < o.batch && frame.t == 0;
  const Element* activations =
      static_cast<const Element*>(p.activations) + frame.t * o.timeStride + frame.n * o.batchStride;
  Real normaliser = 0;
  if (o.input == PRNN_LOSS_LOGITS) {
    normaliser = row_log_sum_exp<Shape>(activations, real ? static_cast<int>(o.classes) : 0, lane);
  }
  // Frame 0 is there in every sequence, even in one without frames. The labels of bad symbols are not read.
  Real* labels = arrays.labels + frame.row * (o.maxTargets + 1);
  bool valid = true;
  for (int i = lane; (real || first) && i < s.targets; i += kGroup) {
    const int symbol = p.targets[s.target_begin + i];
    valid = valid && is_target(o, symbol);
    if (real && valid) labels[i] = to_real(activations[symbol]) - normaliser;
  }
  valid = all_of_group<kGroup>(valid);
  if (first && lane == 0) arrays.sequences[frame.n] = valid ? s : Sequence{0, -1, 0};
  if (!real) return;
  if (lane == 0) {
    arrays.blanks[frame.row] = to_real(activations[o.blank]) - normaliser;
    if (normalisers) normalisers[frame.row] = normaliser;
  }
}

// With b the share of the blank, y_i those of the labels and m their sum,
//   d cost / d logit_v = m softmax_v - [v is the blank] b - sum of y_i over the positions i of symbol v.
// First the whole row, then the symbols of the target, each by the lane that has its first position.
template <class Shape, class Real>
__global__ void __launch_bounds__(kRowThreads)
    gradients_kernel(CtcParams p, Reserve<Real> reserve, CostGradients<Real> cost_gradients,
                     typename Shape::Element* gradients) {
  using Element = typename Shape::Element;
  constexpr int kGroup = Shape::kGroup;
  const prnnCTCLossOptions_t& o = p.options;
  const int lane = threadIdx.x % kGroup;
  const Frame frame = Frame::of_group<kGroup>(o);
  const int64_t offset = frame.t * o.timeStride + frame.n * o.batchStride, width = o.maxTargets + 1;
  const Real* shares = reserve.shares + frame.row * (width + 1);
  Sequence s{0, -1, 0};
  if (frame.n < o.batch) s = reserve.sequences[frame.n];
  const bool real = frame.t < s.frames;
  Real mass = 0;
  if (real) {
    for (int i = lane; i <= s.targets; i += kGroup) mass += shares[i];
  }
  mass = group_sum<kGroup>(mass);
  Real normaliser = 0, scale = 1;
  if (real) {
    if (reserve.normalisers) normaliser = reserve.normalisers[frame.row];
    scale = cost_gradients(frame.n);
  }
  const bool reads = o.input == PRNN_LOSS_LOGITS && mass != 0;
  if (frame.n < o.batch) {
    row_map<Shape>(static_cast<const Element*>(p.activations) + offset, gradients + offset, static_cast<int>(o.classes),
                   lane, reads, [&](int, Real x) { return reads ? mass * fast_exp(x - normaliser) * scale : Real(0); });
  }
  __syncwarp();
  if (mass == 0) return;
  const auto subtract = [&](int64_t v, Real share) {
    Element* gradient = gradients + offset + v;
    from_real(*gradient, to_real(*gradient) - share * scale);
  };
  if (lane == 0) subtract(o.blank, shares[0]);
  for (int i = lane; i < s.targets; i += kGroup) {
    if (!reserve.repeats.first[frame.n * width + i]) continue;
    Real share = 0;
    for (int k = i; k >= 0; k = reserve.repeats.next[frame.n * width + k]) share += shares[1 + k];
    subtract(p.targets[s.target_begin + i], share);
  }
}

template <class Real>
struct EmissionsLaunch {
  const CtcParams& params;
  const Arrays<Real>& arrays;
  Real* normalisers;
  cudaStream_t stream;

  template <class Shape>
  void run() const {
    const unsigned blocks = blocks_for_rows<Shape::kGroup>(params.options.batch * params.options.maxFrames);
    emissions_kernel<Shape><<<blocks, kRowThreads, 0, stream>>>(params, arrays, normalisers);
    check_launch("ctc emissions_kernel");
  }
};

template <class Real>
struct GradientsLaunch {
  const CtcParams& params;
  const Reserve<Real>& reserve;
  const CostGradients<Real>& cost_gradients;
  void* gradients;
  cudaStream_t stream;

  template <class Shape>
  void run() const {
    const unsigned blocks = blocks_for_rows<Shape::kGroup>(params.options.batch * params.options.maxFrames);
    gradients_kernel<Shape><<<blocks, kRowThreads, 0, stream>>>(params, reserve, cost_gradients,
                                                                static_cast<typename Shape::Element*>(gradients));
    check_launch("ctc gradients_kernel");
  }
};

// A divisor of both strides that tells whether rows begin at whole pieces.
int64_t row_step(const prnnCTCLossOptions_t& o) {
  const int64_t both = o.timeStride | o.batchStride;
  return both & -both;  // the largest power of two in both
}

}  // namespace

template <class Real>
void run_emissions(const CtcParams& params, const Arrays<Real>& arrays, Real* normalisers, cudaStream_t stream) {
  for_rows<Real>(params.options.dataType, params.options.classes, row_step(params.options), {params.activations},
                 EmissionsLaunch<Real>{params, arrays, normalisers, stream});
}

template <class Real>
void run_gradients(const CtcParams& params, const Reserve<Real>& reserve, const CostGradients<Real>& cost_gradients,
                   void* gradients, cudaStream_t stream) {
  for_rows<Real>(params.options.dataType, params.options.classes, row_step(params.options),
                 {params.activations, gradients},
                 GradientsLaunch<Real>{params, reserve, cost_gradients, gradients, stream});
}

template void run_emissions(const CtcParams&, const Arrays<float>&, float*, cudaStream_t);
template void run_emissions(const CtcParams&, const Arrays<double>&, double*, cudaStream_t);
template void run_gradients(const CtcParams&, const Reserve<float>&, const CostGradients<float>&, void*, cudaStream_t);
template void run_gradients(const CtcParams&, const Reserve<double>&, const CostGradients<double>&, void*,
                            cudaStream_t);

}  // namespace prnn::ctc_cuda
