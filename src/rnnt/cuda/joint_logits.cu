// What is done with the logits of a chunk of cells: forward, the log-probabilities of each cell's arcs; backward, the
// logits' gradients. Logits are the products divided by their scales, plus the bias.
#include "rnnt/cuda/joint.cuh"

namespace prnn::rnnt_cuda {
namespace {

constexpr int kWarpRows = kRowThreads / 32;           // of a block of joint_emissions_kernel
constexpr int kColumnThreads = 128, kBlockRows = 32;  // of joint_gradients_kernel

template <class Real>
constexpr int kWide = 16 / sizeof(Real);

template <class Real>
__device__ __forceinline__ Real logit_scale(const Scales* scales) {
  return Real(1) / (static_cast<Real>(scales->activation) * static_cast<Real>(scales->weight));
}

// A warp a cell.
template <class Real>
__global__ void __launch_bounds__(kRowThreads)
    joint_emissions_kernel(Problem p, int64_t stride, Lattice<Real> lattice, const Scales* scales, const Real* bias,
                           const Real* products, int64_t first, int64_t count, Real* normalisers) {
  constexpr Real kEmpty = static_cast<Real>(kNever);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarpRows + threadIdx.x / 32, row = first + at;
  const int lane = threadIdx.x % 32;
  if (at >= count) return;
  const Cell cell = find_cell(p, lattice.sequences, row);
  if (!cell.real) return;
  const Real scale = logit_scale<Real>(scales);
  products += at * stride;
  Real maximum = kEmpty, sum = 0;  // of this lane: the sum is scaled by exp(-maximum)
  for (int64_t base = lane * kWide<Real>; base < stride; base += 32 * kPieces * kWide<Real>) {
    Real logits[kPieces][kWide<Real>];
    Real highest = maximum;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int64_t v = base + i * 32 * kWide<Real>;
      alignas(16) Run<Real, kWide<Real>> x, b;
      if (v < stride) x.load(products + v), b.load(bias + v);
#pragma unroll
      for (int k = 0; k < kWide<Real>; ++k) {
        logits[i][k] = v < stride ? x.at[k] * scale + b.at[k] : kEmpty;
        highest = max(highest, logits[i][k]);
      }
    }
    const Real shift = highest == kEmpty ? Real(0) : highest;
    if (highest != maximum) sum *= fast_exp(maximum - shift);
    maximum = highest;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int k = 0; k < kWide<Real>; ++k) sum += fast_exp(logits[i][k] - shift);
    }
  }
  const Real highest = group_max<32>(maximum);
  const Real shift = highest == kEmpty ? Real(0) : highest;
  const Real normaliser = shift + log(group_sum<32>(sum * fast_exp(maximum - shift)));
  if (lane != 0) return;
  const Sequence s = lattice.sequences[cell.n];
  Arcs<Real> arcs{products[p.blank] * scale + bias[p.blank] - normaliser, kEmpty};
  if (cell.u < s.targets) {
    const int label = p.targets[s.target_begin + cell.u];
    arcs.label = products[label] * scale + bias[label] - normaliser;
    if (p.delay_penalty != 0) arcs.label += static_cast<Real>(p.delay_penalty * (0.5 * (s.frames - 1) - cell.t));
  }
  lattice.arcs[lattice_index(p, cell)] = arcs;
  if (normalisers) normalisers[row] = normaliser;
}

// A cell as joint_gradients_kernel wants it.
template <class Real>
struct CellShares {
  Real blank, label, normaliser, scale;
  int label_at;
};

template <class Real>
__device__ CellShares<Real> cell_shares(const Problem& p, const Sequence* sequences, const Shares<Real>& shares,
                                        const Real* cost_gradients, Real scale, int64_t row) {
  CellShares<Real> result{0, 0, 0, 0, -1};
  const Cell cell = find_cell(p, sequences, row);
  if (!cell.real) return result;
  const Sequence s = sequences[cell.n];
  const Arcs<Real> arcs = shares.arcs[row];
  result.blank = arcs.blank;
  if (cell.u < s.targets) {
    result.label = arcs.label * static_cast<Real>(1 + p.fast_emit);
    result.label_at = p.targets[s.target_begin + cell.u];
  }
  result.normaliser = shares.normalisers[row];
  result.scale = scale * (cost_gradients ? cost_gradients[cell.n] : Real(1));
  return result;
}

