// prnnReduceCosts and its gradient, for CTC, RNN-T and their kin alike.
#include "core/reduce_costs.h"

#include <cmath>

#include "core/loss_checks.h"

namespace prnn {
namespace {

Reduction checked_reduction(prnnHandle_t handle, const prnnDataType_t& type, int64_t batch, double scale,
                            const int* lengths) {
  require_handle(handle);
  require_known_type(type);
  require_in_range(batch, 1, std::numeric_limits<int>::max() - 1, "batch");
  if (!std::isfinite(scale)) fail(PRNN_STATUS_BAD_PARAM, "scale is %g; it must be finite", scale);
  return {batch, scale, lengths};
}

template <class Real>
void reduce(prnnHandle_t handle, const Reduction& reduction, const void* costs, void* loss) {
  const Real* from = static_cast<const Real*>(costs);
  Real* to = static_cast<Real*>(loss);
  if (!handle->is_cpu()) return cuda_reduce_costs(handle, reduction, from, to);
  double sum = 0;
  for (int64_t n = 0; n < reduction.batch; ++n) sum += reduction.weight(n) * from[n];
  *to = static_cast<Real>(sum);
}

template <class Real>
void reduce_backward(prnnHandle_t handle, const Reduction& reduction, const void* loss_gradient, void* cost_gradients) {
  const Real* from = static_cast<const Real*>(loss_gradient);
  Real* to = static_cast<Real*>(cost_gradients);
  if (!handle->is_cpu()) return cuda_reduce_costs_backward(handle, reduction, from, to);
  for (int64_t n = 0; n < reduction.batch; ++n) to[n] = static_cast<Real>(reduction.weight(n) * *from);
}

}  // namespace
}  // namespace prnn

using namespace prnn;

extern "C" prnnStatus_t prnnReduceCosts(prnnHandle_t handle, prnnDataType_t dataType, int64_t batch, double scale,
                                        const int* lengths, const void* costs, void* loss) {
  return guarded(handle, [&] {
    const Reduction reduction = checked_reduction(handle, dataType, batch, scale, lengths);
    require_not_null(costs, "costs");
    require_not_null(loss, "loss");
    if (dataType == PRNN_DATA_DOUBLE)
      reduce<double>(handle, reduction, costs, loss);
    else
      reduce<float>(handle, reduction, costs, loss);
  });
}

extern "C" prnnStatus_t prnnReduceCostsBackward(prnnHandle_t handle, prnnDataType_t dataType, int64_t batch,
                                                double scale, const int* lengths, const void* lossGradient,
                                                void* costGradients) {
  return guarded(handle, [&] {
    const Reduction reduction = checked_reduction(handle, dataType, batch, scale, lengths);
    require_not_null(lossGradient, "lossGradient");
    require_not_null(costGradients, "costGradients");
    if (dataType == PRNN_DATA_DOUBLE)
      reduce_backward<double>(handle, reduction, lossGradient, costGradients);
    else
      reduce_backward<float>(handle, reduction, lossGradient, costGradients);
  });
}
