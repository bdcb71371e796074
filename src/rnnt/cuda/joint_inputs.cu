// From the gradients of a chunk's activations to those of encoder and predictor: times the activation's derivative,
// then sums over the cells of a frame and over those of a symbol position, each in a fixed order.
#include "rnnt/cuda/joint.cuh"

namespace prnn::rnnt_cuda {
namespace {

constexpr int kRunThreads = 128, kParts = 4;  // a block: each thread has kCount elements in one part of the cells
constexpr int kCount = 4;

// The sum of a thread's cells, and where they come from.
template <class Form>
struct Sum {
  using Matrix = typename Form::Matrix;
  using Product = typename Form::Product;
  using Real = typename Form::Real;
  const Matrix* activations;
  const Product* products;
  int64_t stride, d;
  bool is_tanh;
  Real keep_scale, unscale;  // unscale: of stored activations
  Real at[kCount] = {};

  // Adds row `row` of the chunk.
  __device__ __forceinline__ void add(int64_t row) {
    alignas(16) Run<Product, kCount> product;
    alignas(16) Run<Matrix, kCount> upper, lower;
    product.load(products + row * stride + d);
    upper.load(activations + row * Form::kTerms * stride + d);
    if constexpr (Form::kTerms == 3) lower.load(activations + (row * Form::kTerms + 1) * stride + d);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      Real value = to_real(upper.at[k]);
      const bool dropped = value == 0 && signbit(value);
      if constexpr (Form::kTerms == 3) value += to_real(lower.at[k]);
      value *= unscale;
      Real slope = keep_scale * (1 - value * value);
      if (!is_tanh) slope = value > 0 ? keep_scale : isnan(value) ? value : Real(0);
      at[k] += to_real(product.at[k]) * (dropped ? Real(0) : slope);
    }
  }
};

// Adds what the parts of a block have to out[0, size).
template <class Real>
__device__ void add_parts(Real (&parts)[kParts][kCount][kRunThreads], const Real (&sum)[kCount], Real scale, int64_t d,
                          int64_t size, Real* out) {
  const int run = threadIdx.x, part = threadIdx.y;
#pragma unroll
  for (int k = 0; k < kCount; ++k) parts[part][k][run] = sum[k];
  __syncthreads();
  if (part == 0) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      Real total = sum[k];
#pragma unroll
      for (int i = 1; i < kParts; ++i) total += parts[i][k][run];
      if (d + k < size) out[d + k] += total * scale;
    }
  }
  __syncthreads();
}

// blockIdx.y: 0 sums the cells of a frame, 1 those of a symbol position. blockIdx.z: elements.
template <class Form>
__global__ void __launch_bounds__(kRunThreads* kParts)
    input_gradients_kernel(Problem p, Joint joint, const Sequence* sequences, const Scales* scales, int64_t first,
                           int64_t count, const typename Form::Matrix* activations,
                           const typename Form::Product* products, typename Form::Real* encoder_gradients,
                           typename Form::Real* predictor_gradients) {
  using Real = typename Form::Real;
  __shared__ Real parts[kParts][kCount][kRunThreads];
  const int64_t last = first + count - 1;
  const Cell from = find_cell(p, sequences, first), to = find_cell(p, sequences, last);
  const int64_t from_frame = from.n * p.max_frames + min(static_cast<int64_t>(from.t), p.max_frames - 1);
  const int64_t to_frame = to.n * p.max_frames + min(static_cast<int64_t>(to.t), p.max_frames - 1);
  const int64_t stride = joint.padded_size;
  const int part = threadIdx.y;
  const Real scale = 1 / (static_cast<Real>(scales->gradient) * static_cast<Real>(scales->weight));
  for (int64_t d = (static_cast<int64_t>(blockIdx.z) * kRunThreads + threadIdx.x) * kCount;
       d - static_cast<int64_t>(threadIdx.x) * kCount < stride;
       d += static_cast<int64_t>(gridDim.z) * kRunThreads * kCount) {
    const bool inside = d < stride;
    const Sum<Form> none{activations,
                         products,
                         stride,
                         d,
                         joint.activation == PRNN_JOINT_TANH,
                         static_cast<Real>(joint.keep_scale),
                         1 / (static_cast<Real>(scales->activation) * static_cast<Real>(joint.keep_scale))};
    if (blockIdx.y == 0) {
      for (int64_t frame = from_frame + blockIdx.x; frame <= to_frame; frame += gridDim.x) {
        const int64_t n = frame / p.max_frames;
        const int t = static_cast<int>(frame - n * p.max_frames);
        const Sequence s = sequences[n];
        if (t >= s.frames) continue;
        const FrameRows rows = frame_rows(p, s, n, t);
        const int64_t begin = max(rows.first, first), end = min(rows.first + rows.count, last + 1);
        Sum<Form> sum = none;
        if (inside) {
#pragma unroll 4
          for (int64_t row = begin + part; row < end; row += kParts) sum.add(row - first);
        }
        add_parts(parts, sum.at, scale, d, joint.size, encoder_gradients + frame * joint.size);
      }
    } else {
      const int64_t positions = (to.n - from.n + 1) * p.width();
      for (int64_t i = blockIdx.x; i < positions; i += gridDim.x) {
        const int64_t n = from.n + i / p.width();
        const int u = static_cast<int>(i % p.width());
        const Sequence s = sequences[n];
        if (u > s.targets || s.frames == 0) continue;
        const int begin = n == from.n ? static_cast<int>(from_frame - n * p.max_frames) : 0;
        const int end = n == to.n ? min(s.frames, static_cast<int>(to_frame - n * p.max_frames) + 1) : s.frames;
        Sum<Form> sum = none;
        if (inside) {
#pragma unroll 4
          for (int t = begin + part; t < end; t += kParts) {
            const FrameRows rows = frame_rows(p, s, n, t);
            const int64_t row = rows.first + u - rows.begin;
            if (u >= rows.begin && u < rows.begin + rows.count && row >= first && row <= last) sum.add(row - first);
          }
        }
        add_parts(parts, sum.at, scale, d, joint.size, predictor_gradients + (n * p.width() + u) * joint.size);
      }
    }
  }
}

