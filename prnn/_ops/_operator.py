"""Defines operators in torch.ops.prnn, with torch.library.Library, whose calls cost less than custom_op's.

A call through the dispatcher still takes some 25 microseconds for a differentiable operator, as long as the launches of
a small loss. `directly` therefore makes a function that runs a loss's kernel itself where nothing can tell the
difference: on plain tensors that nobody traces or transforms, and that have memory.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from prnn._errors import NotSupportedError
from prnn._ops._reduction import Reduction, reduce_costs, spread_gradient
from prnn._ops._torch_private import (
    below_autograd,
    enable_single_level_autograd_function,
    forward_mode_is_on,
    in_functorch,
    is_batched,
    is_undisturbed,
    set_forward_mode,
)

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
) -> None:
    """Gives an operator its derivative, and has that of its `backward` operator, which `gradients` calls, fail with a
    sentence. setup(ctx, inputs, outputs) and gradients(ctx, *output_gradients): see torch.autograd.Function."""
    message = f"{_name(forward)} can be differentiated once; its gradient has no gradient (create_graph=True)"

    def refuse(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return second_derivatives(ctx, gradients, message)

    _register(forward, setup, gradients)
    _register(backward, lambda ctx, inputs, outputs: keep_layouts(ctx, inputs), refuse)


def _refuse(gradient: Tensor, shape: Sequence[int], dtype: torch.dtype, message: str) -> Tensor:
    raise NotSupportedError(message)


def _refuse_fake(gradient: Tensor, shape: Sequence[int], dtype: torch.dtype, message: str) -> Tensor:
    return gradient.new_empty(shape, dtype=dtype)


_second_derivative = operator(
    "second_derivative(Tensor gradient, SymInt[] shape, ScalarType dtype, str message) -> Tensor", _refuse, _refuse_fake
)


def keep_layouts(ctx: Any, inputs: Sequence[Any]) -> None:
    """Keeps the layouts of a first derivative's inputs, for second_derivatives()."""
    ctx.layouts = [(value.shape, value.dtype) if isinstance(value, Tensor) else None for value in inputs]


def second_derivatives(ctx: Any, gradients: Sequence[Tensor | None], message: str) -> tuple[Tensor | None, ...]:
    """The backward pass of a first derivative, by an operator that raises NotSupportedError. torch.compile traces this
    pass, whether or not the program wants it."""
    first = next(gradient for gradient in gradients if gradient is not None)
    return tuple(
        _second_derivative(first, *layout, message) if want else None
        for want, layout in zip(ctx.needs_input_grad, ctx.layouts, strict=True)
    )


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
            raise RuntimeError(f"prnn::{_name(loss)} was called with keep=False; its gradient needs keep=True")
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
    function: Any = type(f"{_name(op)}_function", (torch.autograd.Function,), members)
    apply = _apply_of(function)

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


def without_dispatch(op: Callable[..., Any], count: int) -> Callable[..., Any]:
    """For a backward operator, whose first `count` arguments are gradients: a function that calls its kernel where that
    makes no difference, which with a graph of the gradients (create_graph=True) it does."""
    call_kernel = _kernels[_name(op)]

    def call(*arguments: Any) -> Any:
        plain = not torch.is_grad_enabled() and is_undisturbed()
        for gradient in arguments[:count] if plain else ():
            plain = plain and (gradient is None or is_plain(gradient))
        return call_kernel(*arguments) if plain else op(*arguments)

    return call


def with_own_node(
    op: Callable[..., Any],
    kernel: Callable[..., Any],
    setup: Callable[[Any, tuple[Any, ...], Any], None],
    gradients: Callable[..., tuple[Tensor | None, ...]],
) -> Callable[..., Any]:
    """For a differentiable operator: a function that calls `kernel` where that makes no difference. setup, gradients:
    as of `differentiate`."""
    apply = _apply_of(_function(_name(op), kernel, setup, gradients))

    def call(*arguments: Any) -> Any:
        if not is_undisturbed():
            return op(*arguments)
        wanted = False
        for x in arguments:  # is_plain() of each, without the time of so many calls
            if isinstance(x, Tensor):
                if type(x) not in _PLAIN or x.is_meta or x.is_neg() or is_batched(x):
                    return op(*arguments)
                wanted = wanted or x.requires_grad
        return apply(*arguments) if wanted and torch.is_grad_enabled() else kernel(*arguments)

    return call


