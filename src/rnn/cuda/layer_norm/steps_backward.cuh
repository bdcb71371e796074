// A timestep of the backward pass around its matrix product: a block for each sequence, or without normalisation
// several.
#pragma once

#include "rnn/cuda/layer_norm/steps_common.cuh"
#include "rnn/plan/layer_norm.h"

namespace prnn {

// Additions in memory, which do not wait for what is there.
template <int V, class Real>
__device__ void add_in_memory(Real* to, const Real (&values)[V]) {
#pragma unroll
  for (int v = 0; v < V; ++v) atomicAdd(to + v, values[v]);
}
#if __CUDA_ARCH__ >= 900
__device__ inline void add_in_memory(float* to, const float (&values)[4]) {
  atomicAdd(reinterpret_cast<float4*>(to), float4{values[0], values[1], values[2], values[3]});
}
#endif

// To a row of the parameters' gradients over steps, of units from u on: no other thread has these, so that additions
// have one order.
template <int V, class Real>
__device__ void add_to_sums(const LayerNormLstmParams<Real>& p, int s, int row, int u, const Real (&values)[V]) {
  Real* const sums = p.sums + (int64_t{blockIdx.x} * kLayerNormLstmParameterRows + row) * p.sizes.hidden + u;
  if (s == p.sizes.steps - 1) {
    store_pack<Real>(sums, 0, values);
  } else {
    add_in_memory(sums, values);
  }
}

// Element `at` of the product.
template <class Real>
__device__ Real sum_of_parts(const LayerNormLstmParams<Real>& p, const Real* product, int parts, int64_t at) {
  Real sum = 0;
  for (int i = 0; i < parts; ++i) sum += product[int64_t{i} * p.sizes.batch * p.sizes.hidden + at];
  return sum;
}

template <class T, class Real, int V>
__device__ void pass_by_backward(const LayerNormLstmParams<Real>& p, int s, int n, const Real* product, int parts,
                                 Real* direct) {
  const int H = p.sizes.hidden;
  const int64_t row = p.row_of(s) + n, state = int64_t{n} * H;
  const OwnUnits<V> own;
  for (int first = own.first; first < H; first += own.stride) {
    for (int u = first; u < first + V; ++u) {
      const Real mask = p.recurrent_mask != nullptr ? get<T, Real>(p.recurrent_mask, state + u) : 1;
      const Real through = product != nullptr ? sum_of_parts(p, product, parts, state + u) : 0;
      direct[state + u] += get<T, Real>(p.dy, row * H + u) + mask * through;
      for (int g = 0; g < 4; ++g) {
        put<T, Real>(p.dx, (row * 4 + g) * H + u, 0);
        put<T, Real>(p.da, (row * 4 + g) * H + u, 0);
      }
      if (!p.normalizes || s < p.sizes.steps - 1) continue;
      for (int i = 0; i < kLayerNormLstmParameterRows; ++i) add_to_sums<1, Real>(p, s, i, u, {0});
    }
  }
}

template <class T, class Real, int V>
struct BackwardLoads {
  GateSums<T, Real, V> sums;
  Pack<T, 4> normalized[V];  // LN(a)
  Pack<T, V> cell, before;   // LN(c'), and c_{t-1} or the LN(c') that it was
  Pack<T, V> cell_gain, cell_bias, zoneout, mask, dy;
  Pack<Real, V> direct, carried;  // the gradient that went past R' da, and that of c_t
  Real through[V];                // R' da

