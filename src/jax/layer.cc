#include "layer.h"

namespace prnn_jax {
namespace {

void describe(prnnTensorDescriptor_t descriptor, prnnDataType_t type, int first, int second, int third) {
  const int dims[] = {first, second, third};
  const int64_t row = int64_t{second} * third;
  const int strides[] = {static_cast<int>(row), third, 1};
  if (row != strides[0]) throw Failure(PRNN_STATUS_NOT_SUPPORTED, "a timestep has more than 2^31 - 1 elements");
  check(prnnSetTensorNdDescriptor(descriptor, type, 3, dims, strides));
}

}  // namespace

LayerCall::LayerCall(prnnHandle_t handle, const Attributes& attributes, const Array& x, const Array& weights,
                     const LayerInputs& inputs)
    : handle_(handle),
      in_(inputs),
      has_cells_(attribute<bool>(attributes, "has_cells")),
      steps_(dimension_from_end(x, 3)) {
  const auto integer = [&](const char* name) { return static_cast<int>(attribute<int64_t>(attributes, name)); };
  const prnnDataType_t type = type_of(x);
  const int batch = dimension_from_end(x, 2), input = dimension_from_end(x, 1);
  const int hidden = integer("hidden_size"), layers = integer("layers");
  const int directions = integer("directions"), heads = integer("heads");
  const int projection = integer("proj_size");
  check(prnnSetRNNDescriptor(rnn_, hidden, layers, nullptr, PRNN_LINEAR_INPUT,
                             directions == 2 ? PRNN_BIDIRECTIONAL : PRNN_UNIDIRECTIONAL,
                             static_cast<prnnRNNMode_t>(integer("mode")), type));
  check(prnnSetRNNProjectionSize(rnn_, projection));
  check(prnnSetRNNHeads(rnn_, heads));
  check(prnnSetRNNBackend(rnn_, PRNN_PERSISTENT_BACKEND));
  check(prnnSetRNNMatrixMathType(
      rnn_, attribute<bool>(attributes, "allow_tf32") ? PRNN_TENSOR_OP_MATH_ALLOW_CONVERSION : PRNN_DEFAULT_MATH));
  const prnnRNNMasks_t masks{in_.recurrent_mask, in_.zoneout_mask, attribute<double>(attributes, "zoneout")};
  check(prnnSetRNNMasks(rnn_, &masks));
  const int states = layers * directions * heads, state = projection > 0 ? projection : hidden / heads;
  describe(x_, type, batch, input, 1);
  describe(y_, type, batch, directions * heads * state, 1);
  describe(h_, type, states, batch, state);
  describe(c_, type, states, batch, hidden / heads);
  // The hidden size divides the number of elements, which may be too large for one dimension.
  const int dims[] = {hidden, static_cast<int>(weights.element_count() / static_cast<size_t>(hidden)), 1};
  check(prnnSetFilterNdDescriptor(weights_, type, PRNN_TENSOR_NCHW, 3, dims));
  xs_.assign(static_cast<size_t>(steps_), x_);
  ys_.assign(static_cast<size_t>(steps_), y_);
}

void LayerCall::set_extras(void* cells, const void* dcells, void* dreset_hx, void* dreset_cx) {
  const prnnRNNExtras_t extras{in_.reset, cells, dcells, in_.reset_hx, in_.reset_cx, dreset_hx, dreset_cx};
  check(prnnSetRNNExtras(rnn_, &extras));
}

void LayerCall::forward(void* y, void* hy, void* cy, void* cells, Space workspace, Space reserve) {
  set_extras(cells, nullptr, nullptr, nullptr);
  if (reserve.bytes == 0) {
    check(prnnRNNForwardInference(handle_, rnn_, steps_, xs_.data(), in_.x, h_, in_.hx, c_, in_.cx, weights_,
                                  in_.weights, ys_.data(), y, h_, hy, c_, cy, workspace.data, workspace.bytes),
          handle_);
    return;
  }
  check(prnnRNNForwardTraining(handle_, rnn_, steps_, xs_.data(), in_.x, h_, in_.hx, c_, in_.cx, weights_, in_.weights,
                               ys_.data(), y, h_, hy, c_, cy, workspace.data, workspace.bytes, reserve.data,
                               reserve.bytes),
        handle_);
}

void LayerCall::backward(const Gradients& gradients, const Wanted& wanted, Space workspace, Space reserve) {
  // Backward calls look at `cells` no further than whether it is NULL.
  set_extras(has_cells_ ? reserve.data : nullptr, gradients.dcells, wanted.dreset_hx, wanted.dreset_cx);
  check(prnnRNNBackwardData(handle_, rnn_, steps_, ys_.data(), gradients.y, ys_.data(), gradients.dy, h_, gradients.dhy,
                            c_, gradients.dcy, weights_, in_.weights, h_, in_.hx, c_, in_.cx, xs_.data(), wanted.dx, h_,
                            wanted.dhx, c_, wanted.dcx, workspace.data, workspace.bytes, reserve.data, reserve.bytes),
        handle_);
  if (wanted.dweights == nullptr) return;
  check(prnnRNNBackwardWeights(handle_, rnn_, steps_, xs_.data(), in_.x, h_, in_.hx, ys_.data(), gradients.y,
                               workspace.data, workspace.bytes, weights_, wanted.dweights, reserve.data, reserve.bytes),
        handle_);
}

}  // namespace prnn_jax
