// Factors of the joiner's products: activations of a chunk of cells, the output layer, and the scales of both.
#include "core/cuda/philox.cuh"
#include "core/cuda/warp_reduce.cuh"
#include "rnnt/cuda/joint.cuh"

namespace prnn::rnnt_cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlockRows = 128, kRunThreads = 64, kCount = 8;  // of activations_kernel: a thread has kCount elements

// ---- Scales ----

__device__ __forceinline__ unsigned magnitude(float x) {
  const unsigned bits = __float_as_uint(x) & 0x7fffffffu;
  return bits < 0x7f800000u ? bits : 0;  // what is not finite stays so, whatever the scale
}

// Adds to *extreme; the order does not matter to a maximum.
__device__ void raise(unsigned* extreme, unsigned bits) {
  bits = warp_max(bits);
  if ((threadIdx.x & 31) == 0 && bits != 0) atomicMax(extreme, bits);
}

// The first `lengths[n] + more` of the `most` rows of each sequence, or all rows of one sequence without lengths.
template <class Element>
__global__ void extreme_kernel(const Element* values, int64_t rows, int64_t size, int64_t most,
                               const Sequence* sequences, bool symbols, unsigned* extreme) {
  unsigned bits = 0;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    if (sequences) {
      const Sequence s = sequences[row / most];
      const int64_t own = s.frames == 0 ? 0 : symbols ? s.targets + 1 : s.frames;
      if (row % most >= own) continue;
    }
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x)
      bits = max(bits, magnitude(static_cast<float>(to_real(values[row * size + i]))));
  }
  raise(extreme, bits);
}

// The power of two that brings `bound` to between 2^13 and 2^14.
__device__ float scale_for(float bound) {
  if (!(bound > 0)) return 1;
  return exp2f(fminf(fmaxf(13.0f - floorf(log2f(bound)), -100.0f), 100.0f));
}

template <class Form>
__global__ void scales_kernel(Problem p, Joint joint, const Extremes* extremes, bool given, Scales* scales) {
  Scales result{1, 1, 1};
  if constexpr (Form::kScaled) {
    if constexpr (Form::kTerms == 3) {
      const float reach = __uint_as_float(extremes->encoder) + __uint_as_float(extremes->predictor);
      result.activation = scale_for((joint.activation == PRNN_JOINT_TANH ? 1.0f : reach) * joint.keep_scale);
      result.weight = scale_for(__uint_as_float(extremes->weight));
    }
    const float most = given ? __uint_as_float(extremes->cost_gradient) : 1.0f;
    result.gradient = scale_for(static_cast<float>(2 + p.fastEmitLambda) * most);
  }
  *scales = result;
}

// ---- The output layer ----

template <class Form>
__global__ void weights_kernel(Joint joint, const Scales* scales, Weights<Form> out) {
  using Real = typename Form::Real;
  const int64_t v = blockIdx.x;
  const auto* weight = static_cast<const typename Form::Element*>(joint.weight) + v * joint.size;
  const int64_t stride = joint.padded_size;
  const Real scale = Form::kTerms == 3 ? static_cast<Real>(scales->weight) : Real(1);
  for (int64_t d = threadIdx.x; d < stride; d += blockDim.x) {
    const Real values[1] = {v < joint.classes && d < joint.size ? to_real(weight[d]) * scale : Real(0)};
    const RowLayout<typename Form::Matrix> rows{stride, Form::kTerms};
    store_terms<Form, Side::kRight>(out.for_logits, rows, v, d, values);
    if constexpr (Form::kTerms > 1) {
      // A matrix of its own for each term.
      const RowLayout<typename Form::Matrix> terms{joint.padded_classes * stride, Form::kTerms};
      store_terms<Form, Side::kLeft>(out.for_gradients, terms, 0, v * stride + d, values);
    }
  }
  if (threadIdx.x == 0) {
    const auto* bias = static_cast<const Real*>(joint.bias);
    out.bias[v] = v >= joint.tokens ? static_cast<Real>(kNever) : bias ? bias[v] : Real(0);
  }
}

// ---- Activations ----

