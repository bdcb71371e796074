"""Defines operators in torch.ops.prnn, with torch.library.Library, whose calls cost less than custom_op's; and calls of
their kernels without the dispatcher, on plain tensors that nobody traces or transforms."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from prnn._errors import NotSupportedError
from prnn._ops._torch_private import (
    below_autograd,
    enable_single_level_autograd_function,
    forward_mode_is_on,
    in_functorch,
    is_batched,
    is_undisturbed,
    set_forward_mode,
)
from prnn._ops._vmap import register_vmap

library = torch.library.Library("prnn", "FRAGMENT")
_kernels: dict[str, Callable[..., Any]] = {}


Setup = Callable[[Any, Any, Any], None]  # of a node: (ctx, inputs, outputs)


def operator(
    schema: str, kernel: Callable[..., Any], fake: Callable[..., Any], tags: Sequence[Any] = ()
) -> Callable[..., Any]:
    """The operator of a schema, with one kernel for CPU and CUDA and a fake one. Not differentiable."""
    name = schema.partition("(")[0]
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag, *tags))
    for key in ("CPU", "CUDA"):
        library.impl(name, kernel, key)
    torch.library.register_fake(f"prnn::{name}", fake, lib=library)
    _kernels[name] = kernel
    return getattr(torch.ops.prnn, name).default


def _refuse(gradient: Tensor, shape: Sequence[int], dtype: torch.dtype, message: str) -> Tensor:
    raise NotSupportedError(message)


def _refuse_fake(gradient: Tensor, shape: Sequence[int], dtype: torch.dtype, message: str) -> Tensor:
    return gradient.new_empty(shape, dtype=dtype)


_second_derivative = operator(
    "second_derivative(Tensor gradient, SymInt[] shape, ScalarType dtype, str message) -> Tensor", _refuse, _refuse_fake
)


def without_dispatch(op: Callable[..., Any], count: int) -> Callable[..., Any]:
    """For a backward operator, whose first `count` arguments are gradients: a function that calls its kernel where that
    makes no difference, which with a graph of the gradients (create_graph=True) it does."""
    call_kernel = _kernels[name_of(op)]

    def call(*arguments: Any) -> Any:
        plain = not torch.is_grad_enabled() and is_undisturbed()
        for gradient in arguments[:count] if plain else ():
            plain = plain and (gradient is None or is_plain(gradient))
        return call_kernel(*arguments) if plain else op(*arguments)

    return call


def with_own_node(
    op: Callable[..., Any],
    kernel: Callable[..., Any],
    setup: Setup,
    gradients: Callable[..., Sequence[Tensor | None]],
) -> Callable[..., Any]:
    """For a differentiable operator: a function that calls `kernel` where that makes no difference. setup, gradients:
    as of `differentiate`."""
    apply = apply_of(_function(name_of(op), kernel, setup, gradients))

    def call(*arguments: Any) -> Any:
        if not is_undisturbed():
            return op(*arguments)
        wanted = False
        for x in arguments:  # is_plain() of each, without the time of so many calls
            if isinstance(x, Tensor):
                if type(x) not in PLAIN or x.is_meta or x.is_neg() or is_batched(x):
                    return op(*arguments)
                wanted = wanted or x.requires_grad
        return apply(*arguments) if wanted and torch.is_grad_enabled() else kernel(*arguments)

    return call


PLAIN = (Tensor, torch.nn.Parameter)


def is_plain(tensor: Tensor) -> bool:
    """Whether the tensor has memory, which holds its values and not their negatives (`z.conj().imag`), and no class of
    its own. Those of torch.autograd.grad(is_grads_batched=True) are of torch's class but have none. To be asked where
    is_undisturbed(): torch.compile cannot trace it."""
    return type(tensor) in PLAIN and not tensor.is_meta and not tensor.is_neg() and not is_batched(tensor)


def refuse_onnx() -> None:
    """For fake kernels of layers, which torch.onnx.export calls: it has no ONNX function for prnn's operators."""
    if torch.onnx.is_in_onnx_export():
        raise NotSupportedError(
            "prnn's recurrent layers cannot be recorded by torch.onnx.export; prnn.convert_back(model) makes "
            "torch.nn's layers of prnn.nn.RNN, GRU and LSTM, which can be"
        )


def name_of(op: Any) -> str:
    name: str = op._schema.name
    return name.removeprefix("prnn::")


def apply_of(function: type[torch.autograd.Function]) -> Callable[..., Any]:
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

    apply = apply_of(function)
    apply_in_transform = apply_of(type(function.__name__, (function,), {"forward": staticmethod(forward)}))

    def call(*arguments: Any) -> Any:
        if not in_functorch():
            return apply(*arguments)
        with enable_single_level_autograd_function():
            return apply_in_transform(*arguments)

    return call


