"""Defines operators in torch.ops.prnn, with torch.library.Library, whose calls cost less than custom_op's."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("prnn", "FRAGMENT")


def operator(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """The operator of a schema, with one kernel for CPU and CUDA and a fake one. Not differentiable."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        _library.impl(name, kernel, key)
    torch.library.register_fake(f"prnn::{name}", fake, lib=_library)
    return getattr(torch.ops.prnn, name).default


def differentiate(
    forward: Callable[..., Any],
    setup: Callable[[Any, tuple[Any, ...], Any], None],
    gradients: Callable[..., tuple[Tensor | None, ...]],
    backward: Callable[..., Any],
) -> None:
    """Gives an operator its derivative, and has that of its `backward` operator, which `gradients` calls, fail with a
    sentence. setup(ctx, inputs, outputs) and gradients(ctx, *output_gradients): see torch.autograd.Function."""
    name = forward._schema.name.removeprefix("prnn::")  # type: ignore[attr-defined]

    def refuse(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError(f"{name} can be differentiated once; its gradient has no gradient (create_graph=True)")

    _register(forward, setup, gradients)
    _register(backward, lambda ctx, inputs, outputs: None, refuse)


def _register(op: Any, setup: Callable[..., None], gradients: Callable[..., Any]) -> None:
    def below(*arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op(*arguments)

    def forward(ctx: Any, *arguments: Any) -> Any:  # one with setup_context would look up its own signature each time
        outputs = below(*arguments)
        setup(ctx, arguments, outputs)
        return outputs

    members = {"forward": staticmethod(forward), "backward": staticmethod(gradients)}
    name = op._schema.name.removeprefix("prnn::")
    function = type(f"{name}_function", (torch.autograd.Function,), members)

    def autograd(*arguments: Any) -> Any:
        wanted = torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments)
        return function.apply(*arguments) if wanted else below(*arguments)  # type: ignore[attr-defined]

    _library.impl(name, autograd, "Autograd")