// A block takes kBlockRows cells; a thread has some columns of all of them, so that it can sum them for the bias.
template <class Form>
__global__ void __launch_bounds__(kColumnThreads)
    joint_gradients_kernel(Problem p, int64_t stride, const Sequence* sequences, Shares<typename Form::Real> shares,
                           const typename Form::Real* cost_gradients, const Scales* scales,
                           const typename Form::Real* bias, const typename Form::Real* products, int64_t first,
                           int64_t count, typename Form::Matrix* gradients, typename Form::Real* bias_sums) {
  using Real = typename Form::Real;
  constexpr int kCount = kWide<Real>;
  __shared__ CellShares<Real> cells[kBlockRows];
  const int64_t base = static_cast<int64_t>(blockIdx.x) * kBlockRows;
  if (threadIdx.x < kBlockRows && base + threadIdx.x < count)
    cells[threadIdx.x] = cell_shares(p, sequences, shares, cost_gradients, static_cast<Real>(scales->gradient),
                                     first + base + threadIdx.x);
  __syncthreads();
  const int rows = static_cast<int>(count - base < kBlockRows ? count - base : kBlockRows);
  const Real scale = logit_scale<Real>(scales);
  const Real limit = p.clamp > 0 ? static_cast<Real>(p.clamp) : static_cast<Real>(CUDART_INF);
  for (int64_t v = (static_cast<int64_t>(blockIdx.y) * kColumnThreads + threadIdx.x) * kCount; v < stride;
       v += static_cast<int64_t>(gridDim.y) * kColumnThreads * kCount) {
    alignas(16) Run<Real, kCount> b;
    b.load(bias + v);
    Real sums[kCount] = {};
#pragma unroll 4
    for (int r = 0; r < rows; ++r) {
      const CellShares<Real> cell = cells[r];
      // Softmax times zero is not zero where the softmax is NaN: a cell without probability is not read.
      const Real both = cell.blank + cell.label;
      const bool reads = both != 0;
      alignas(16) Run<Real, kCount> x;
      if (reads) x.load(products + (base + r) * stride + v);
      Real values[kCount];
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        Real gradient = reads ? both * fast_exp(x.at[k] * scale + b.at[k] - cell.normaliser) : Real(0);
        if (v + k == p.blank) gradient -= cell.blank;
        if (v + k == cell.label_at) gradient -= cell.label;
        gradient = gradient > limit ? limit : gradient < -limit ? -limit : gradient;  // NaN stays NaN
        values[k] = reads ? gradient * cell.scale : Real(0);
        sums[k] += values[k];
      }
      store_terms<Form, Side::kRight>(gradients + (base + r) * Form::kTerms * stride + v, stride, values);
    }
    Real* slot = bias_sums + blockIdx.x * stride + v;
#pragma unroll
    for (int k = 0; k < kCount; ++k) slot[k] += sums[k];
  }
}

// A warp for 32 columns in each of its 32 parts of the slots.
template <class Real>
__global__ void finish_bias_kernel(int64_t classes, int64_t stride, const Real* bias_sums, int64_t slots,
                                   const Scales* scales, Real* out) {
  __shared__ Real parts[32][33];
  const int64_t v = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  Real sum = 0;
  if (v < classes) {
    for (int64_t slot = threadIdx.y; slot < slots; slot += 32) sum += bias_sums[slot * stride + v];
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || v >= classes) return;
  for (int i = 1; i < 32; ++i) sum += parts[i][threadIdx.x];
  out[v] = sum / static_cast<Real>(scales->gradient);
}

}  // namespace

template <class Real>
void run_joint_emissions(const Problem& problem, const Joint& joint, const Lattice<Real>& lattice, const Scales* scales,
                         const Real* bias, const Real* products, int64_t first, int64_t count, Real* normalisers,
                         cudaStream_t stream) {
  joint_emissions_kernel<<<static_cast<unsigned>(ceil_div(count, kWarpRows)), kRowThreads, 0, stream>>>(
      problem, joint.padded_classes, lattice, scales, bias, products, first, count, normalisers);
  check_launch("joint_emissions_kernel");
}

int64_t joint_bias_slots(int64_t chunk) { return ceil_div(chunk, kBlockRows); }

template <class Form>
void run_joint_gradients(const Problem& problem, const Joint& joint, const Sequence* sequences,
                         const Shares<typename Form::Real>& shares, const typename Form::Real* cost_gradients,
                         const Scales* scales, const typename Form::Real* bias, const typename Form::Real* products,
                         int64_t first, int64_t count, typename Form::Matrix* gradients, typename Form::Real* bias_sums,
                         cudaStream_t stream) {
  const int64_t slabs = ceil_div(joint.padded_classes, int64_t{kColumnThreads} * kWide<typename Form::Real>);
  const dim3 grid(static_cast<unsigned>(joint_bias_slots(count)), static_cast<unsigned>(slabs < 1024 ? slabs : 1024));
  joint_gradients_kernel<Form><<<grid, kColumnThreads, 0, stream>>>(problem, joint.padded_classes, sequences, shares,
                                                                    cost_gradients, scales, bias, products, first,
                                                                    count, gradients, bias_sums);
  check_launch("joint_gradients_kernel");
}

template <class Real>
void run_finish_bias(const Joint& joint, const Real* bias_sums, int64_t slots, const Scales* scales, Real* out,
                     cudaStream_t stream) {
  finish_bias_kernel<<<static_cast<unsigned>(ceil_div(joint.classes, 32)), dim3(32, 32), 0, stream>>>(
      joint.classes, joint.padded_classes, bias_sums, slots, scales, out);
  check_launch("joint finish_bias_kernel");
}

#define PRNN_INSTANTIATE(Real)                                                                                      \
  template void run_joint_emissions(const Problem&, const Joint&, const Lattice<Real>&, const Scales*, const Real*, \
                                    const Real*, int64_t, int64_t, Real*, cudaStream_t);                            \
  template void run_finish_bias(const Joint&, const Real*, int64_t, const Scales*, Real*, cudaStream_t);
PRNN_INSTANTIATE(float)
PRNN_INSTANTIATE(double)
#undef PRNN_INSTANTIATE

#define PRNN_INSTANTIATE(Form)                                                                                      \
  template void run_joint_gradients<Form>(const Problem&, const Joint&, const Sequence*, const Shares<Form::Real>&, \
                                          const Form::Real*, const Scales*, const Form::Real*, const Form::Real*,   \
                                          int64_t, int64_t, Form::Matrix*, Form::Real*, cudaStream_t);
PRNN_INSTANTIATE(DoubleForm)
PRNN_INSTANTIATE(HalfForm)
PRNN_INSTANTIATE(Bfloat16Form)
PRNN_INSTANTIATE(SplitForm)
PRNN_INSTANTIATE(Tf32Form)
#undef PRNN_INSTANTIATE

}  // namespace prnn::rnnt_cuda
