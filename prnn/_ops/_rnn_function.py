"""Eager recurrent calls with gradients, which run the library's kernels without the dispatcher."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prnn import _C
from prnn._ops._autocast import Casts, cast_weights
from prnn._ops._call import NO_OPTIONS, Call, Data, Gradients, make_ready, pack_weights
from prnn._ops._handles import device_of, handle, this_thread
from prnn._ops._layer import layer
from prnn._ops._operator import apply_of, is_plain
from prnn._ops._torch_private import is_undisturbed

__all__ = ["EagerCall", "Places", "apply", "cast_call", "wanted_gradients"]

# Bytes of gradients below which a copy costs more than it saves.
_LITTLE_MEMORY = 2**16

_address_of = Tensor.data_ptr  # each look-up takes time


class Places:
    """Where packed weights lie: the address of each, its shape, strides and place in the packed weights, and one tensor
    of all, which does not own their memory."""

    __slots__ = ("addresses", "layouts", "together")

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.addresses = [weight.data_ptr() for weight in weights]
        self.layouts = _layouts(weights)
        with torch.inference_mode(False):  # calls with gradients cannot keep what is made in it
            self.together = _together(weights[0], sum(weight.nbytes for weight in weights))


class _Memory:
    """Bytes of a GPU's memory, as other libraries' arrays show theirs."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def _together(first: Tensor, size: int) -> Tensor:
    """The tensor of so many bytes that begins where `first` does."""
    if first.is_cuda:
        memory = torch.as_tensor(_Memory(first.data_ptr(), size), device=first.device)
    else:
        memory = torch.frombuffer((ctypes.c_char * size).from_address(first.data_ptr()), dtype=torch.uint8)
    return memory.view(first.dtype)


def _layouts(weights: Sequence[Tensor]) -> list[tuple[Any, ...]]:
    found, place = [], 0
    for weight in weights:
        strides = weight.stride() if weight.is_contiguous() else weight.contiguous().stride()
        found.append((weight.shape, strides, place))
        place += weight.numel()
    return found


def cast_call(casts: Casts, data: Data, weights: Sequence[Tensor], places: Places | None) -> tuple[Data, Tensor | None]:
    """The data of a call under autocast in the type that it computes in, and its packed weights; None where they have
    that type already."""
    (input, hx, cx), computed = data, casts.computed
    cast = input.to(computed), None if hx is None else hx.to(computed), None if cx is None else cx.to(computed)
    if weights[0].dtype is computed:
        return cast, None
    return cast, cast_weights(weights, computed)[0] if places is None else places.together.to(computed)


class EagerCall(NamedTuple):
    """A call of plain tensors that nobody traces or transforms, without the dispatcher."""

    call: Call
    sequences: "_C.Sequences"
    places: Places | None  # None: of weights that do not lie packed
    casts: Casts | None  # under autocast

    def gradients(self, ctx: Any, gradients: Any, needs: Sequence[bool]) -> list[Tensor | None]:
        """Returns the gradients of input, hx, cx and the weights."""
        # With a graph of the gradients (create_graph=True) the operator refuses.
        is_direct = is_undisturbed() and not torch.is_grad_enabled()
        for gradient in gradients:
            is_direct = is_direct and (gradient is None or is_plain(gradient))
        input, hx, cx, output, reserve, *weights = ctx.saved_tensors
        options: Any = NO_OPTIONS
        if ctx.has_options:
            options, weights = weights[:5], weights[5:]
        reset, zoneout, recurrent, seed, lengths = options
        call, sequences, data = self.call, self.sequences, (input, hx, cx)
        if call.thread is not this_thread.token:
            stack = call.stack
            stack = layer(stack.config, stack.dtype, stack.input_size, stack.device)
            make_ready(call, sequences, data, weights, stack)
            call = Call(stack, sequences, True, call.given)
        stack, packed, layouts, dtypes = call.stack, None, None, None
        if ctx.before_casts is not None:
            dtypes, layouts = ctx.before_casts
            gradients = _cast(gradients, [stack.dtype] * 4)
        with device_of(input):
            if layouts is None and self.places is not None and self.places.addresses == list(map(_address_of, weights)):
                layouts = self.places.layouts
                # torch.autograd.graph.save_on_cpu() makes copies; other hooks, tensors of another type.
                if input.dtype is stack.dtype and input.device == stack.device:
                    packed = weights[0]
            if packed is None:
                packed = pack_weights(weights, stack, input)
            if ctx.later_reserve is not None:
                reserve = ctx.later_reserve
            elif ctx.has_run and stack.spends_reserve(handle(stack.device), sequences, reserve.numel()):
                # A pass before has overwritten it (retain_graph=True).
                seed = None if seed is None else torch.stack([seed[0], seed[1] - 1])  # before it had counted the call
                size = stack.rnn.reserve_size(handle(stack.device), sequences)
                reserve = call.forward(sequences, data, packed, (*options[:3], seed, lengths), size)[3]
                if not stack.spends_reserve(handle(stack.device), sequences, size):
                    ctx.later_reserve = reserve
            wanted = (*needs[:3], True in needs[3:])
            if is_direct:
                ctx.has_run = True
                results = call.backward(sequences, gradients, data, packed, options, output, reserve, wanted)
            else:
                batch_sizes, of_host = _tensors_of(sequences, input)
                lengths = of_host if lengths is None else lengths
                others = (batch_sizes, lengths, reset, (zoneout, recurrent), output, reserve)
                results = torch.ops.prnn.rnn_backward(*gradients, *data, weights, *others, *stack.config, wanted)
        if dtypes is not None:
            results = _cast(results, dtypes)
        return wanted_gradients(results, needs, weights, layouts)


