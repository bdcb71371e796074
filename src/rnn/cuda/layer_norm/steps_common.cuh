// Shared parts of the kernels of a timestep.
#pragma once

#include <cmath>
#include <type_traits>

#include "rnn/cuda/common/activations.cuh"
#include "rnn/cuda/common/element.cuh"
#include "rnn/cuda/common/exchange.cuh"
#include "rnn/cuda/common/step_io.cuh"
#include "rnn/cuda/layer_norm/params.h"

namespace prnn {

// Threads of a step's block at most, for which an SM has registers. V: units one after the other that a thread loads
// and stores at once.
template <class Real, int V>
constexpr int kMostStepThreads = sizeof(Real) == 8 || V > 1 ? 512 : 1024;
constexpr int kMostStepWarps = 32;

__device__ inline float logistic(float x) { return sigmoid(x); }
__device__ inline double logistic(double x) { return 1 / (1 + exp(-x)); }
template <class T>
__device__ float tangent(float x) {
  return hyperbolic_tangent<digits_of<T>()>(x);
}
template <class T>
__device__ double tangent(double x) {
  return tanh(x);
}

template <class T, class Real>
struct Convert {
  static __device__ Real to_real(T value) { return Element<T>::to_float(value); }
  static __device__ T from_real(Real value) { return Element<T>::from_float(value); }
};
template <class T>
struct Convert<T, T> {
  static __device__ T to_real(T value) { return value; }
  static __device__ T from_real(T value) { return value; }
};

template <class T, class Real>
__device__ Real get(const void* base, int64_t at) {
  return Convert<T, Real>::to_real(static_cast<const T*>(base)[at]);
}
template <class T, class Real>
__device__ void put(void* base, int64_t at, Real value) {
  static_cast<T*>(base)[at] = Convert<T, Real>::from_real(value);
}

// V elements one after the other, as they lie in memory: they are converted where they are used, for a conversion waits
// for its load, and with it every load behind a condition that follows.
template <class T, int V>
struct alignas(V * sizeof(T)) Pack {
  T value[V];

  template <class Real>
  __device__ Real get(int v) const {
    return Convert<T, Real>::to_real(value[v]);
  }
};

template <class T, int V>
__device__ Pack<T, V> load_pack(const void* base, int64_t at) {
  return *reinterpret_cast<const Pack<T, V>*>(static_cast<const T*>(base) + at);
}
// Loads from an array, or gives `otherwise` where there is none.
template <class T, int V>
__device__ Pack<T, V> load_pack_if(bool is_there, const void* base, int64_t at, float otherwise) {
  if (is_there) return load_pack<T, V>(base, at);
  using Real = std::conditional_t<sizeof(T) == 8, double, float>;
  Pack<T, V> pack;
#pragma unroll
  for (int v = 0; v < V; ++v) pack.value[v] = Convert<T, Real>::from_real(otherwise);
  return pack;
}
template <class T, int V, class Real>
__device__ void store_pack(void* base, int64_t at, const Real (&from)[V]) {
  Pack<T, V> pack;
#pragma unroll
  for (int v = 0; v < V; ++v) pack.value[v] = Convert<T, Real>::from_real(from[v]);
  *reinterpret_cast<Pack<T, V>*>(static_cast<T*>(base) + at) = pack;
}

// The parameters that turn LN(a) of units into the sums of their gates; and their input, which may be a part of a.
template <class T, class Real, int V>
struct GateSums {
  Pack<T, V> gains[4], biases[4], inputs[4];

  GateSums() = default;
  __device__ GateSums(const LayerNormLstmParams<Real>& p, int64_t row, int u) {
    const int H = p.sizes.hidden;
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      gains[g] = load_pack_if<T, V>(p.gate_gain != nullptr, p.gate_gain, g * H + u, 1);
      biases[g] = load_pack_if<T, V>(p.gate_bias != nullptr, p.gate_bias, g * H + u, 0);
      inputs[g] = load_pack<T, V>(p.x, (row * 4 + g) * H + u);
    }
  }
  __device__ Real input(int g, int v) const { return inputs[g].template get<Real>(v); }
  __device__ Real gain(int g, int v) const { return gains[g].template get<Real>(v); }
  __device__ Real of(bool products, int g, int v, Real normalized) const {
    const Real sum = gain(g, v) * normalized + biases[g].template get<Real>(v);
    return products ? sum + input(g, v) : sum;
  }
};

// The units of a sequence, blockIdx.x, that this thread has: V one after the other, of every `stride`.
template <int V>
struct OwnUnits {
  int first = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * V;
  int stride = static_cast<int>(gridDim.y * blockDim.x) * V;
};

