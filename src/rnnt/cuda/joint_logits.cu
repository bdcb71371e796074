// Kernels on the logits of a chunk of cells: forward, the log-probabilities of each cell's arcs; backward, the
// logits' gradients. Logits are the products divided by their scales, plus the bias.
#include "rnnt/cuda/joint.cuh"

namespace prnn::rnnt_cuda {
namespace {

constexpr int kBlockRows = 32;                     // of both kernels
constexpr int kColumnThreads = 64, kRowParts = 4;  // of joint_gradients_kernel

template <class Element>
constexpr int kWide = 16 / sizeof(Element);

// A warp has a cell at a time. kTdt: with a duration head.
template <class Form, bool kTdt>
__global__ void __launch_bounds__(kRowThreads)
    joint_emissions_kernel(const __grid_constant__ Chunk chunk, const __grid_constant__ JointEmissions<Form> own) {
  const Problem& p = chunk.problem;
  const Frames& frames = chunk.frames;
  using Real = typename Form::Real;
  using Logit = typename Form::Logit;
  constexpr Real kEmpty = static_cast<Real>(kNever);
  constexpr int kCount = kWide<Logit>, kHeld = 16 / kCount;
  __shared__ Emission emissions[kBlockRows];
  const int64_t first = chunk.first, stride = chunk.joint.padded_classes;
  const int64_t base = static_cast<int64_t>(blockIdx.x) * kBlockRows, left = frames_end(p, frames) - first - base;
  const int rows = static_cast<int>(min(min(left, chunk.count - base), int64_t{kBlockRows}));
  if (rows <= 0) return;
  if (threadIdx.x < rows)
    emissions[threadIdx.x] = find_emission(chunk, find_cell(p, frames, first + base + threadIdx.x));
  __syncthreads();
  const int lane = threadIdx.x % 32;
  const Real scale = logit_scale<Real>(chunk.scales);
  const Real* bias = own.bias;
  for (int r = threadIdx.x / 32; r < rows; r += kRowThreads / 32) {
    const Logit* row = own.products + (base + r) * stride;
    Real maximum = kEmpty, sum = 0;  // of this lane: the sum is scaled by exp(-maximum)
    for (int64_t start = lane * kCount; start < stride; start += 32 * kHeld * kCount) {
      Real logits[kHeld][kCount];
      Real highest = maximum;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int64_t v = start + i * 32 * kCount;
        alignas(16) Run<Logit, kCount> x;
        alignas(16) Run<Real, kCount> b;
        if (v < stride) x.load(row + v), b.load(bias + v);
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          logits[i][k] = v < stride ? to_real(x.at[k]) * scale + b.at[k] : kEmpty;
          highest = max(highest, logits[i][k]);
        }
      }
      const Real shift = highest == kEmpty ? Real(0) : highest;
      if (highest != maximum) sum *= fast_exp(maximum - shift);
      maximum = highest;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) sum += fast_exp(logits[i][k] - shift);
      }
    }
    const Real highest = group_max<32>(maximum);
    const Real shift = highest == kEmpty ? Real(0) : highest;
    const Real normaliser = shift + log(group_sum<32>(sum * fast_exp(maximum - shift)));
    if (!kTdt && lane != 0) continue;
    const Emission cell = emissions[r];
    const Real blank = to_real(row[p.blank]) * scale + bias[p.blank];
    const Real label = cell.label < 0 ? kEmpty : to_real(row[cell.label]) * scale + bias[cell.label];
    if constexpr (kTdt) {
      const DurationHead<Real>& head = own.out.head;
      write_scores(p, head, cell, blank, label, normaliser, lane, 32,
                   [&](int i) { return to_real(row[head.first + i]) * scale + (head.bias ? head.bias[i] : Real(0)); });
    } else {
      write_emission(p, cell, blank, label, normaliser, own.out.arcs, own.out.normalisers);
    }
  }
}

