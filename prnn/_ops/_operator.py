"""Defines operators in torch.ops.prnn, with torch.library.Library, whose calls cost less than custom_op's.

A call through the dispatcher still takes some 25 microseconds for a differentiable operator, as long as the launches of
a small loss. `differentiate` therefore returns a function that runs the kernel itself where nothing can tell the
difference: on plain tensors that nobody traces or transforms.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("prnn", "FRAGMENT")
_kernels: dict[str, Callable[..., Any]] = {}


def operator(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """The operator of a schema, with one kernel for CPU and CUDA and a fake one. Not differentiable."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        _library.impl(name, kernel, key)
    torch.library.register_fake(f"prnn::{name}", fake, lib=_library)
    _kernels[name] = kernel
    return getattr(torch.ops.prnn, name).default


def differentiate(
    forward: Callable[..., Any],
    setup: Callable[[Any, tuple[Any, ...], Any], None],
    gradients: Callable[..., tuple[Tensor | None, ...]],
    backward: Callable[..., Any],
    direct: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Gives an operator its derivative, and has that of its `backward` operator, which `gradients` calls, fail with a
    sentence. setup(ctx, inputs, outputs) and gradients(ctx, *output_gradients): see torch.autograd.Function.

    Returns a function that does what the operator does, where possible by a call of the kernel, or of `direct`."""
    name = _name(forward)

    def refuse(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError(f"{name} can be differentiated once; its gradient has no gradient (create_graph=True)")

    _register(forward, setup, gradients)
    _register(backward, lambda ctx, inputs, outputs: None, refuse)
    return directly(forward, setup, gradients, direct or _kernels[name])


def directly(
    op: Callable[..., Any],
    setup: Callable[[Any, tuple[Any, ...], Any], None],
    gradients: Callable[..., tuple[Tensor | None, ...]],
    kernel: Callable[..., Any],
) -> Callable[..., Any]:
    """A function that does what a differentiable operator does, where possible by a call of `kernel`. setup and
    gradients as for `differentiate`. The first argument is the one that may want a gradient."""
    function = _function(_name(op), kernel, setup, gradients)
    # Function.apply also looks after functorch's tensors, of which there are none here.
    apply = super(torch.autograd.Function, function).apply  # type: ignore[misc]

    def call(*arguments: Any) -> Any:
        first = arguments[0]
        if not (type(first) in _PLAIN and _undisturbed()):
            return op(*arguments)
        if first.requires_grad and torch.is_grad_enabled():
            return apply(*arguments)
        return kernel(*arguments)

    return call


def without_dispatch(op: Callable[..., Any], kernel: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """For a backward operator: a function that calls `kernel`, by default its own, where that makes no difference,
    which with a graph of the gradients (create_graph=True) it does."""
    call_kernel = kernel or _kernels[_name(op)]

    def call(*arguments: Any) -> Any:
        plain = type(arguments[0]) in _PLAIN and not torch.is_grad_enabled() and _undisturbed()
        return call_kernel(*arguments) if plain else op(*arguments)

    return call


_PLAIN = (Tensor, torch.nn.Parameter)


def _undisturbed() -> bool:
    """Whether there is no torch.compile, fake tensor or other dispatch mode, functorch transform or jit trace."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
    )


def _name(op: Any) -> str:
    name: str = op._schema.name
    return name.removeprefix("prnn::")


def _function(
    name: str, kernel: Callable[..., Any], setup: Callable[..., None], gradients: Callable[..., Any]
) -> type[torch.autograd.Function]:
    def forward(ctx: Any, *arguments: Any) -> Any:  # one with setup_context would look up its own signature each time
        ctx.set_materialize_grads(False)  # zeros for outputs without a gradient, such as a reserve space
        outputs = kernel(*arguments)
        setup(ctx, arguments, outputs)
        return outputs

    def backward(ctx: Any, first: Tensor | None, *rest: Any) -> Any:
        if first is None:  # the only output that anybody differentiates
            return (None,) * len(ctx.needs_input_grad)
        return gradients(ctx, first, *rest)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(f"{name}_function", (torch.autograd.Function,), members)


def _register(op: Any, setup: Callable[..., None], gradients: Callable[..., Any]) -> None:
    def below(*arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op(*arguments)

    name = _name(op)
    function = _function(name, below, setup, gradients)

    def autograd(*arguments: Any) -> Any:
        wanted = torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments)
        return function.apply(*arguments) if wanted else below(*arguments)

    _library.impl(name, autograd, "Autograd")