// A thread's units, and what it knows of V of them: `Loads`, made from global memory by load(first unit), and `Kept`,
// of each, from one sum over the block to the next. IS_HELD: it has no more than V, loads everything before anything
// else, and keeps it in registers; else Kept lies in shared memory, and what a step between two sums needs is loaded
// again.
template <class Loads, class Kept, int V, bool IS_HELD, class Load>
class Units {
 public:
  __device__ Units(int hidden, const Load& load) : hidden_(hidden), load_(load) {
    if (IS_HELD && own_.first < hidden_) loads_ = load(own_.first);
  }

  // function(first unit, their Loads, their Kept)
  template <class Function>
  __device__ void for_each(const Function& function) {
    if constexpr (IS_HELD) {
      if (own_.first < hidden_) function(own_.first, loads_, kept_);
    } else {
      for (int u = own_.first; u < hidden_; u += own_.stride) function(u, load_(u), shared(u));
    }
  }
  // function(their Kept)
  template <class Function>
  __device__ void for_each_kept(const Function& function) {
    if constexpr (IS_HELD) {
      if (own_.first < hidden_) function(kept_);
    } else {
      for (int u = own_.first; u < hidden_; u += own_.stride) function(shared(u));
    }
  }
  // The values of the thread's first unit, which every warp's first thread has.
  __device__ const Kept& first() {
    if constexpr (IS_HELD) return kept_[0];
    return shared(own_.first)[0];
  }

  // How many a warp of the block has, where there is one block; none where there is no such warp.
  __device__ int of_warp(int warp) const {
    constexpr int kWarp = 32 * V;
    int units = max(min(hidden_ - warp * kWarp, kWarp), 0);
    for (int begin = own_.stride; !IS_HELD && begin < hidden_; begin += own_.stride) {
      units += max(min(hidden_ - begin - warp * kWarp, kWarp), 0);
    }
    return warp * kWarp < own_.stride ? units : 0;
  }

 private:
  using Group = Kept[V];

  static __device__ Group& shared(int u) {
    extern __shared__ double values[];
    return reinterpret_cast<Group*>(values)[u / V];
  }

  const OwnUnits<V> own_;
  const int hidden_;
  const Load& load_;
  Loads loads_;
  Group kept_;
};

// Where the block's warps leave two numbers each for a sum over the block; a place for every sum.
template <class Real>
using SumsOfWarps = Real[2][kMostStepWarps];

template <class Real>
__device__ void sum_over_warp(Real& first, Real& second) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    first += __shfl_xor_sync(kWholeWarp, first, step);
    second += __shfl_xor_sync(kWholeWarp, second, step);
  }
}

// Leaves a warp's two numbers, and gets those of warp `lane`, zeros where there is none.
template <class Real>
__device__ void exchange_over_block(SumsOfWarps<Real>& warps, Real& first, Real& second) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) warps[0][warp] = first, warps[1][warp] = second;
  __syncthreads();
  const bool has = lane < blockDim.x / 32;
  first = has ? warps[0][lane] : 0;
  second = has ? warps[1][lane] : 0;
}

// Sums over the block, in every thread; always in the same order.
template <class Real>
__device__ void sum_over_block(SumsOfWarps<Real>& warps, Real& first, Real& second) {
  sum_over_warp(first, second);
  exchange_over_block(warps, first, second);
  sum_over_warp(first, second);
}

template <class Real>
struct BlockMoments {
  Real mean, deviation;  // the latter's inverse
};

// The moments of value(Kept, i) with i < VALUES, over all units. Sums of a warp are around one of its values, and those
// of the block around the first warp's mean: a mean that is large costs no digits.
template <int VALUES, class Real, class Units, class Value>
__device__ BlockMoments<Real> moments_over_block(SumsOfWarps<Real>& warps, Units& units, int hidden, Real epsilon,
                                                 const Value& value) {
  const Real share = Real{1} / (VALUES * hidden), share_of_warp = Real{1} / (VALUES * units.of_warp(threadIdx.x / 32));
  const Real origin = __shfl_sync(kWholeWarp, value(units.first(), 0), 0);
  Real sum = 0, squares = 0;
  units.for_each_kept([&](const auto& group) {
    for (const auto& kept : group) {
#pragma unroll
      for (int i = 0; i < VALUES; ++i) {
        const Real off = value(kept, i) - origin;
        sum += off;
        squares += off * off;
      }
    }
  });
  sum_over_warp(sum, squares);
  Real mean = origin + sum * share_of_warp, around = squares - sum * sum * share_of_warp;
  exchange_over_block(warps, mean, around);
  const Real first = warps[0][0], off = mean - first, count = VALUES * units.of_warp(threadIdx.x % 32);
  Real total = count * off;
  around += count * off * off;
  sum_over_warp(total, around);
  return {first + total * share, 1 / sqrt(fmax(around - total * total * share, Real{0}) * share + epsilon)};
}

}  // namespace prnn