def _function(
    name: str, kernel: Callable[..., Any], setup: Setup, gradients: Callable[..., Sequence[Tensor | None]]
) -> type[torch.autograd.Function]:
    """The node of a kernel, whose arguments it takes as _flat() makes them."""

    def forward(ctx: Any, *arguments: Any) -> Any:  # one with setup_context would look up its own signature each time
        ctx.set_materialize_grads(False)  # zeros for outputs without a gradient, such as a reserve space
        given = _nested(arguments) if isinstance(arguments[-1], _Lengths) else arguments
        outputs = kernel(*given)
        setup(ctx, given, outputs)
        return outputs

    def backward(ctx: Any, *given: Tensor | None) -> Any:
        count = len(ctx.needs_input_grad)
        if all(gradient is None for gradient in given):
            return (None,) * count
        found = gradients(ctx, *given)
        return *found, *(None,) * (count - len(found))

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(f"{name}_function", (torch.autograd.Function,), members)


class _Lengths(tuple[int, ...]):
    """The lengths of lists among arguments; -1 of an argument that is none."""

    __slots__ = ()


def _flat(arguments: Sequence[Any]) -> Sequence[Any]:
    """Arguments with the elements of lists in their places, for a node of autograd differentiates direct ones alone;
    behind them the lengths of the lists, if there are any."""
    lengths = _Lengths(len(argument) if isinstance(argument, (list, tuple)) else -1 for argument in arguments)
    if max(lengths) < 0:
        return arguments
    flat: list[Any] = []
    for argument, length in zip(arguments, lengths, strict=True):
        flat += [argument] if length < 0 else argument
    return *flat, lengths


def _nested(flat: Sequence[Any]) -> Sequence[Any]:
    """The inverse of _flat(), of arguments among which there are lists."""
    rest = iter(flat)
    return [next(rest) if length < 0 else [next(rest) for _ in range(length)] for length in flat[-1]]


def differentiate(
    forward: Any,
    setup: Setup,
    gradients: Callable[..., Sequence[Tensor | None]],
    backward: Any,
    *,
    refusal: str = "",
    below: Sequence[Callable[..., Any] | None] = (None, None),
    for_training: Callable[..., Sequence[Any]] | None = None,
) -> None:
    """Gives an operator its derivative, and has that of its `backward` operator, which `gradients` calls, fail with a
    sentence. torch.func.vmap calls both for each element.

    Args:
        setup: (ctx, inputs, outputs), with the operator's arguments as inputs; see torch.autograd.Function.
        gradients: (ctx, *output_gradients) to the gradients of the first arguments, with the elements of lists in their
            places.
        refusal: that sentence.
        below: what both call below autograd; None: themselves.
        for_training: from the arguments of a call that has a gradient to those that the operator is given then.
    """
    once = f"{name_of(forward)} can be differentiated once; its gradient has no gradient (create_graph=True)"
    _register(forward, setup, gradients, below[0], for_training)

    def keep_layouts(ctx: Any, inputs: Sequence[Any], outputs: Any) -> None:
        ctx.layouts = [(value.shape, value.dtype) if isinstance(value, Tensor) else None for value in _flat(inputs)]

    def refuse(ctx: Any, *gradients: Tensor | None) -> list[Tensor | None]:
        """By an operator that raises NotSupportedError: torch.compile traces this pass, whether or not the program
        wants it."""
        first = next(gradient for gradient in gradients if gradient is not None)
        pairs = zip(ctx.needs_input_grad, ctx.layouts, strict=True)
        return [_second_derivative(first, *layout, refusal or once) if want else None for want, layout in pairs]

    _register(backward, keep_layouts, refuse, below[1], None)
    register_vmap(forward, library)
    register_vmap(backward, library)


def _register(
    op: Any,
    setup: Setup,
    gradients: Callable[..., Sequence[Tensor | None]],
    below: Callable[..., Any] | None,
    for_training: Callable[..., Sequence[Any]] | None,
) -> None:
    def run_op(*arguments: Any) -> Any:
        with below_autograd():
            return op(*arguments)

    name, run = name_of(op), below or run_op
    apply = apply_at_each_level(_function(name, run, setup, gradients))

    def autograd(*arguments: Any) -> Any:
        flat = _flat(arguments)
        tensors = [argument for argument in flat if isinstance(argument, Tensor)]
        if forward_mode_is_on() and any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
            raise NotSupportedError(
                f"{name} has no derivative in forward mode (torch.func.jvp, jacfwd, hessian), only in reverse mode"
            )
        if not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
            return run(*arguments)
        if for_training is not None:
            flat = _flat(for_training(*arguments))
        return apply(*flat)

    library.impl(name, autograd, "Autograd")