_PLAIN = (Tensor, torch.nn.Parameter)


def is_plain(tensor: Tensor) -> bool:
    """Whether the tensor has memory, which holds its values and not their negatives (`z.conj().imag`), and no class of
    its own. Those of torch.autograd.grad(is_grads_batched=True) are of torch's class but have none. To be asked where
    is_undisturbed(): torch.compile cannot trace it."""
    return type(tensor) in _PLAIN and not tensor.is_meta and not tensor.is_neg() and not is_batched(tensor)


def refuse_onnx() -> None:
    """For fake kernels of layers, which torch.onnx.export calls: it has no ONNX function for prnn's operators."""
    if torch.onnx.is_in_onnx_export():
        raise NotSupportedError(
            "prnn's recurrent layers cannot be recorded by torch.onnx.export; prnn.convert_back(model) makes "
            "torch.nn's layers of prnn.nn.RNN, GRU and LSTM, which can be"
        )


def _name(op: Any) -> str:
    name: str = op._schema.name
    return name.removeprefix("prnn::")


def _apply_of(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Returns the function that makes a node of the graph. The apply of torch.autograd.Function also looks after
    functorch's transforms, for which it wants a setup_context."""
    single: Any = super(torch.autograd.Function, function)
    apply: Callable[..., Any] = single.apply
    return apply


def apply_at_each_level(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """The apply of a function that is the derivative of an operator. Under functorch's transforms (torch.func.grad) the
    dispatcher calls it for each of them with that one's tensors alone, as the derivatives of torch's own operators."""

    def forward(ctx: Any, *arguments: Any) -> Any:
        # An autograd function has neither, but what is around this transform may want derivatives.
        with torch.enable_grad(), set_forward_mode(True):
            return function.forward(ctx, *arguments)

    apply = _apply_of(function)
    apply_in_transform = _apply_of(type(function.__name__, (function,), {"forward": staticmethod(forward)}))

    def call(*arguments: Any) -> Any:
        if not in_functorch():
            return apply(*arguments)
        with enable_single_level_autograd_function():
            return apply_in_transform(*arguments)

    return call


def _function(
    name: str, kernel: Callable[..., Any], setup: Callable[..., None], gradients: Callable[..., Any]
) -> type[torch.autograd.Function]:
    def forward(ctx: Any, *arguments: Any) -> Any:  # one with setup_context would look up its own signature each time
        ctx.set_materialize_grads(False)  # zeros for outputs without a gradient, such as a reserve space
        outputs = kernel(*arguments)
        setup(ctx, arguments, outputs)
        return outputs

    def backward(ctx: Any, first: Tensor | None, *rest: Any) -> Any:
        if first is None and all(gradient is None for gradient in rest):
            return (None,) * len(ctx.needs_input_grad)
        return gradients(ctx, first, *rest)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(f"{name}_function", (torch.autograd.Function,), members)


def _register(op: Any, setup: Callable[..., None], gradients: Callable[..., Any]) -> None:
    def below(*arguments: Any) -> Any:
        with below_autograd():
            return op(*arguments)

    name = _name(op)
    apply = apply_at_each_level(_function(name, below, setup, gradients))

    def autograd(*arguments: Any) -> Any:
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        if forward_mode_is_on() and any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
            raise RuntimeError(
                f"{name} has no derivative in forward mode (torch.func.jvp, jacfwd), only in reverse mode"
            )
        if not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
            return below(*arguments)
        return apply(*arguments)

    _library.impl(name, autograd, "Autograd")