// A block takes kBlockRows cells; a thread has some columns of every kRowParts-th, so that it can sum them for the
// bias.
template <class Form, bool kTdt>
__global__ void __launch_bounds__(kColumnThreads* kRowParts)
    joint_gradients_kernel(const __grid_constant__ Chunk chunk, const __grid_constant__ LogitGradients<Form> own) {
  const Problem& p = chunk.problem;
  using Real = typename Form::Real;
  using Logit = typename Form::Logit;
  constexpr int kCount = kWide<Real>;
  __shared__ CellShares<Real> cells[kBlockRows];
  __shared__ Real parts[kRowParts][kCount][kColumnThreads];
  const int64_t first = chunk.first, stride = chunk.joint.padded_classes;
  const int64_t base = static_cast<int64_t>(blockIdx.x) * kBlockRows;
  const int thread = threadIdx.x, part = threadIdx.y;
  if (part == 0 && thread < kBlockRows)
    cells[thread] = cell_shares(chunk, own.made_of, find_cell(p, chunk.frames, first + base + thread));
  __syncthreads();
  const int rows = static_cast<int>(chunk.count - base < kBlockRows ? chunk.count - base : kBlockRows);
  const Real scale = logit_scale<Real>(chunk.scales), limit = clamp_limit<Real>(p);
  const RowLayout<typename Form::Matrix> layout{stride, Form::kTerms};
  const DurationHead<Real>& head = own.head;
  for (int64_t from = static_cast<int64_t>(blockIdx.y) * kColumnThreads * kCount; from < stride;
       from += static_cast<int64_t>(gridDim.y) * kColumnThreads * kCount) {
    const int64_t v = from + thread * kCount;
    Real sums[kCount] = {};
    if (v < stride) {
      alignas(16) Run<Real, kCount> b;
      b.load(own.bias + v);
#pragma unroll 4
      for (int r = part; r < rows; r += kRowParts) {
        const CellShares<Real> cell = cells[r];
        const bool reads = cell.blank + cell.label != 0;
        alignas(16) Run<Logit, kCount> x;
        if (reads) x.load(own.products + (base + r) * stride + v);
        Real values[kCount];
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          values[k] = reads ? logit_gradient(cell, to_real(x.at[k]) * scale + b.at[k], v + k, p.blank, limit) : Real(0);
          if (kTdt && reads && static_cast<uint64_t>(v + k - head.first) < static_cast<uint64_t>(head.entries)) {
            const int entry = static_cast<int>(v + k - head.first);
            const Real logit = to_real(x.at[k]) * scale + (head.bias ? head.bias[entry] : Real(0));
            values[k] = limited(duration_gradient(head, cell.row, entry, logit), limit) * cell.scale;
          }
          sums[k] += values[k];
        }
        store_terms<Form, Side::kRight>(own.gradients, layout, base + r, v, values);
      }
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) parts[part][k][thread] = sums[k];
    __syncthreads();
    if (part == 0 && v < stride) {
      Real* slot = own.bias_sums + blockIdx.x * stride + v;
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
#pragma unroll
        for (int i = 1; i < kRowParts; ++i) sums[k] += parts[i][k][thread];
        slot[k] += sums[k];
      }
    }
    __syncthreads();
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

template <class Form>
void run_joint_emissions(const Chunk& chunk, const JointEmissions<Form>& emissions, cudaStream_t stream) {
  const auto kernel =
      emissions.out.head.entries > 0 ? joint_emissions_kernel<Form, true> : joint_emissions_kernel<Form, false>;
  kernel<<<static_cast<unsigned>(ceil_div(chunk.count, kBlockRows)), kRowThreads, 0, stream>>>(chunk, emissions);
  check_launch("joint_emissions_kernel");
}

int64_t joint_bias_slots(int64_t chunk) { return ceil_div(chunk, kBlockRows); }

template <class Form>
void run_joint_gradients(const Chunk& chunk, const LogitGradients<Form>& gradients, cudaStream_t stream) {
  const int64_t slabs = ceil_div(chunk.joint.padded_classes, int64_t{kColumnThreads} * kWide<typename Form::Real>);
  const dim3 grid(static_cast<unsigned>(joint_bias_slots(chunk.count)),
                  static_cast<unsigned>(slabs < 1024 ? slabs : 1024));
  const auto kernel =
      gradients.head.entries > 0 ? joint_gradients_kernel<Form, true> : joint_gradients_kernel<Form, false>;
  kernel<<<grid, dim3(kColumnThreads, kRowParts), 0, stream>>>(chunk, gradients);
  check_launch("joint_gradients_kernel");
}

template <class Real>
void run_finish_bias(const Joint& joint, const Real* bias_sums, int64_t slots, const Scales* scales, Real* out,
                     cudaStream_t stream) {
  finish_bias_kernel<<<static_cast<unsigned>(ceil_div(joint.classes, 32)), dim3(32, 32), 0, stream>>>(
      joint.classes, joint.padded_classes, bias_sums, slots, scales, out);
  check_launch("joint finish_bias_kernel");
}

template void run_finish_bias(const Joint&, const float*, int64_t, const Scales*, float*, cudaStream_t);
template void run_finish_bias(const Joint&, const double*, int64_t, const Scales*, double*, cudaStream_t);

#define PRNN_INSTANTIATE(Form)                                                                \
  template void run_joint_emissions(const Chunk&, const JointEmissions<Form>&, cudaStream_t); \
  template void run_joint_gradients(const Chunk&, const LogitGradients<Form>&, cudaStream_t);
PRNN_FOR_ALL_FORMS(PRNN_INSTANTIATE)
#undef PRNN_INSTANTIATE

}  // namespace prnn::rnnt_cuda