def _cast(tensors: Sequence[Tensor | None], dtypes: Sequence[torch.dtype | None]) -> Gradients:
    input, hx, cx, rest = (None if x is None else x.to(dtype) for x, dtype in zip(tensors, dtypes, strict=True))
    return input, hx, cx, rest


def _tensors_of(sequences: "_C.Sequences", input: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The operator's batch_sizes and lengths."""
    if input.dim() == 2:
        return torch.tensor(sequences.sizes, device="cpu"), None
    return None, torch.tensor(sequences.lengths, device="cpu") if sequences.is_padded else None


def wanted_gradients(
    results: Sequence[Tensor | None],
    needs: Sequence[bool],
    weights: Sequence[Tensor],
    layouts: Sequence[tuple[Any, ...]] | None = None,
) -> list[Tensor | None]:
    """The gradients that are needed, of input, hx, cx and each of the weights, from `results`, in which those of the
    weights lie packed. layouts: of weights that may have been cast."""
    needs_weights = needs[3:]
    *of_data, of_weights = results
    found = [gradient if want else None for gradient, want in zip(of_data, needs, strict=False)]
    if of_weights is None or True not in needs_weights:
        return found + [None] * len(needs_weights)
    # One view: split() and view() would be two.
    grads = [
        of_weights.as_strided(*layout) if wants else None
        for layout, wants in zip(layouts or _layouts(weights), needs_weights, strict=True)
    ]
    return found + (_without_others(grads, of_weights) if False in needs_weights else grads)


def _without_others(grads: list[Tensor | None], of_all: Tensor) -> list[Tensor | None]:
    """The gradients of the weights that want one: views of those of all weights, whose memory they keep, or copies
    where most of it is of weights that want none."""
    if of_all.nbytes < _LITTLE_MEMORY:
        return grads
    if 2 * sum(grad.numel() for grad in grads if grad is not None) < of_all.numel():
        return [None if grad is None else grad.clone() for grad in grads]
    return grads


class RnnFunction(torch.autograd.Function):
    """An eager call. Inputs: input, hx, cx; an EagerCall and its Options; and each of the weights, for a Function
    differentiates direct arguments alone. Outputs: output, hy, cy and cells, None for those without elements. Each
    argument and each output costs time."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, hx: Any, cx: Any, call_and_options: Any, *weights: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        eager, options = call_and_options
        call, sequences, places, casts = ctx.call = eager
        data, kept, ctx.before_casts = (input, hx, cx), weights, None
        packed: Any = None
        if casts is not None:
            dtypes = (input.dtype, None if hx is None else hx.dtype, None if cx is None else cx.dtype, weights[0].dtype)
            data, packed = cast_call(casts, data, weights, places)
            layouts = None
            if packed is not None:
                kept, layouts = (packed,), _layouts(weights) if places is None else places.layouts
            ctx.before_casts = dtypes, layouts
        if packed is None:
            packed = weights[0] if places is not None else pack_weights(weights, call.stack, data[0])
        y, hy, cy, reserve, cells = call.forward(sequences, data, packed, options)
        ctx.has_options = has_options = options is not NO_OPTIONS
        ctx.save_for_backward(*data, y, reserve, *(options if has_options else ()), *kept)
        ctx.has_run, ctx.later_reserve = False, None
        if casts is not None:
            return casts.results(y, hy, cy, cells)
        return y, hy, cy, cells

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad
        found = ctx.call.gradients(ctx, gradients, (*needs[:3], *needs[4:]))
        return *found[:3], None, *found[3:]


apply: Callable[..., Any] = apply_of(RnnFunction)
