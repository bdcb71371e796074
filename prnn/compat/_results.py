"""Results as the originals give them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _WithGradientOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, source: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, gradients[0]


def with_gradient_of(value: Tensor, source: Tensor) -> Tensor:
    """`value`, whose gradient goes to `source`, of the same shape."""
    result: Tensor = _WithGradientOf.apply(value.detach(), source)  # type: ignore[no-untyped-call]
    return result


def write_costs_and_gradients(
    loss: Callable[[Tensor], Tensor], activations: Tensor, costs: Tensor, gradients: Tensor
) -> None:
    """Writes loss(activations), (N,), to costs and the gradient of its sum to gradients, unless these are empty."""
    wanted = gradients.numel() > 0
    activations = activations.detach().requires_grad_(wanted)
    with torch.enable_grad():
        found = loss(activations)
    costs.copy_(found.detach().reshape(costs.shape))
    if wanted:
        gradients.copy_(torch.autograd.grad(found.sum(), activations)[0])