  BackwardLoads() = default;
  __device__ BackwardLoads(const LayerNormLstmParams<Real>& p, int s, bool is_first, const Real* product, int parts,
                           const Real* directs, const Real* dc, int u)
      : sums(p, p.row_of(s) + blockIdx.x, u) {
    const int H = p.sizes.hidden;
    const int64_t state = int64_t{blockIdx.x} * H + u, at = p.row_of(s) * H + state;
#pragma unroll
    for (int v = 0; v < V; ++v) normalized[v] = load_pack<T, 4>(p.gates, (at + v) * 4);
    cell = load_pack<T, V>(p.cells, at);
    dy = load_pack<T, V>(p.dy, at);
    const void* const cells = is_first ? p.c0 : p.cells;
    before = load_pack_if<T, V>(cells != nullptr, cells, (is_first ? 0 : p.row_of(s - 1) * H) + state, 0);
    cell_gain = load_pack_if<T, V>(p.cell_gain != nullptr, p.cell_gain, u, 1);
    cell_bias = load_pack_if<T, V>(p.cell_bias != nullptr, p.cell_bias, u, 0);
    zoneout = load_pack_if<T, V>(p.zoneout_mask != nullptr, p.zoneout_mask, at, 0);
    mask = load_pack_if<T, V>(p.recurrent_mask != nullptr, p.recurrent_mask, state, 1);
    direct = load_pack<Real, V>(directs, state);
    carried = load_pack<Real, V>(dc, state);
    constexpr int kMostParts = sizeof(T) == 2 ? 4 : 1;
    Pack<Real, V> part[kMostParts];
#pragma unroll
    for (int i = 0; i < kMostParts; ++i) {
      const int64_t begin = int64_t{i} * p.sizes.batch * H;
      part[i] = load_pack_if<Real, V>(product != nullptr && i < parts, product, begin + state, 0);
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
      through[v] = 0;
#pragma unroll
      for (int i = 0; i < kMostParts; ++i) through[v] += part[i].value[v];
    }
  }
};

template <class Real>
struct BackwardKept {
  Real dv, du[4];  // gradients of the normalised cell and of the gates' sums
};

template <class T, class Real, int V, bool IS_HELD>
__global__ void __launch_bounds__(kMostStepThreads<Real, V>, 1)
    backward_step(LayerNormLstmParams<Real> p, int s, const Real* product, int parts, Real* direct, Real* dc) {
  using Loads = BackwardLoads<T, Real, V>;
  using Kept = BackwardKept<Real>;
  using Group = Kept[V];
  __shared__ SumsOfWarps<Real> of_cells, of_gates;
  const int H = p.sizes.hidden, n = blockIdx.x;
  const int64_t row = p.row_of(s) + n, state = int64_t{n} * H;
  const int length = p.length_of(n);
  if (p.timestep_of(s) >= length) {  // of which forward kept nothing
    pass_by_backward<T, Real, V>(p, s, n, product, parts, direct);
    return;
  }
  const bool is_first = p.is_first(s, length);
  const auto load = [&](int u) { return Loads(p, s, is_first, product, parts, direct, dc, u); };
  Units<Loads, Kept, V, IS_HELD, decltype(load)> units(H, load);
  const Real deviation = p.stats[row * 4], cell_deviation = p.stats[row * 4 + 2];
  const int64_t row_before = is_first ? row : p.row_of(s - 1) + n;
  const Real mean_before = p.stats[row_before * 4 + 1], deviation_before = p.stats[row_before * 4 + 2];
  const auto normalized = [](const Loads& loads, int g, int v) { return loads.normalized[v].template get<Real>(g); };
  const auto gate = [&](const Loads& loads, int g, int v) {
    return loads.sums.of(p.products, g, v, normalized(loads, g, v));
  };

  Real sum = 0, dot = 0;
  units.for_each([&](int u, const Loads& loads, Group& kept) {
    Real past[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const Real zoneout = p.zoneout_mask != nullptr ? loads.zoneout.template get<Real>(v) : p.zoneout;
      const Real cell = loads.cell.template get<Real>(v), gain = loads.cell_gain.template get<Real>(v);
      const Real of_h =
          loads.dy.template get<Real>(v) + loads.direct.value[v] + loads.mask.template get<Real>(v) * loads.through[v];
      past[v] = zoneout * of_h;
      const Real dh = of_h - past[v], o = logistic(gate(loads, 3, v));
      const Real squashed = tangent<T>(gain * cell + loads.cell_bias.template get<Real>(v));
      kept[v].dv = dh * o * (1 - squashed * squashed) + (p.products ? 0 : loads.carried.value[v]);
      kept[v].du[3] = dh * squashed * o * (1 - o);
      sum += gain * kept[v].dv;
      dot += gain * kept[v].dv * cell;
    }
    store_pack<Real>(direct, state + u, past);
  });
  if (p.normalizes) sum_over_block(of_cells, sum, dot);
  const Real cell_mean = p.normalizes ? sum / H : 0, cell_dot = p.normalizes ? dot / H : 0;

  sum = dot = 0;
  units.for_each([&](int u, const Loads& loads, Group& kept) {
    Real dc_before[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const Real cell = loads.cell.template get<Real>(v), gain = loads.cell_gain.template get<Real>(v);
      const Real kept_before = loads.before.template get<Real>(v);
      const Real before = is_first     ? kept_before
                          : p.products ? mean_before + kept_before / deviation_before
                                       : gain * kept_before + loads.cell_bias.template get<Real>(v);
      const Real of_c = cell_deviation * (gain * kept[v].dv - cell_mean - cell * cell_dot) +
                        (p.products ? loads.carried.value[v] : 0);
      const Real i = logistic(gate(loads, 0, v)), f = logistic(gate(loads, 1, v)), g = tangent<T>(gate(loads, 2, v));
      kept[v].du[0] = of_c * g * i * (1 - i);
      kept[v].du[1] = of_c * before * f * (1 - f);
      kept[v].du[2] = of_c * i * (1 - g * g);
      dc_before[v] = of_c * f;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const Real scaled = loads.sums.gain(k, v) * kept[v].du[k];
        sum += scaled;
        dot += scaled * normalized(loads, k, v);
      }
    }
    store_pack<Real>(dc, state + u, dc_before);
  });
  if (p.normalizes) sum_over_block(of_gates, sum, dot);
  const Real mean = p.normalizes ? sum / (4 * H) : 0, mean_dot = p.normalizes ? dot / (4 * H) : 0;

  units.for_each([&](int u, const Loads& loads, Group& kept) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Real du[V], da[V], of_gain[V];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        du[v] = kept[v].du[k];
        of_gain[v] = du[v] * normalized(loads, k, v);
        da[v] = deviation * (loads.sums.gain(k, v) * du[v] - mean - normalized(loads, k, v) * mean_dot);
      }
      store_pack<T>(p.da, (row * 4 + k) * H + u, da);
      if (p.products) store_pack<T>(p.dx, (row * 4 + k) * H + u, du);
      if (!p.normalizes) continue;
      add_to_sums(p, s, k, u, of_gain);
      add_to_sums(p, s, 4 + k, u, du);
    }
    if (!p.normalizes) return;
    Real of_gain[V], dv[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      dv[v] = kept[v].dv;
      of_gain[v] = dv[v] * loads.cell.template get<Real>(v);
    }
    add_to_sums(p, s, 8, u, of_gain);
    add_to_sums(p, s, 9, u, dv);
  });
}

}  // namespace prnn
