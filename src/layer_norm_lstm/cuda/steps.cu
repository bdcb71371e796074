#include "layer_norm_lstm/cuda/steps.h"

#include <algorithm>
#include <cmath>

#include "core/cuda/launch.h"
#include "layer_norm_lstm/layer_norm_lstm.h"
#include "rnn/cuda/common/activations.cuh"
#include "rnn/cuda/common/element.cuh"
#include "rnn/cuda/common/exchange.cuh"

namespace prnn {
namespace {

constexpr int kThreads = 256;      // of a kernel on elements
constexpr int kMostThreads = 512;  // of a step's block

__device__ float logistic(float x) { return sigmoid(x); }
__device__ double logistic(double x) { return 1 / (1 + exp(-x)); }
__device__ float tangent(float x) { return hyperbolic_tangent<Digits::kFloat>(x); }
__device__ double tangent(double x) { return tanh(x); }

template <class T, class Real>
struct Access {
  static __device__ Real get(const void* base, int64_t at) {
    return static_cast<Real>(Element<T>::to_float(static_cast<const T*>(base)[at]));
  }
  static __device__ void put(void* base, int64_t at, Real value) {
    static_cast<T*>(base)[at] = Element<T>::from_float(static_cast<float>(value));
  }
};
template <>
struct Access<double, double> {
  static __device__ double get(const void* base, int64_t at) { return static_cast<const double*>(base)[at]; }
  static __device__ void put(void* base, int64_t at, double value) { static_cast<double*>(base)[at] = value; }
};

// The sum over the block, in every thread; always in the same order.
template <class Real>
__device__ Real block_sum(Real value) {
  __shared__ Real sums[kMostThreads / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kWholeWarp, value, step);
  __syncthreads();  // the sum before has been read
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  Real sum = 0;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) sum += sums[i];
  return sum;
}

template <class Real>
__device__ Real* shared_values() {
  extern __shared__ double values[];
  return reinterpret_cast<Real*>(values);
}

// The four gates' elements of unit u in [4, H] from `at` on.
template <class T, class Real>
__device__ void load_gates(const void* base, int64_t at, int hidden, int u, Real (&to)[4]) {
#pragma unroll
  for (int g = 0; g < 4; ++g) to[g] = Access<T, Real>::get(base, at + g * hidden + u);
}

// Elements of a gain or bias, or `otherwise` where there is none.
template <class T, class Real>
__device__ Real load_parameter(const void* base, int64_t at, Real otherwise) {
  return base != nullptr ? Access<T, Real>::get(base, at) : otherwise;
}

// What turns LN(a) of a unit into the sums of its gates. All of it is loaded before anything is stored: the compiler
// takes every store for one that may change what a later load reads.
template <class T, class Real>
struct GateSums {
  Real gain[4], bias[4];

  __device__ GateSums(const LayerNormLstmParams<Real>& p, int64_t row, int u) {
    const int H = p.sizes.hidden;
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      gain[g] = load_parameter<T, Real>(p.gate_gain, g * H + u, 1);
      bias[g] = load_parameter<T, Real>(p.gate_bias, g * H + u, 0);
    }
    if (p.products) {
      Real x[4];
      load_gates<T>(p.x, row * 4 * H, H, u, x);
#pragma unroll
      for (int g = 0; g < 4; ++g) bias[g] += x[g];
    }
  }
  __device__ Real of(int g, Real normalized) const { return gain[g] * normalized + bias[g]; }
};

template <class T, class Real>
__device__ Real zoneout_of(const LayerNormLstmParams<Real>& p, int64_t at) {
  return p.zoneout_mask != nullptr ? Access<T, Real>::get(p.zoneout_mask, at) : p.zoneout;
}

// h before step s, of unit u of sequence n.
template <class T, class Real>
__device__ Real state_before(const LayerNormLstmParams<Real>& p, int s, int n, int u) {
  using A = Access<T, Real>;
  const int H = p.sizes.hidden;
  if (s > 0) return A::get(p.y, (p.row_of(s - 1) + n) * H + u);
  return p.h0 != nullptr ? A::get(p.h0, int64_t{n} * H + u) : 0;
}

