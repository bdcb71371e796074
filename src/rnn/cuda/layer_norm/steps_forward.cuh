// A timestep of the forward pass around its matrix product: a block for each sequence, or without normalisation
// several.
#pragma once

#include "rnn/cuda/layer_norm/steps_common.cuh"

namespace prnn {

// A step that the sequence does not have.
template <class T, class Real, int V>
__device__ void pass_by_forward(const LayerNormLstmParams<Real>& p, int s, int n, const Real* c, void* masked) {
  const int H = p.sizes.hidden;
  const int64_t row = p.row_of(s) + n, state = int64_t{n} * H;
  const void* const states = s > 0 ? p.y : p.h0;
  const int64_t state_before = s > 0 ? (p.row_of(s - 1) + n) * H : state;
  const OwnUnits<V> own;
  for (int first = own.first; first < H; first += own.stride) {
    for (int u = first; u < first + V; ++u) {
      const Real h = states != nullptr ? get<T, Real>(states, state_before + u) : 0;
      put<T>(p.y, row * H + u, h);
      if (masked != nullptr) put<T>(masked, state + u, get<T, Real>(p.recurrent_mask, state + u) * h);
      if (s == p.sizes.steps - 1 && p.cy != nullptr) put<T>(p.cy, state + u, c[state + u]);
    }
  }
}

template <class T, class Real, int V>
struct ForwardLoads {
  GateSums<T, Real, V> sums;
  Pack<Real, V> product[4], cell_before;  // R (m * h_{t-1}), c_{t-1}
  Pack<T, V> cell_gain, cell_bias, zoneout, before, mask;

  ForwardLoads() = default;
  __device__ ForwardLoads(const LayerNormLstmParams<Real>& p, int s, const Real* products, const Real* c, bool masks,
                          int u)
      : sums(p, p.row_of(s) + blockIdx.x, u) {
    const int H = p.sizes.hidden;
    const int64_t state = int64_t{blockIdx.x} * H, row = p.row_of(s) * H + state;
#pragma unroll
    for (int g = 0; g < 4; ++g) product[g] = load_pack<Real, V>(products, state * 4 + g * H + u);
    cell_before = load_pack<Real, V>(c, state + u);
    cell_gain = load_pack_if<T, V>(p.cell_gain != nullptr, p.cell_gain, u, 1);
    cell_bias = load_pack_if<T, V>(p.cell_bias != nullptr, p.cell_bias, u, 0);
    zoneout = load_pack_if<T, V>(p.zoneout_mask != nullptr, p.zoneout_mask, row + u, 0);
    const bool zones = p.zoneout_mask != nullptr || p.zoneout != 0;
    const void* const states = s > 0 ? p.y : p.h0;
    before = load_pack_if<T, V>(zones && states != nullptr, states, (s > 0 ? p.row_of(s - 1) * H : 0) + state + u, 0);
    mask = load_pack_if<T, V>(masks, p.recurrent_mask, state + u, 0);
  }
};

template <class Real>
struct ForwardKept {
  Real a[4], cell, output_gate;
};

template <class T, class Real, int V, bool IS_HELD>
__global__ void __launch_bounds__(kMostStepThreads<Real, V>, 1)
    forward_step(LayerNormLstmParams<Real> p, int s, const Real* product, Real* c, void* masked) {
  using Loads = ForwardLoads<T, Real, V>;
  using Kept = ForwardKept<Real>;
  using Group = Kept[V];
  __shared__ SumsOfWarps<Real> of_gates, of_cells;
  const int H = p.sizes.hidden, n = blockIdx.x;
  const int64_t row = p.row_of(s) + n, state = int64_t{n} * H;
  const auto load = [&](int u) { return Loads(p, s, product, c, masked != nullptr, u); };
  Units<Loads, Kept, V, IS_HELD, decltype(load)> units(H, load);
  if (p.timestep_of(s) >= p.length_of(n)) {
    pass_by_forward<T, Real, V>(p, s, n, c, masked);
    return;
  }

  units.for_each([&](int, const Loads& loads, Group& kept) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        kept[v].a[g] = loads.product[g].value[v] + (p.products ? 0 : loads.sums.input(g, v));
      }
    }
  });
  BlockMoments<Real> gates{0, 1}, cells{0, 1};
  if (p.normalizes) {
    gates = moments_over_block<4>(of_gates, units, H, p.epsilon, [](const Kept& kept, int g) { return kept.a[g]; });
  }
  units.for_each([&](int, const Loads& loads, Group& kept) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      Real value[4];
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        const Real normalized = (kept[v].a[g] - gates.mean) * gates.deviation;
        value[g] = loads.sums.of(p.products, g, v, normalized);
        kept[v].a[g] = normalized;
      }
      kept[v].cell = logistic(value[1]) * loads.cell_before.value[v] + logistic(value[0]) * tangent<T>(value[2]);
      kept[v].output_gate = logistic(value[3]);
    }
  });
  if (p.normalizes) {
    cells = moments_over_block<1>(of_cells, units, H, p.epsilon, [](const Kept& kept, int) { return kept.cell; });
  }
  units.for_each([&](int u, const Loads& loads, Group& kept) {
    Real normalized[V], carried[V], h[V], masked_h[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      normalized[v] = (kept[v].cell - cells.mean) * cells.deviation;
      const Real of_h = loads.cell_gain.template get<Real>(v) * normalized[v] + loads.cell_bias.template get<Real>(v);
      carried[v] = p.products ? kept[v].cell : of_h;
      const Real zoneout = p.zoneout_mask != nullptr ? loads.zoneout.template get<Real>(v) : p.zoneout;
      h[v] = zone_out(zoneout, loads.before.template get<Real>(v), kept[v].output_gate * tangent<T>(of_h));
      masked_h[v] = loads.mask.template get<Real>(v) * h[v];
    }
    store_pack<T>(p.y, row * H + u, h);
    if (masked != nullptr) store_pack<T>(masked, state + u, masked_h);
    store_pack<Real>(c, state + u, carried);
    if (s == p.sizes.steps - 1 && p.cy != nullptr) store_pack<T>(p.cy, state + u, carried);
    if (p.gates == nullptr) return;
#pragma unroll
    for (int v = 0; v < V; ++v) store_pack<T>(p.gates, (row * H + u + v) * 4, kept[v].a);
    store_pack<T>(p.cells, row * H + u, normalized);
  });
  if (threadIdx.x == 0 && blockIdx.y == 0 && p.stats != nullptr) {
    p.stats[row * 4] = gates.deviation;
    p.stats[row * 4 + 1] = cells.mean;
    p.stats[row * 4 + 2] = cells.deviation;
  }
}

}  // namespace prnn
