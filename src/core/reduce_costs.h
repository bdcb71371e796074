// One number of the costs of a batch, prnnLossReduction_t, as the losses' code takes it, on either device.
#pragma once

#include <cstdint>

#include "prnn_losses.h"

namespace prnn {

// The loss to make of a batch's costs. `loss` is NULL where none is wanted.
template <class Real>
struct ReducedCosts {
  int64_t batch;
  double scale;
  const int* lengths;  // may be NULL
  const Real* costs;
  Real* loss;

  constexpr double term(int64_t n) const {
    return (lengths && lengths[n] > 1 ? scale / lengths[n] : scale) * static_cast<double>(costs[n]);
  }
};

// Options: those of a loss.
template <class Real, class Options>
ReducedCosts<Real> reduced_costs(const Options& o, const void* costs) {
  if (!o.reduction) return {};
  const prnnLossReduction_t& r = *o.reduction;
  return {o.batch, r.scale, r.lengths, static_cast<const Real*>(costs), static_cast<Real*>(r.loss)};
}

// On the host.
template <class Real>
void reduce_costs(const ReducedCosts<Real>& reduced) {
  if (!reduced.loss) return;
  double sum = 0;
  for (int64_t n = 0; n < reduced.batch; ++n) sum += reduced.term(n);
  *reduced.loss = static_cast<Real>(sum);
}

// The gradient of each cost, from what the caller of a backward pass gives.
template <class Real>
struct CostGradients {
  const Real* given;   // {N}, or {1} if reduced; NULL: ones
  const int* lengths;  // may be NULL
  Real scale;
  bool reduced;

  constexpr Real operator()(int64_t n) const {
    if (!reduced) return given ? given[n] : Real(1);
    const Real weight = lengths && lengths[n] > 1 ? scale / static_cast<Real>(lengths[n]) : scale;
    return given ? weight * *given : weight;
  }
};

template <class Real, class Options>
CostGradients<Real> cost_gradients(const Options& o, const void* given) {
  const Real* gradients = static_cast<const Real*>(given);
  if (!o.reduction) return {gradients, nullptr, Real(1), false};
  return {gradients, o.reduction->lengths, static_cast<Real>(o.reduction->scale), true};
}

}  // namespace prnn