// A step that the sequence does not have.
template <class T, class Real>
__device__ void pass_by_forward(const LayerNormLstmParams<Real>& p, int s, int n, const Real* c, void* masked) {
  using A = Access<T, Real>;
  const int H = p.sizes.hidden;
  const int64_t row = p.row_of(s) + n, state = int64_t{n} * H;
  for (int u = threadIdx.x; u < H; u += blockDim.x) {
    const Real h = state_before<T>(p, s, n, u);
    A::put(p.y, row * H + u, h);
    if (masked != nullptr) A::put(masked, state + u, A::get(p.recurrent_mask, state + u) * h);
    if (s == p.sizes.steps - 1 && p.cy != nullptr) A::put(p.cy, state + u, c[state + u]);
  }
}

// One sequence a block. A thread has the units threadIdx.x, + blockDim.x, ..., of which no other reads what it leaves
// in shared memory.
template <class T, class Real>
__global__ void __launch_bounds__(kMostThreads)
    forward_step(LayerNormLstmParams<Real> p, int s, const Real* product, Real* c, void* masked) {
  using A = Access<T, Real>;
  const int H = p.sizes.hidden, n = blockIdx.x;
  const int64_t row = p.row_of(s) + n, state = int64_t{n} * H;
  Real *const gates = shared_values<Real>(), *const cells = gates + 4 * H;
  if (p.timestep_of(s) >= p.length_of(n)) {
    pass_by_forward<T>(p, s, n, c, masked);
    return;
  }

  Real sum = 0;
  for (int u = threadIdx.x; u < H; u += blockDim.x) {
    Real a[4], x[4] = {0, 0, 0, 0};
    if (!p.products) load_gates<T>(p.x, row * 4 * H, H, u, x);
#pragma unroll
    for (int g = 0; g < 4; ++g) a[g] = product[state * 4 + g * H + u];
#pragma unroll
    for (int g = 0; g < 4; ++g) sum += gates[g * H + u] = a[g] + x[g];
  }
  Real mean = 0, deviation = 1;
  if (p.normalizes) {
    mean = block_sum(sum) / (4 * H);
    sum = 0;
    for (int u = threadIdx.x; u < H; u += blockDim.x) {
      for (int g = 0; g < 4; ++g) {
        const Real a = gates[g * H + u] - mean;
        sum += a * a;
      }
    }
    deviation = 1 / sqrt(block_sum(sum) / (4 * H) + p.epsilon);
  }

  sum = 0;
  for (int u = threadIdx.x; u < H; u += blockDim.x) {
    const GateSums<T, Real> sums(p, row, u);
    const Real before = c[state + u];
    Real normalized[4], value[4];
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      normalized[g] = (gates[g * H + u] - mean) * deviation;
      value[g] = sums.of(g, normalized[g]);
    }
    if (p.gates != nullptr) {
#pragma unroll
      for (int g = 0; g < 4; ++g) A::put(p.gates, (row * H + u) * 4 + g, normalized[g]);
    }
    sum += cells[u] = logistic(value[1]) * before + logistic(value[0]) * tangent(value[2]);
    gates[u] = logistic(value[3]);
  }
  Real cell_mean = 0, cell_deviation = 1;
  if (p.normalizes) {
    cell_mean = block_sum(sum) / H;
    sum = 0;
    for (int u = threadIdx.x; u < H; u += blockDim.x) sum += (cells[u] - cell_mean) * (cells[u] - cell_mean);
    cell_deviation = 1 / sqrt(block_sum(sum) / H + p.epsilon);
  }

  for (int u = threadIdx.x; u < H; u += blockDim.x) {
    const Real gain = load_parameter<T, Real>(p.cell_gain, u, 1), bias = load_parameter<T, Real>(p.cell_bias, u, 0);
    const bool zones = p.zoneout_mask != nullptr || p.zoneout != 0;
    const Real kept = zones ? zoneout_of<T>(p, row * H + u) : 0;
    const Real before = zones ? state_before<T>(p, s, n, u) : 0;
    const Real mask = masked != nullptr ? A::get(p.recurrent_mask, state + u) : 0;
    const Real normalized = (cells[u] - cell_mean) * cell_deviation, v = gain * normalized + bias;
    const Real carried = p.products ? cells[u] : v;
    Real h = gates[u] * tangent(v);
    h = zone_out(kept, before, h);
    c[state + u] = carried;
    if (p.cells != nullptr) A::put(p.cells, row * H + u, normalized);
    if (s == p.sizes.steps - 1 && p.cy != nullptr) A::put(p.cy, state + u, carried);
    A::put(p.y, row * H + u, h);
    if (masked != nullptr) A::put(masked, state + u, mask * h);
  }
  if (threadIdx.x == 0 && p.stats != nullptr) {
    p.stats[row * 4] = deviation;
    p.stats[row * 4 + 1] = cell_mean;
    p.stats[row * 4 + 2] = cell_deviation;
  }
}

