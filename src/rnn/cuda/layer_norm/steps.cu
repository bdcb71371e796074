#include "rnn/cuda/layer_norm/steps.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "rnn/cuda/layer/run.h"
#include "rnn/cuda/layer_norm/steps_backward.cuh"
#include "rnn/cuda/layer_norm/steps_forward.cuh"
#include "rnn/plan/layer_norm.h"

namespace prnn {
namespace {

constexpr int kThreads = 256;  // of a kernel on elements

__device__ int64_t global_thread() { return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

template <class T, class Real>
__global__ void __launch_bounds__(kThreads) mask_state(int64_t elements, const void* from, const void* mask, void* to) {
  const int64_t i = global_thread();
  if (i >= elements) return;
  put<T>(to, i, get<T, Real>(mask, i) * get<T, Real>(from, i));
}

template <class T, class Real>
__global__ void __launch_bounds__(kThreads) load_state(int64_t elements, const void* from, Real* to) {
  const int64_t i = global_thread();
  if (i < elements) to[i] = from != nullptr ? get<T, Real>(from, i) : 0;
}

template <class T, class Real>
__global__ void __launch_bounds__(kThreads)
    store_initial(LayerNormLstmParams<Real> p, const Real* product, int parts, const Real* direct, const Real* dc) {
  const int64_t i = global_thread();
  if (i >= int64_t{p.sizes.batch} * p.sizes.hidden) return;
  if (p.dc0 != nullptr) put<T>(p.dc0, i, dc[i]);
  if (p.dh0 == nullptr) return;
  const Real mask = p.recurrent_mask != nullptr ? get<T, Real>(p.recurrent_mask, i) : 1;
  put<T>(p.dh0, i, direct[i] + mask * sum_of_parts(p, product, parts, i));
}

template <class T, class Real>
__global__ void __launch_bounds__(kThreads) gather_states(LayerNormLstmParams<Real> p, void* h_prev) {
  const int64_t size = int64_t{p.sizes.batch} * p.sizes.hidden, i = global_thread();
  if (i >= size * p.sizes.steps) return;
  const int64_t t = i / size, at = i % size;
  const bool is_first = t == (p.reverse ? p.sizes.steps - 1 : 0);
  const Real h = !is_first         ? get<T, Real>(p.y, p.reverse ? i + size : i - size)
                 : p.h0 != nullptr ? get<T, Real>(p.h0, at)
                                   : 0;
  put<T>(h_prev, i, p.recurrent_mask != nullptr ? get<T, Real>(p.recurrent_mask, at) * h : h);
}

template <class T, class Real>
__global__ void __launch_bounds__(kThreads)
    store_sums(LayerNormLstmParams<Real> p, int64_t partials, int first, int count, void* out) {
  const int64_t i = global_thread(), H = p.sizes.hidden;
  if (i >= count * H) return;
  Real sum = 0;
  for (int64_t r = 0; r < partials; ++r) sum += p.sums[(r * kLayerNormLstmParameterRows + first) * H + i];
  put<T>(out, i, sum);
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

// Calls function(units that a thread loads and stores at once): four where all arrays of the caller lie at multiples of
// as many elements.
template <class T, class Real, class Function>
void with_pack(const LayerNormLstmParams<Real>& p, Function&& function) {
  constexpr std::integral_constant<int, 1> kOne;
  constexpr std::integral_constant<int, sizeof(T) == 8 ? 1 : 4> kFour;
  const auto lies = [&](const void* array) { return reinterpret_cast<uintptr_t>(array) % (kFour * sizeof(T)) == 0; };
  const auto lie = [&](auto... arrays) { return (lies(arrays) && ...); };
  const bool are_packs = p.sizes.hidden % kFour == 0 && lie(p.x, p.h0, p.c0, p.gate_gain, p.gate_bias, p.cell_gain) &&
                         lie(p.cell_bias, p.zoneout_mask, p.recurrent_mask, p.y, p.cy, p.dy, p.dx, p.da);
  are_packs ? function(kFour) : function(kOne);
}

template <class Real, class... Arguments>
using StepKernel = void (*)(LayerNormLstmParams<Real>, int, Arguments...);

// `held`: for as many threads as there are packs of V units.
template <int V, class Real, class... Arguments>
void launch_step(const char* name, StepKernel<Real, Arguments...> held, StepKernel<Real, Arguments...> any,
                 const LayerNormLstmParams<Real>& params, cudaStream_t stream, int s, Arguments... arguments) {
  constexpr int kMost = kMostStepThreads<Real, V>;
  constexpr int kFew = 64;  // without the sums of normalisation, which are a block's
  const int hidden = params.sizes.hidden;
  const int wanted = static_cast<int>(ceil_div(hidden / V, 32)) * 32;
  const int threads = std::min(params.normalizes ? kMost : kFew, wanted);
  const int blocks = params.normalizes ? 1 : static_cast<int>(ceil_div(wanted, threads));
  const bool is_held = threads * blocks >= wanted;
  const StepKernel<Real, Arguments...> kernel = is_held ? held : any;
  const int bytes = is_held ? 0 : static_cast<int>(layer_norm_lstm_step_bytes<Real>(hidden));
  if (bytes > 40 << 10) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const dim3 grid(static_cast<unsigned>(params.sizes.batch), static_cast<unsigned>(blocks));
  kernel<<<grid, static_cast<unsigned>(threads), bytes, stream>>>(params, s, arguments...);
  require_launch(cudaGetLastError(), name);
}

}  // namespace

template <class Real>
void run_layer_norm_lstm_forward_step(prnnDataType_t type, const LayerNormLstmParams<Real>& params, int s,
                                      const Real* product, Real* c, void* masked, cudaStream_t stream) {
  with_element<Real>(type, [&](auto t) {
    using T = decltype(t);
    with_pack<T>(params, [&](auto pack) {
      constexpr int V = pack;
      launch_step<V>("forward_step", forward_step<T, Real, V, true>, forward_step<T, Real, V, false>, params, stream, s,
                     product, c, masked);
    });
  });
}

template <class Real>
void run_layer_norm_lstm_backward_step(prnnDataType_t type, const LayerNormLstmParams<Real>& params, int s,
                                       const Real* product, int parts, Real* direct, Real* dc, cudaStream_t stream) {
  with_element<Real>(type, [&](auto t) {
    using T = decltype(t);
    with_pack<T>(params, [&](auto pack) {
      constexpr int V = pack;
      launch_step<V>("backward_step", backward_step<T, Real, V, true>, backward_step<T, Real, V, false>, params, stream,
                     s, product, parts, direct, dc);
    });
  });
}

template <class Real>
void mask_layer_norm_lstm_state(prnnDataType_t type, int64_t elements, const void* from, const void* mask, void* to,
                                cudaStream_t stream) {
  with_element<Real>(type, [&](auto t) {
    mask_state<decltype(t), Real><<<blocks_for(elements), kThreads, 0, stream>>>(elements, from, mask, to);
  });
  require_launch(cudaGetLastError(), "mask_state");
}

template <class Real>
void load_layer_norm_lstm_state(prnnDataType_t type, int64_t elements, const void* from, Real* to,
                                cudaStream_t stream) {
  with_element<Real>(type, [&](auto t) {
    load_state<decltype(t), Real><<<blocks_for(elements), kThreads, 0, stream>>>(elements, from, to);
  });
  require_launch(cudaGetLastError(), "load_state");
}

template <class Real>
void store_layer_norm_lstm_initial(prnnDataType_t type, const LayerNormLstmParams<Real>& params, const Real* product,
                                   int parts, const Real* direct, const Real* dc, cudaStream_t stream) {
  const int64_t elements = int64_t{params.sizes.batch} * params.sizes.hidden;
  with_element<Real>(type, [&](auto t) {
    store_initial<decltype(t), Real><<<blocks_for(elements), kThreads, 0, stream>>>(params, product, parts, direct, dc);
  });
  require_launch(cudaGetLastError(), "store_initial");
}

template <class Real>
void gather_layer_norm_lstm_states(prnnDataType_t type, const LayerNormLstmParams<Real>& params, void* h_prev,
                                   cudaStream_t stream) {
  const int64_t elements = int64_t{params.sizes.steps} * params.sizes.batch * params.sizes.hidden;
  with_element<Real>(type, [&](auto t) {
    gather_states<decltype(t), Real><<<blocks_for(elements), kThreads, 0, stream>>>(params, h_prev);
  });
  require_launch(cudaGetLastError(), "gather_states");
}

template <class Real>
void store_layer_norm_lstm_sums(prnnDataType_t type, const LayerNormLstmParams<Real>& params, int64_t partials,
                                int first, int count, void* out, cudaStream_t stream) {
  const int64_t elements = int64_t{count} * params.sizes.hidden;
  with_element<Real>(type, [&](auto t) {
    store_sums<decltype(t), Real><<<blocks_for(elements), kThreads, 0, stream>>>(params, partials, first, count, out);
  });
  require_launch(cudaGetLastError(), "store_sums");
}

#define PRNN_INSTANTIATE(Real)                                                                                         \
  template void run_layer_norm_lstm_forward_step(prnnDataType_t, const LayerNormLstmParams<Real>&, int, const Real*,   \
                                                 Real*, void*, cudaStream_t);                                          \
  template void run_layer_norm_lstm_backward_step(prnnDataType_t, const LayerNormLstmParams<Real>&, int, const Real*,  \
                                                  int, Real*, Real*, cudaStream_t);                                    \
  template void mask_layer_norm_lstm_state<Real>(prnnDataType_t, int64_t, const void*, const void*, void*,             \
                                                 cudaStream_t);                                                        \
  template void load_layer_norm_lstm_state(prnnDataType_t, int64_t, const void*, Real*, cudaStream_t);                 \
  template void store_layer_norm_lstm_initial(prnnDataType_t, const LayerNormLstmParams<Real>&, const Real*, int,      \
                                              const Real*, const Real*, cudaStream_t);                                 \
  template void gather_layer_norm_lstm_states(prnnDataType_t, const LayerNormLstmParams<Real>&, void*, cudaStream_t);  \
  template void store_layer_norm_lstm_sums(prnnDataType_t, const LayerNormLstmParams<Real>&, int64_t, int, int, void*, \
                                           cudaStream_t);
PRNN_INSTANTIATE(float)
PRNN_INSTANTIATE(double)
#undef PRNN_INSTANTIATE

}  // namespace prnn