template <class Element>
__device__ __forceinline__ auto tangent(decltype(to_real(Element())) x) {
  return tanh(x);
}
template <>
__device__ __forceinline__ auto tangent<__half>(float x) {
  return 1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f * fminf(x, 20.0f)));
}
template <>
__device__ __forceinline__ auto tangent<__nv_bfloat16>(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Elements d .. d + kCount - 1 of a row, zero where there are none. kWhole: rows hold whole runs, aligned.
template <class Element, bool kWhole>
struct RowRun : Words<Element, kCount> {
  __device__ __forceinline__ void load(const void* array, int64_t row, int64_t size, int64_t d) {
    const auto* source = reinterpret_cast<const char*>(static_cast<const Element*>(array) + row * size + d);
#pragma unroll
    for (int i = 0; i < this->kPieces; ++i) this->load_piece(i, source + i * 16);
  }
};
template <class Element>
struct RowRun<Element, false> {
  decltype(to_real(Element())) elements[kCount];

  __device__ __forceinline__ void load(const void* array, int64_t row, int64_t size, int64_t d) {
    const Element* source = static_cast<const Element*>(array) + row * size + d;
#pragma unroll
    for (int i = 0; i < kCount; ++i) elements[i] = d + i < size ? to_real(source[i]) : 0;
  }
  __device__ __forceinline__ auto at(int i) const { return elements[i]; }
};

template <class Form, bool kWhole, template <class> class Layout>
__global__ void __launch_bounds__(kThreads, sizeof(typename Form::Element) == 2 ? 5 : 2)
    activations_kernel(const __grid_constant__ Chunk chunk, Layout<typename Form::Matrix> layout,
                       typename Form::Matrix* out, CellRecords<typename Form::Real> records) {
  const Problem& p = chunk.problem;
  const Joint& joint = chunk.joint;
  const Frames& frames = chunk.frames;
  const Scales* scales = chunk.scales;
  const int64_t first = chunk.first, count = chunk.count;
  using Element = typename Form::Element;
  using Real = typename Form::Real;
  constexpr int kAtOnce = kWhole && sizeof(Element) <= 4 ? 2 : 1, kParts = kThreads / kRunThreads;
  __shared__ int64_t encoder_rows[kBlockRows], predictor_rows[kBlockRows];
  const int64_t base = static_cast<int64_t>(blockIdx.x) * kBlockRows, left = frames_end(p, frames) - first;
  // Rows of a chunk that is all padding are zeros, too, where the products do not ask how many cells there are.
  if (layout.kTiled && (left <= 0 || base >= (left + kTileRows - 1) / kTileRows * kTileRows)) return;
  // Two warps find the frames of the first and of the last cell, between which the others' are.
  __shared__ int64_t ends[2];
  if (threadIdx.x < 64 && left > 0) {
    const int64_t cell = min(base + (threadIdx.x < 32 ? 0 : kBlockRows - 1), left - 1);
    const int64_t frame = find_frame_by_warp(p, frames, first + cell);
    if (threadIdx.x % 32 == 0) ends[threadIdx.x / 32] = frame;
  }
  __syncthreads();
  Cell own{0, 0, 0, false};
  if (threadIdx.x < kBlockRows) {
    const int64_t at = base + threadIdx.x, cell = first + at;
    if (at < left) own = cell_of_frame(p, frames, find_frame(frames, cell, ends[0], ends[1] + 1), cell);
    encoder_rows[threadIdx.x] = own.real ? own.n * p.maxFrames + own.t : -1;
    predictor_rows[threadIdx.x] = own.n * p.width() + own.u;
  }
  __syncthreads();
  if constexpr (Layout<typename Form::Matrix>::kTiled) {
    if (threadIdx.x < kBlockRows) {
      const int64_t at = base + threadIdx.x;
      if (at == 0) frames.chunk[0] = encoder_rows[threadIdx.x];
      if (at == min(count, left) - 1) frames.chunk[1] = encoder_rows[threadIdx.x];
      if (records.emissions)
        records.emissions[at] = own.real ? find_emission(chunk, own) : Emission{-1, 0, -1, 0, 0, 0};
      if (records.cells) records.cells[at] = cell_shares(chunk, records.made_of, own);
    }
  }
  const int rows = static_cast<int>(count - base < kBlockRows ? count - base : kBlockRows);
  const Real scale = Form::kTerms == 3 ? static_cast<Real>(scales->activation) : Real(1);
  const unsigned long long seed = joint.drop_below ? *joint.seed : 0;
  const bool is_tanh = joint.activation == PRNN_JOINT_TANH;
  const auto drop = [&](Real(&values)[kCount], int64_t encoder_row, int64_t predictor_row, int64_t d) {
#pragma unroll
    for (int k = 0; k < kCount; k += 4) {
      // A draw for four elements of a cell of the whole lattice.
      const int64_t u = predictor_row % p.width();
      const int64_t draw = ((encoder_row * p.width() + u) * joint.padded_size + d + k) / 4;
      uint32_t random[4] = {static_cast<uint32_t>(draw), static_cast<uint32_t>(draw >> 32), 0, 0};
      philox(random, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
#pragma unroll
      for (int j = 0; j < 4; ++j)
        values[k + j] = random[j] < joint.drop_below ? -Real(0) : values[k + j] * static_cast<Real>(joint.keep_scale);
    }
  };
  for (int64_t d = threadIdx.x % kRunThreads * kCount; d < layout.stride; d += kRunThreads * kCount) {
    // A few rows at a time, all of which are on their way before the first is needed.
    for (int from = threadIdx.x / kRunThreads; from < rows; from += kAtOnce * kParts) {
      RowRun<Element, kWhole> a[kAtOnce], b[kAtOnce];
      bool has[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int slot = from + i * kParts;
        has[i] = slot < rows && encoder_rows[slot] >= 0 && d < joint.padded_size;
        if (!has[i]) continue;
        a[i].load(joint.encoder, encoder_rows[slot], joint.size, d);
        b[i].load(joint.predictor, predictor_rows[slot], joint.size, d);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int slot = from + i * kParts;
        if (slot >= rows) break;
        Real values[kCount] = {};
        if (has[i]) {
#pragma unroll
          for (int k = 0; k < kCount; ++k) {
            const Real x = a[i].at(k) + b[i].at(k);
            // A NaN stays NaN; minus zero becomes plus zero, since minus zero marks dropped elements alone.
            const Real y = is_tanh ? Real(tangent<Element>(x)) : x < 0 ? Real(0) : x;
            values[k] = (y + Real(0)) * scale;
          }
          if (joint.drop_below != 0) drop(values, encoder_rows[slot], predictor_rows[slot], d);
        }
        store_terms<Form, Side::kLeft>(out, layout, base + slot, d, values);
      }
    }
  }
}

}  // namespace

template <class Form>
void run_scales(const Problem& problem, const Joint& joint, const Sequence* sequences,
                const typename Form::Real* cost_gradients, Extremes* extremes, Scales* scales, cudaStream_t stream) {
  if constexpr (Form::kScaled) {
    using Element = typename Form::Element;
    cudaMemsetAsync(extremes, 0, sizeof(Extremes), stream);
    const auto find = [&](const auto* values, int64_t rows, int64_t size, int64_t most, bool symbols, bool ragged,
                          unsigned* extreme) {
      const auto blocks = static_cast<unsigned>(rows < 1024 ? rows : 1024);
      extreme_kernel<<<blocks, kThreads, 0, stream>>>(values, rows, size, most, ragged ? sequences : nullptr, symbols,
                                                      extreme);
      check_launch("joint extreme_kernel");
    };
    if (Form::kTerms == 3) {
      find(static_cast<const Element*>(joint.weight), joint.classes, joint.size, 1, false, false, &extremes->weight);
      if (joint.activation == PRNN_JOINT_RELU) {
        find(static_cast<const Element*>(joint.encoder), problem.batch * problem.maxFrames, joint.size,
             problem.maxFrames, false, true, &extremes->encoder);
        find(static_cast<const Element*>(joint.predictor), problem.batch * problem.width(), joint.size, problem.width(),
             true, true, &extremes->predictor);
      }
    }
    if (cost_gradients) find(cost_gradients, 1, problem.batch, 1, false, false, &extremes->cost_gradient);
  }
  scales_kernel<Form><<<1, 1, 0, stream>>>(problem, joint, extremes, cost_gradients != nullptr, scales);
  check_launch("joint scales_kernel");
}

template <class Form>
void run_prepare_weights(const Joint& joint, const Scales* scales, const Weights<Form>& weights, cudaStream_t stream) {
  weights_kernel<Form><<<static_cast<unsigned>(joint.padded_classes), 128, 0, stream>>>(joint, scales, weights);
  check_launch("joint weights_kernel");
}

template <class Form, bool kTiled>
void run_activations(const Chunk& chunk, typename Form::Matrix* activations,
                     const CellRecords<typename Form::Real>& records, cudaStream_t stream) {
  using Element = typename Form::Element;
  using Matrix = typename Form::Matrix;
  using Layout = std::conditional_t<kTiled, TileLayout<Matrix>, RowLayout<Matrix>>;
  constexpr size_t kBytes = 16;
  const Joint& joint = chunk.joint;
  const bool whole = joint.size % kCount == 0 && reinterpret_cast<uintptr_t>(joint.encoder) % kBytes == 0 &&
                     reinterpret_cast<uintptr_t>(joint.predictor) % kBytes == 0;
  const Layout layout = chunk_layout<Layout>(joint.padded_size, Form::kTerms);
  const auto blocks = static_cast<unsigned>(ceil_div(chunk.count, kBlockRows));
  if (whole)
    activations_kernel<Form, true><<<blocks, kThreads, 0, stream>>>(chunk, layout, activations, records);
  else
    activations_kernel<Form, false><<<blocks, kThreads, 0, stream>>>(chunk, layout, activations, records);
  check_launch("joint activations_kernel");
}

#define PRNN_INSTANTIATE(Form)                                                                                         \
  template void run_scales<Form>(const Problem&, const Joint&, const Sequence*, const Form::Real*, Extremes*, Scales*, \
                                 cudaStream_t);                                                                        \
  template void run_prepare_weights<Form>(const Joint&, const Scales*, const Weights<Form>&, cudaStream_t);            \
  template void run_activations<Form, false>(const Chunk&, Form::Matrix*, const CellRecords<Form::Real>&, cudaStream_t);
PRNN_FOR_ALL_FORMS(PRNN_INSTANTIATE)
#undef PRNN_INSTANTIATE

#define PRNN_INSTANTIATE(Form) \
  template void run_activations<Form, true>(const Chunk&, Form::Matrix*, const CellRecords<Form::Real>&, cudaStream_t);
PRNN_FOR_TILED_FORMS(PRNN_INSTANTIATE)
#undef PRNN_INSTANTIATE

}  // namespace prnn::rnnt_cuda
