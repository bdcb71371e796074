"""Losses as operators: their derivative, and calls of their kernels without the dispatcher.

A call through the dispatcher takes some 25 microseconds for a differentiable operator, as long as the launches of a
small loss. `directly` therefore makes a function that runs a loss's kernel itself where nothing can tell the
difference: on plain tensors that nobody traces or transforms, and that have memory.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from prnn._ops._operator import apply_of, differentiate, is_plain, name_of
from prnn._ops._reduction import Reduction, reduce_costs, spread_gradient
from prnn._ops._torch_private import is_undisturbed

__all__ = ["differentiate_loss", "directly"]


def differentiate_loss(
    loss: Callable[..., Any], backward: Callable[..., Any], count: int
) -> Callable[..., tuple[Tensor | None, ...]]:
    """`differentiate` for a loss whose operator takes `count` tensors, numbers and, last, `keep`, and returns costs and
    a reserve space. backward takes the gradients of the costs, the tensors, the reserve space and the numbers, and
    returns the gradients of the first tensors. Returns `gradients`."""

    def setup(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor]) -> None:
        ctx.numbers = inputs[count:]
        ctx.save_for_backward(*inputs[:count], outputs[1])

    def gradients(ctx: Any, cost_gradients: Tensor, _: Tensor | None = None) -> tuple[Tensor | None, ...]:
        *numbers, keep = ctx.numbers
        if not keep:
            raise RuntimeError(f"prnn::{name_of(loss)} was called with keep=False; its gradient needs keep=True")
        tensors = ctx.saved_tensors
        results = backward(cost_gradients, *tensors, *numbers)
        if isinstance(results, Tensor):
            results = (results,)
        found = [None if tensor is None else result for tensor, result in zip(tensors, results, strict=False)]
        return *found, *(None,) * (count - len(found) + len(ctx.numbers))

    differentiate(loss, setup, gradients, backward)
    return gradients


def directly(
    op: Callable[..., Any],
    gradients: Callable[..., tuple[Tensor | None, ...]],
    kernel: Callable[..., Any],
    backward_kernel: Callable[..., Tensor],
) -> Callable[..., Tensor]:
    """A function of a reduction, or None, of the tensors that a loss's operator takes, and of its other arguments, of
    which the last is `keep`: it returns the operator's first output, the costs, or what the reduction makes of them.
    Where possible it calls the kernels, which do what the operators do and the reduction with it.

    gradients: as of `differentiate`; the first tensor is the one that may want a gradient, and `keep` says whether it
    does. `kernel` takes the tensors, the other arguments and the reduction, and returns costs or loss, the reserve, and
    what `backward_kernel` needs besides tensors. That takes the gradient of costs or loss, the tensors with the reserve
    as the last, and these needs."""

    def forward(ctx: Any, first: Tensor, tensors: tuple[Any, ...], rest: tuple[Any, ...], reduction: Any) -> Tensor:
        # One with setup_context would look up its own signature each time, and each argument costs time.
        loss: Tensor
        loss, reserve, needs = kernel(tensors, rest, reduction)
        ctx.made = needs, rest, reduction
        ctx.save_for_backward(*tensors, reserve)
        return loss

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        needs, rest, reduction = ctx.made
        # With a graph of the gradients (create_graph=True) the operator refuses.
        if not torch.is_grad_enabled() and is_undisturbed() and is_plain(gradient):
            return backward_kernel(gradient, ctx.saved_tensors, needs), None, None, None
        if reduction is not None:
            gradient = spread_gradient(gradient, reduction)
        ctx.numbers = rest
        return gradients(ctx, gradient)[0], None, None, None

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(f"{name_of(op)}_function", (torch.autograd.Function,), members)
    apply = apply_of(function)

    def call(reduction: Reduction | None, tensors: tuple[Any, ...], rest: tuple[Any, ...]) -> Tensor:
        loss: Tensor
        first = tensors[0]
        if not (is_undisturbed() and is_plain(first)):
            costs = op(*tensors, *rest)[0]
            loss = costs if reduction is None else reduce_costs(costs, reduction)
        elif rest[-1]:
            loss = apply(first, tensors, rest, reduction)
        else:
            loss = kernel(tensors, rest, reduction)[0]
        return loss

    return call