template <class Real, class Element>
__global__ void finish_kernel(const Real* sums, int64_t rows, int64_t columns, int64_t stride, bool scaled,
                              const Scales* scales, Element* out) {
  Real scale = 1;
  if (scaled) scale = 1 / (static_cast<Real>(scales->gradient) * static_cast<Real>(scales->activation));
  const int64_t count = rows * columns, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const int64_t at = stride == columns ? i : i / columns * stride + i % columns;
    from_real(out[i], sums[at] * scale);
  }
}

}  // namespace

template <class Form>
void run_input_gradients(const Problem& problem, const Joint& joint, const Sequence* sequences, const Scales* scales,
                         int64_t first, int64_t count, const typename Form::Matrix* activations,
                         const typename Form::Product* products, typename Form::Real* encoder_gradients,
                         typename Form::Real* predictor_gradients, cudaStream_t stream) {
  const int64_t slabs = ceil_div(joint.padded_size, int64_t{kRunThreads} * kCount);
  const dim3 grid(264, 2, static_cast<unsigned>(slabs < 64 ? slabs : 64));
  input_gradients_kernel<Form><<<grid, dim3(kRunThreads, kParts), 0, stream>>>(
      problem, joint, sequences, scales, first, count, activations, products, encoder_gradients, predictor_gradients);
  check_launch("joint input_gradients_kernel");
}

template <class Real, class Element>
void run_finish(const Real* sums, int64_t rows, int64_t columns, int64_t stride, bool scaled, const Scales* scales,
                Element* out, cudaStream_t stream) {
  const int64_t blocks = ceil_div(rows * columns, 256);
  finish_kernel<<<static_cast<unsigned>(blocks < 4096 ? blocks : 4096), 256, 0, stream>>>(sums, rows, columns, stride,
                                                                                          scaled, scales, out);
  check_launch("joint finish_kernel");
}

#define PRNN_INSTANTIATE(Form)                                                                                   \
  template void run_input_gradients<Form>(const Problem&, const Joint&, const Sequence*, const Scales*, int64_t, \
                                          int64_t, const Form::Matrix*, const Form::Product*, Form::Real*,       \
                                          Form::Real*, cudaStream_t);
PRNN_INSTANTIATE(DoubleForm)
PRNN_INSTANTIATE(HalfForm)
PRNN_INSTANTIATE(Bfloat16Form)
PRNN_INSTANTIATE(SplitForm)
PRNN_INSTANTIATE(Tf32Form)
#undef PRNN_INSTANTIATE

template void run_finish(const float*, int64_t, int64_t, int64_t, bool, const Scales*, __half*, cudaStream_t);
template void run_finish(const float*, int64_t, int64_t, int64_t, bool, const Scales*, __nv_bfloat16*, cudaStream_t);
template void run_finish(const float*, int64_t, int64_t, int64_t, bool, const Scales*, float*, cudaStream_t);
template void run_finish(const double*, int64_t, int64_t, int64_t, bool, const Scales*, double*, cudaStream_t);

}  // namespace prnn::rnnt_cuda