// c_{t-1} of a unit from what step s - 1 kept.
template <class T, class Real>
__device__ Real cell_before(const LayerNormLstmParams<Real>& p, int s, int n, int u) {
  using A = Access<T, Real>;
  const int H = p.sizes.hidden;
  if (p.is_first(s, p.length_of(n))) return p.c0 != nullptr ? A::get(p.c0, int64_t{n} * H + u) : 0;
  const int64_t row = p.row_of(s - 1) + n;
  const Real normalized = A::get(p.cells, row * H + u);
  return p.products
             ? p.stats[row * 4 + 1] + normalized / p.stats[row * 4 + 2]
             : load_parameter<T, Real>(p.cell_gain, u, 1) * normalized + load_parameter<T, Real>(p.cell_bias, u, 0);
}

template <class T, class Real>
__device__ void pass_by_backward(const LayerNormLstmParams<Real>& p, int s, int n, const Real* product, Real* direct,
                                 Real* sums) {
  using A = Access<T, Real>;
  const int H = p.sizes.hidden;
  const int64_t row = p.row_of(s) + n, state = int64_t{n} * H;
  for (int u = threadIdx.x; u < H; u += blockDim.x) {
    const Real mask = p.recurrent_mask != nullptr ? A::get(p.recurrent_mask, state + u) : 1;
    direct[state + u] += A::get(p.dy, row * H + u) + (product != nullptr ? mask * product[state + u] : 0);
    for (int g = 0; g < 4; ++g) {
      A::put(p.dx, (row * 4 + g) * H + u, 0);
      A::put(p.da, (row * 4 + g) * H + u, 0);
    }
    for (int i = 0; s == p.sizes.steps - 1 && i < kLayerNormLstmParameterRows; ++i) sums[i * H + u] = 0;
  }
}

