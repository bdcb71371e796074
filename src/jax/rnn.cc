// The handlers of recurrent layers: prnnJaxRnnForward and prnnJaxRnnBackward.
//
// Both take x {T, N, I}, hx, cx, weights (packed), reset {T, N}, reset_hx, reset_cx, recurrent_mask and zoneout_mask.
// Forward gives y, hy, cy, cells, reserve and workspace: it is a training call if reserve has elements, else inference.
// Backward takes, further, y, reserve, dy, dhy, dcy, dcells and zeros of the weights' size; it gives dx, dhx, dcx,
// dreset_hx, dreset_cx, dweights (the zeros' memory), reserve (the input's memory, to which a backward pass writes) and
// workspace.
#include "layer.h"

namespace prnn_jax {
namespace {

LayerInputs inputs_of(const Array& x, const Array& hx, const Array& cx, const Array& weights, const Array& reset,
                      const Array& reset_hx, const Array& reset_cx, const Array& recurrent_mask,
                      const Array& zoneout_mask) {
  LayerInputs inputs;
  inputs.x = data(x);
  inputs.hx = data(hx);
  inputs.cx = data(cx);
  inputs.weights = data(weights);
  inputs.reset = static_cast<const unsigned char*>(data(reset));
  inputs.reset_hx = data(reset_hx);
  inputs.reset_cx = data(reset_cx);
  inputs.recurrent_mask = data(recurrent_mask);
  inputs.zoneout_mask = static_cast<const unsigned char*>(data(zoneout_mask));
  return inputs;
}

void run_forward(prnnHandle_t handle, Attributes layer, Array x, Array hx, Array cx, Array weights, Array reset,
                 Array reset_hx, Array reset_cx, Array recurrent_mask, Array zoneout_mask, Result y, Result hy,
                 Result cy, Result cells, Result reserve, Result workspace) {
  const LayerInputs inputs = inputs_of(x, hx, cx, weights, reset, reset_hx, reset_cx, recurrent_mask, zoneout_mask);
  LayerCall call(handle, layer, x, weights, inputs);
  call.forward(data(y), data(hy), data(cy), data(cells), space(workspace), space(reserve));
}

void run_backward(prnnHandle_t handle, Attributes layer, Array x, Array hx, Array cx, Array weights, Array reset,
                  Array reset_hx, Array reset_cx, Array recurrent_mask, Array zoneout_mask, Array y, Array /*reserve*/,
                  Array dy, Array dhy, Array dcy, Array dcells, Array /*zeros*/, Result dx, Result dhx, Result dcx,
                  Result dreset_hx, Result dreset_cx, Result dweights, Result reserve, Result workspace) {
  const LayerInputs inputs = inputs_of(x, hx, cx, weights, reset, reset_hx, reset_cx, recurrent_mask, zoneout_mask);
  LayerCall call(handle, layer, x, weights, inputs);
  call.backward({data(y), data(dy), data(dhy), data(dcy), data(dcells)},
                {data(dx), data(dhx), data(dcx), data(dreset_hx), data(dreset_cx), data(dweights)}, space(workspace),
                space(reserve));
}

}  // namespace
}  // namespace prnn_jax

PRNN_JAX_HANDLER(prnnJaxRnnForward, prnn_jax::run_forward);
PRNN_JAX_HANDLER(prnnJaxRnnBackward, prnn_jax::run_backward);
