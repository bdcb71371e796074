// From the gradients of a chunk's activations, in rows, to those of encoder and predictor: times the activation's
// derivative, then sums over the cells of a frame and over those of a symbol position, each in a fixed order.
#include "rnnt/cuda/joint.cuh"

namespace prnn::rnnt_cuda {
namespace {

constexpr int kRunThreads = 64, kParts = 4;  // a block: each thread has kCount elements in one part of the cells
constexpr int kCount = 8;
constexpr int kListed = 512;  // frames whose cells a block looks up at a time

// The sum of a thread's cells, and where they come from.
template <class Form>
struct Sum {
  using Matrix = typename Form::Matrix;
  using Product = typename Form::Product;
  using Real = typename Form::Real;
  const Matrix* activations;
  const Product* products;
  RowLayout<Matrix> activation_layout;
  RowLayout<Product> product_layout;
  Slope<Form, false> slope;
  int64_t d;
  Real at[kCount] = {};

  // Adds the rows cell(k) of the chunk for k = from, from + kParts .. below end, a few at a time, all of which are on
  // their way before the first is needed. Negative: none.
  template <class CellAt>
  __device__ __forceinline__ void add(int from, int end, const CellAt& cell) {
    constexpr int kAtOnce = sizeof(Real) == 8 ? 2 : 4;
    for (; from < end; from += kAtOnce * kParts) {
      alignas(16) Run<Product, kCount> product[kAtOnce];
      alignas(16) Run<Matrix, kCount> upper[kAtOnce], lower[kAtOnce];
      bool has[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int k = from + i * kParts, row = k < end ? cell(k) : -1;
        has[i] = row >= 0;
        if (!has[i]) continue;
        product[i].load(products + product_layout.at(row, 0, d));
        upper[i].load(activations + activation_layout.at(row, 0, d));
        if constexpr (Form::kTerms == 3) lower[i].load(activations + activation_layout.at(row, 1, d));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (!has[i]) continue;
#pragma unroll
        for (int k = 0; k < kCount; ++k)
          at[k] = fma(to_real(product[i].at[k]), slope.of(to_real(upper[i].at[k]), to_real(lower[i].at[k])), at[k]);
      }
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
__global__ void __launch_bounds__(kRunThreads* kParts, 2)
    input_gradients_kernel(const __grid_constant__ Chunk chunk, InputGradients<Form> own) {
  using Real = typename Form::Real;
  const Problem& p = chunk.problem;
  const Joint& joint = chunk.joint;
  const Frames& frames = chunk.frames;
  const int64_t first = chunk.first;
  __shared__ Real parts[kParts][kCount][kRunThreads];
  __shared__ int cells[kListed];
  const int64_t last = min(first + chunk.count, frames_end(p, frames)) - 1;
  if (last < first) return;
  const int64_t from_frame = find_frame(p, frames, first), to_frame = find_frame(p, frames, last);
  const int64_t from_n = from_frame / p.maxFrames, to_n = to_frame / p.maxFrames;
  const int64_t stride = joint.padded_size;
  const int part = threadIdx.y;
  const Real scale = 1 / (static_cast<Real>(chunk.scales->gradient) * static_cast<Real>(chunk.scales->weight));
  Sum<Form> none{own.activations, own.products, {stride, Form::kTerms}, {stride, 1}, {joint, *chunk.scales}, 0};
  for (int64_t d = (static_cast<int64_t>(blockIdx.z) * kRunThreads + threadIdx.x) * kCount;
       d - static_cast<int64_t>(threadIdx.x) * kCount < stride;
       d += static_cast<int64_t>(gridDim.z) * kRunThreads * kCount) {
    const bool inside = d < stride;
    none.d = d;
    if (blockIdx.y == 0) {
      for (int64_t frame = from_frame + blockIdx.x; frame <= to_frame; frame += gridDim.x) {
        const int64_t begin = max(frames.first[frame], first), end = min(frames.first[frame + 1], last + 1);
        if (begin >= end) continue;
        Sum<Form> sum = none;
        const int from = static_cast<int>(begin - first);
        if (inside) sum.add(part, static_cast<int>(end - begin), [&](int k) { return from + k; });
        add_parts(parts, sum.at, scale, d, joint.size, own.encoder + frame * joint.size);
      }
    } else {
      const int64_t positions = (to_n - from_n + 1) * p.width();
      for (int64_t i = blockIdx.x; i < positions; i += gridDim.x) {
        const int64_t n = from_n + i / p.width();
        const int u = static_cast<int>(i % p.width());
        const Sequence s = chunk.sequences[n];
        if (u > s.targets || s.frames == 0) continue;
        const int64_t begin = max(n * p.maxFrames, from_frame), end = min(n * p.maxFrames + s.frames, to_frame + 1);
        Sum<Form> sum = none;
        for (int64_t from = begin; from < end; from += kListed) {
          const int listed = static_cast<int>(min(end - from, int64_t{kListed}));
          for (int k = part * kRunThreads + threadIdx.x; k < listed; k += kRunThreads * kParts) {
            const int64_t cell = frames.first[from + k] + u - frames.begin[from + k];
            const bool has = cell >= max(frames.first[from + k], first) && cell < frames.first[from + k + 1];
            cells[k] = has && cell <= last ? static_cast<int>(cell - first) : -1;
          }
          __syncthreads();
          if (inside) sum.add(part, listed, [&](int k) { return cells[k]; });
          __syncthreads();
        }
        add_parts(parts, sum.at, scale, d, joint.size, own.predictor + (n * p.width() + u) * joint.size);
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
void run_input_gradients(const Chunk& chunk, const InputGradients<Form>& gradients, cudaStream_t stream) {
  const int64_t slabs = ceil_div(chunk.joint.padded_size, int64_t{kRunThreads} * kCount);
  const dim3 grid(kGridMultiprocessors * 6, 2, static_cast<unsigned>(slabs < 64 ? slabs : 64));
  input_gradients_kernel<<<grid, dim3(kRunThreads, kParts), 0, stream>>>(chunk, gradients);
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

#define PRNN_INSTANTIATE(Form) \
  template void run_input_gradients(const Chunk&, const InputGradients<Form>&, cudaStream_t);
PRNN_FOR_ALL_FORMS(PRNN_INSTANTIATE)
#undef PRNN_INSTANTIATE

template void run_finish(const float*, int64_t, int64_t, int64_t, bool, const Scales*, __half*, cudaStream_t);
template void run_finish(const float*, int64_t, int64_t, int64_t, bool, const Scales*, __nv_bfloat16*, cudaStream_t);
template void run_finish(const float*, int64_t, int64_t, int64_t, bool, const Scales*, float*, cudaStream_t);
template void run_finish(const double*, int64_t, int64_t, int64_t, bool, const Scales*, double*, cudaStream_t);

}  // namespace prnn::rnnt_cuda