template <class T, class Real>
__global__ void __launch_bounds__(kMostThreads)
    backward_step(LayerNormLstmParams<Real> p, int s, const Real* product, Real* direct, Real* dc) {
  using A = Access<T, Real>;
  const int H = p.sizes.hidden, n = blockIdx.x;
  const int64_t row = p.row_of(s) + n, state = int64_t{n} * H;
  const bool is_first = s == p.sizes.steps - 1;
  Real *const gradients = shared_values<Real>(), *const dv = gradients + 4 * H;
  Real* const sums = p.sums + int64_t{n} * kLayerNormLstmParameterRows * H;
  if (p.timestep_of(s) >= p.length_of(n)) {
    pass_by_backward<T>(p, s, n, product, direct, sums);
    return;
  }
  const auto old_sum = [&](int at) { return is_first ? 0 : sums[at]; };
  const auto normalized = [&](int g, int u) { return A::get(p.gates, (row * H + u) * 4 + g); };
  const Real deviation = p.stats[row * 4], cell_deviation = p.stats[row * 4 + 2];

  Real sum = 0, dot = 0;
  for (int u = threadIdx.x; u < H; u += blockDim.x) {
    const GateSums<T, Real> gate_sums(p, row, u);
    const Real through = product != nullptr ? product[state + u] : 0;
    const Real mask = p.recurrent_mask != nullptr ? A::get(p.recurrent_mask, state + u) : 1;
    const Real kept = zoneout_of<T>(p, row * H + u), cell = A::get(p.cells, row * H + u);
    const Real gain = load_parameter<T, Real>(p.cell_gain, u, 1), bias = load_parameter<T, Real>(p.cell_bias, u, 0);
    const Real of_o = normalized(3, u);
    const Real gain_sum = old_sum(8 * H + u), bias_sum = old_sum(9 * H + u);
    Real dh = A::get(p.dy, row * H + u) + direct[state + u] + mask * through;
    const Real carried = p.products ? 0 : dc[state + u], past = kept * dh;
    dh -= past;
    const Real squashed = tangent(gain * cell + bias), o = logistic(gate_sums.of(3, of_o));
    const Real of_v = dh * o * (1 - squashed * squashed) + carried;
    direct[state + u] = past;
    dv[u] = of_v;
    sums[8 * H + u] = gain_sum + of_v * cell;
    sums[9 * H + u] = bias_sum + of_v;
    gradients[3 * H + u] = dh * squashed * o * (1 - o);
    sum += gain * of_v;
    dot += gain * of_v * cell;
  }
  const Real cell_mean = p.normalizes ? block_sum(sum) / H : 0, cell_dot = p.normalizes ? block_sum(dot) / H : 0;

  sum = dot = 0;
  for (int u = threadIdx.x; u < H; u += blockDim.x) {
    const GateSums<T, Real> gate_sums(p, row, u);
    const Real cell = A::get(p.cells, row * H + u), carried = p.products ? dc[state + u] : 0;
    const Real before = cell_before<T>(p, s, n, u), gain = load_parameter<T, Real>(p.cell_gain, u, 1);
    Real value[4], gain_sums[4], bias_sums[4];
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      value[g] = normalized(g, u);
      gain_sums[g] = old_sum(g * H + u);
      bias_sums[g] = old_sum((4 + g) * H + u);
    }
    const Real of_c = cell_deviation * (gain * dv[u] - cell_mean - cell * cell_dot) + carried;
    const Real i = logistic(gate_sums.of(0, value[0])), f = logistic(gate_sums.of(1, value[1]));
    const Real g = tangent(gate_sums.of(2, value[2]));
    const Real du[4] = {of_c * g * i * (1 - i), of_c * before * f * (1 - f), of_c * i * (1 - g * g),
                        gradients[3 * H + u]};
    dc[state + u] = of_c * f;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (p.products) A::put(p.dx, (row * 4 + k) * H + u, du[k]);
      sums[k * H + u] = gain_sums[k] + du[k] * value[k];
      sums[(4 + k) * H + u] = bias_sums[k] + du[k];
      const Real scaled = gate_sums.gain[k] * du[k];
      gradients[k * H + u] = scaled;
      sum += scaled;
      dot += scaled * value[k];
    }
  }
  const Real mean = p.normalizes ? block_sum(sum) / (4 * H) : 0, dot_mean = p.normalizes ? block_sum(dot) / (4 * H) : 0;
  for (int u = threadIdx.x; u < H; u += blockDim.x) {
    Real value[4];
#pragma unroll
    for (int g = 0; g < 4; ++g) value[g] = normalized(g, u);
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      A::put(p.da, (row * 4 + g) * H + u, deviation * (gradients[g * H + u] - mean - value[g] * dot_mean));
    }
  }
}

