"""The products of the input of an LSTM that takes gates as a torch operator: schema, fake kernel, autograd.

layer_norm_lstm_input(input, weight) -> x, (T, N, I) and (4 H, I) to (T, N, 4 H), for float32. On a GPU it follows the
switch that the products of the recurrence follow, which need not agree with that of torch's own matrix products; on a
CPU the gradient of the weight is summed over all timesteps to float32's accuracy, which torch's product does not do on
every processor.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from prnn._ops._handles import device_of, handle
from prnn._ops._layer import BACKENDS, MODES, Config, Layer, layer
from prnn._ops._operator import differentiate, operator, with_own_node, without_dispatch

__all__ = ["input_products"]


def _layer_of(x: Tensor) -> Layer:
    """A layer that takes x, of which the library looks at H, the type and the precision alone."""
    width = x.size(-1)
    config = Config(MODES["LSTM"], width // 4, 0, 1, False, 0.0, BACKENDS["best"], gates_input=True)
    found = layer(config, x.dtype, width, x.device)
    found.follow_precision()
    return found


def _fake(input: Tensor, weight: Tensor) -> Tensor:
    return input.new_empty(*input.shape[:2], weight.shape[0])


def _kernel(input: Tensor, weight: Tensor) -> Tensor:
    features = input.shape[2]  # parameters may have been replaced, or converted one by one
    if weight.dim() != 2 or weight.shape[0] % 4 != 0 or weight.shape[1] != features:
        raise ValueError(f"weight_ih has shape {tuple(weight.shape)}; it must be (4 * hidden_size, {features})")
    if weight.dtype is not input.dtype or weight.device != input.device:
        raise ValueError(
            f"weight_ih is {weight.dtype} on {weight.device}, but input is {input.dtype} on {input.device}"
        )
    input, weight = input.contiguous(), weight.contiguous()
    x = input.new_empty(*input.shape[:2], weight.shape[0])
    if x.numel() == 0:
        return x
    sizes = (x.shape[0] * x.shape[1], input.shape[2])
    addresses = (input.data_ptr(), weight.data_ptr(), x.data_ptr())
    with device_of(x):
        _layer_of(x).rnn.gates_input_forward(handle(x.device), *sizes, *addresses)
    return x


def _backward_fake(
    dx: Tensor, input: Tensor, weight: Tensor, wants_input: bool, wants_weight: bool
) -> tuple[Tensor, Tensor]:
    """Empty tensors for what is not wanted."""
    return (
        input.new_empty(input.shape if wants_input else 0),
        weight.new_empty(weight.shape if wants_weight else 0),
    )


def _backward_kernel(
    dx: Tensor, input: Tensor, weight: Tensor, wants_input: bool, wants_weight: bool
) -> tuple[Tensor, Tensor]:
    dx, input, weight = dx.contiguous(), input.contiguous(), weight.contiguous()
    gradients = _backward_fake(dx, input, weight, wants_input, wants_weight)
    if dx.numel() == 0:
        return gradients[0].zero_(), gradients[1].zero_()
    addresses = [tensor.data_ptr() for tensor in (input, weight, dx)]
    addresses += [tensor.data_ptr() if tensor.numel() else 0 for tensor in gradients]
    sizes = (dx.shape[0] * dx.shape[1], input.shape[2])
    with device_of(dx):
        _layer_of(dx).rnn.gates_input_backward(handle(dx.device), *sizes, *addresses)
    return gradients


layer_norm_lstm_input = operator("layer_norm_lstm_input(Tensor input, Tensor weight) -> Tensor", _kernel, _fake)
layer_norm_lstm_input_backward = operator(
    "layer_norm_lstm_input_backward(Tensor dx, Tensor input, Tensor weight, bool wants_input, bool wants_weight) -> "
    "(Tensor dinput, Tensor dweight)",
    _backward_kernel,
    _backward_fake,
)
_backward = without_dispatch(layer_norm_lstm_input_backward, 1)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
    wanted = ctx.needs_input_grad
    results = _backward(dx, *ctx.saved_tensors, *wanted)
    return tuple(result if want else None for result, want in zip(results, wanted, strict=True))


differentiate(layer_norm_lstm_input, _setup, _gradients, layer_norm_lstm_input_backward)
_call = with_own_node(layer_norm_lstm_input, _kernel, _setup, _gradients)


def _wants_own(input: Tensor) -> bool:
    return input.dtype == torch.float32 and input.device.type in ("cpu", "cuda")


def input_products(input: Tensor, weight: Tensor) -> Tensor:
    """functional.linear(input, weight) of input (T, N, I)."""
    products: Tensor = _call(input, weight) if _wants_own(input) else functional.linear(input, weight)
    return products