__device__ int64_t global_thread() { return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

template <class T, class Real>
__global__ void __launch_bounds__(kThreads) mask_state(int64_t elements, const void* from, const void* mask, void* to) {
  using A = Access<T, Real>;
  const int64_t i = global_thread();
  if (i >= elements) return;
  A::put(to, i, A::get(mask, i) * A::get(from, i));
}

template <class T, class Real>
__global__ void __launch_bounds__(kThreads) load_state(int64_t elements, const void* from, Real* to) {
  const int64_t i = global_thread();
  if (i < elements) to[i] = from != nullptr ? Access<T, Real>::get(from, i) : 0;
}

template <class T, class Real>
__global__ void __launch_bounds__(kThreads)
    store_initial(LayerNormLstmParams<Real> p, const Real* product, const Real* direct, const Real* dc) {
  using A = Access<T, Real>;
  const int64_t i = global_thread();
  if (i >= int64_t{p.sizes.batch} * p.sizes.hidden) return;
  if (p.dc0 != nullptr) A::put(p.dc0, i, dc[i]);
  if (p.dh0 == nullptr) return;
  const Real mask = p.recurrent_mask != nullptr ? A::get(p.recurrent_mask, i) : 1;
  A::put(p.dh0, i, direct[i] + mask * product[i]);
}

template <class T, class Real>
__global__ void __launch_bounds__(kThreads) gather_states(LayerNormLstmParams<Real> p, void* h_prev) {
  using A = Access<T, Real>;
  const int64_t size = int64_t{p.sizes.batch} * p.sizes.hidden, i = global_thread();
  if (i >= size * p.sizes.steps) return;
  const int64_t t = i / size, at = i % size;
  const bool is_first = t == (p.reverse ? p.sizes.steps - 1 : 0);
  const Real h = !is_first ? A::get(p.y, p.reverse ? i + size : i - size) : p.h0 != nullptr ? A::get(p.h0, at) : 0;
  A::put(h_prev, i, p.recurrent_mask != nullptr ? A::get(p.recurrent_mask, at) * h : h);
}

template <class T, class Real>
__global__ void __launch_bounds__(kThreads)
    store_sums(LayerNormLstmParams<Real> p, int64_t partials, int first, int count, void* out) {
  const int64_t i = global_thread(), H = p.sizes.hidden;
  if (i >= count * H) return;
  Real sum = 0;
  for (int64_t r = 0; r < partials; ++r) sum += p.sums[(r * kLayerNormLstmParameterRows + first) * H + i];
  Access<T, Real>::put(out, i, sum);
}

unsigned blocks_for(int64_t elements) { return static_cast<unsigned>(ceil_div(elements, kThreads)); }

// Calls function(T()) with the type of the elements.
template <class Real, class Function>
void with_element(prnnDataType_t type, Function&& function) {
  if constexpr (sizeof(Real) == 8) {
    function(double());
  } else if (type == PRNN_DATA_HALF) {
    function(__half());
  } else if (type == PRNN_DATA_BFLOAT16) {
    function(__nv_bfloat16());
  } else {
    function(float());
  }
}

template <class Real, class... Arguments>
void launch_step(const char* name, void (*kernel)(LayerNormLstmParams<Real>, int, Arguments...),
                 const LayerNormLstmParams<Real>& params, cudaStream_t stream, int s, Arguments... arguments) {
  const int bytes = static_cast<int>(layer_norm_lstm_step_bytes<Real>(params.sizes.hidden));
  if (bytes > 40 << 10) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const int threads = std::min(kMostThreads, (params.sizes.hidden + 31) / 32 * 32);
  kernel<<<static_cast<unsigned>(params.sizes.batch), threads, bytes, stream>>>(params, s, arguments...);
  check_launch(name);
}

}  // namespace

template <class Real>
void run_layer_norm_lstm_forward_step(prnnDataType_t type, const LayerNormLstmParams<Real>& params, int s,
                                      const Real* product, Real* c, void* masked, cudaStream_t stream) {
  with_element<Real>(type, [&](auto t) {
    launch_step("forward_step", forward_step<decltype(t), Real>, params, stream, s, product, c, masked);
  });
}

template <class Real>
void run_layer_norm_lstm_backward_step(prnnDataType_t type, const LayerNormLstmParams<Real>& params, int s,
                                       const Real* product, Real* direct, Real* dc, cudaStream_t stream) {
  with_element<Real>(type, [&](auto t) {
    launch_step("backward_step", backward_step<decltype(t), Real>, params, stream, s, product, direct, dc);
  });
}

template <class Real>
void mask_layer_norm_lstm_state(prnnDataType_t type, int64_t elements, const void* from, const void* mask, void* to,
                                cudaStream_t stream) {
  with_element<Real>(type, [&](auto t) {
    mask_state<decltype(t), Real><<<blocks_for(elements), kThreads, 0, stream>>>(elements, from, mask, to);
  });
  check_launch("mask_state");
}

template <class Real>
void load_layer_norm_lstm_state(prnnDataType_t type, int64_t elements, const void* from, Real* to,
                                cudaStream_t stream) {
  with_element<Real>(type, [&](auto t) {
    load_state<decltype(t), Real><<<blocks_for(elements), kThreads, 0, stream>>>(elements, from, to);
  });
  check_launch("load_state");
}

template <class Real>
void store_layer_norm_lstm_initial(prnnDataType_t type, const LayerNormLstmParams<Real>& params, const Real* product,
                                   const Real* direct, const Real* dc, cudaStream_t stream) {
  const int64_t elements = int64_t{params.sizes.batch} * params.sizes.hidden;
  with_element<Real>(type, [&](auto t) {
    store_initial<decltype(t), Real><<<blocks_for(elements), kThreads, 0, stream>>>(params, product, direct, dc);
  });
  check_launch("store_initial");
}

template <class Real>
void gather_layer_norm_lstm_states(prnnDataType_t type, const LayerNormLstmParams<Real>& params, void* h_prev,
                                   cudaStream_t stream) {
  const int64_t elements = int64_t{params.sizes.steps} * params.sizes.batch * params.sizes.hidden;
  with_element<Real>(type, [&](auto t) {
    gather_states<decltype(t), Real><<<blocks_for(elements), kThreads, 0, stream>>>(params, h_prev);
  });
  check_launch("gather_states");
}

template <class Real>
void store_layer_norm_lstm_sums(prnnDataType_t type, const LayerNormLstmParams<Real>& params, int64_t partials,
                                int first, int count, void* out, cudaStream_t stream) {
  const int64_t elements = int64_t{count} * params.sizes.hidden;
  with_element<Real>(type, [&](auto t) {
    store_sums<decltype(t), Real><<<blocks_for(elements), kThreads, 0, stream>>>(params, partials, first, count, out);
  });
  check_launch("store_sums");
}

#define PRNN_INSTANTIATE(Real)                                                                                         \
  template void run_layer_norm_lstm_forward_step(prnnDataType_t, const LayerNormLstmParams<Real>&, int, const Real*,   \
                                                 Real*, void*, cudaStream_t);                                          \
  template void run_layer_norm_lstm_backward_step(prnnDataType_t, const LayerNormLstmParams<Real>&, int, const Real*,  \
                                                  Real*, Real*, cudaStream_t);                                         \
  template void mask_layer_norm_lstm_state<Real>(prnnDataType_t, int64_t, const void*, const void*, void*,             \
                                                 cudaStream_t);                                                        \
  template void load_layer_norm_lstm_state(prnnDataType_t, int64_t, const void*, Real*, cudaStream_t);                 \
  template void store_layer_norm_lstm_initial(prnnDataType_t, const LayerNormLstmParams<Real>&, const Real*,           \
                                              const Real*, const Real*, cudaStream_t);                                 \
  template void gather_layer_norm_lstm_states(prnnDataType_t, const LayerNormLstmParams<Real>&, void*, cudaStream_t);  \
  template void store_layer_norm_lstm_sums(prnnDataType_t, const LayerNormLstmParams<Real>&, int64_t, int, int, void*, \
                                           cudaStream_t);
PRNN_INSTANTIATE(float)
PRNN_INSTANTIATE(double)
#undef PRNN_INSTANTIATE

}  // namespace prnn
