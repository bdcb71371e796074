"""torch.ops.prnn.rnn and rnn_backward: a stack of recurrent layers as one operator.

Sizes as in persistent_rnn.h: T timesteps, N sequences, I input size, H hidden size, P state size (the projection's,
else H), L layers, D directions. With K heads, H is a head's, and D counts the heads of both directions.

rnn(input, hx, cx, weights, batch_sizes, lengths, reset, masks, seed, max_batch, *config, train)
    -> (output, hy, cy, reserve, cells)
    input: (T, N, I), or packed (sum of batch_sizes, I).
    hx: (L D, N, P) or None for zeros.  cx: (L D, N, H) or None; LSTM only.  With reset also (2, ...): the states that
        sequences begin with, and those that they start anew with, which are zeros otherwise.
    weights: tensors whose elements, one tensor after the other, are the packed weights of persistent_rnn.h. Nothing is
        copied where they already lie so in memory.
    batch_sizes: for packed input, (T,) integers on the CPU, non-increasing; max_batch is then its first entry.
    lengths: for input (T, N, I), (N,) integers from 1 to T in any order, or None where all are T.
    reset: bool, (T, N) or (sum of batch_sizes,): where a sequence starts anew, as prnnRNNExtras_t has it; or None.
    masks: of GRU and RNN, none, or those of prnnRNNMasks_t, each of which may be None: zoneout, a GRU's, bool
        (T, N, L D H) or (sum of batch_sizes, L D H), and recurrent, (L D, N, H). config.mask_kinds says which.
    seed: (2,) int64 on the device of input, wanted where dropout > 0: the masks follow from it, from the value that it
        has when the layers run.
    config: mode, hidden_size, proj_size, num_layers, bidirectional, dropout, backend, return_cells, has_reset, heads,
        zoneout, mask_kinds, frozen_layers.
        mode and backend are the C API's numbers; hidden_size is that of all heads; dropout is that of this call, 0
        outside training; return_cells: whether cells is filled; has_reset: whether reset is given; zoneout:
        zoneoutExpectation of prnnRNNMasks_t; mask_kinds: the sum of 1, if zoneout is in masks, and 2, if recurrent is;
        frozen_layers: that of prnnSetRNNFrozenLayers, which autograd sets, too.
    train: whether reserve is filled for rnn_backward. Autograd sets it where a gradient is wanted.
    output: (T, N, D P), zero beyond each length, or (sum of batch_sizes, D P).  hy, cy: as hx, cx; cy has no elements
        unless the mode is LSTM.  reserve: bytes, opaque, empty without train, dropout and return_cells.  cells: c of
        the last layer, (T, N, D H) or (sum of batch_sizes, D H), or no elements.
Tensors are of one device and one dtype.

The operators are defined with torch.library.Library and not with custom_op, whose wrappers cost more than a step of a
small layer.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prnn import _C
from prnn._errors import NotSupportedError
from prnn._ops import _rnn_kernels as kernels
from prnn._ops._autocast import rnn_on_cpu, rnn_on_cuda
from prnn._ops._handles import handle, is_elsewhere, this_thread
from prnn._ops._layer import BACKENDS, MODES, Config, Layer, layer
from prnn._ops._operator import (
    _PLAIN,
    _apply_of,
    _undisturbed,
    apply_at_each_level,
    is_plain,
    keep_layouts,
    refuse_onnx,
    second_derivatives,
)
from prnn._ops._rnn_kernels import require, require_masks, require_reset, require_states, reserve_of_operator
from prnn._ops._steps import steps_of
from prnn._ops._vmap import call_for_batched, is_batched, register_vmap

__all__ = [
    "BACKENDS",
    "MODES",
    "Config",
    "PlainCall",
    "call",
    "call_plainly",
    "rnn",
    "rnn_backward",
    "without_frozen_layers",
]

_CONFIG = (
    "int mode, int hidden_size, int proj_size, int num_layers, bool bidirectional, float dropout, int backend, "
    "bool return_cells, bool has_reset, int heads, float zoneout, int mask_kinds, int frozen_layers"
)
_SEQUENCES = "Tensor? batch_sizes, Tensor? lengths, Tensor? reset"

_library = torch.library.Library("prnn", "FRAGMENT")
# Of a GPU's layer whose batch_sizes or lengths are on the CPU: inductor must not take such a call into a CUDA graph,
# whose inputs are copied to the GPU's memory. What torch's compiler sees is one of these below autograd.
_OF_HOST = "_of_host"
_TAGS = {"": (), _OF_HOST: tuple(filter(None, [getattr(torch.Tag, "cudagraph_unsafe", None)]))}
for _suffix, _tags in _TAGS.items():
    _library.define(
        f"rnn{_suffix}(Tensor input, Tensor? hx, Tensor? cx, Tensor[] weights, {_SEQUENCES}, Tensor?[] masks, "
        f"Tensor? seed, SymInt? max_batch, {_CONFIG}, bool train) -> "
        "(Tensor output, Tensor hy, Tensor cy, Tensor reserve, Tensor cells)",
        tags=(torch.Tag.pt2_compliant_tag, *_tags),
    )
    _library.define(
        f"rnn_backward{_suffix}(Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, Tensor? grad_cells, "
        f"Tensor input, Tensor? hx, Tensor? cx, Tensor[] weights, {_SEQUENCES}, Tensor? recurrent_mask, Tensor output, "
        f"Tensor reserve, {_CONFIG}, bool[] wanted) -> "
        "(Tensor grad_input, Tensor grad_hx, Tensor grad_cx, Tensor grad_weights)",
        tags=(torch.Tag.pt2_compliant_tag, *_tags),
    )
rnn: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = torch.ops.prnn.rnn.default
rnn_backward: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = torch.ops.prnn.rnn_backward.default


def _rnn_below_autograd(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    run = torch.ops.prnn.rnn_of_host.default if _reads_host(arguments[0], arguments[4:6]) else rnn
    with torch._C._AutoDispatchBelowAutograd():
        return run(*arguments)


def _rnn_backward_below_autograd(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    run = torch.ops.prnn.rnn_backward_of_host.default if _reads_host(arguments[4], arguments[8:10]) else rnn_backward
    with torch._C._AutoDispatchBelowAutograd():
        return run(*arguments)


def _reads_host(input: Tensor, sizes: Sequence[Tensor | None]) -> bool:
    return input.is_cuda and any(given is not None and given.is_cpu for given in sizes)


def _require_one_device(input: Tensor, **others: Tensor | Sequence[Tensor | None] | None) -> None:
    """For fake kernels: the dispatcher calls them for one tensor on the meta device, and takes their outputs, which are
    on the device of input, for results. How long sequences are may be on the CPU, as torch has it."""
    for name, value in others.items():
        for tensor in [value] if isinstance(value, Tensor) else value or []:
            if tensor is None or (name in ("batch_sizes", "lengths") and tensor.device.type == "cpu" and input.is_meta):
                continue
            if (tensor.device.type == "meta") != (input.device.type == "meta"):
                raise ValueError(f"{name} is on {tensor.device}, but input is on {input.device}")


def _no_bytes(input: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=input.device)


def _rnn(
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    reset: Tensor | None,
    masks: Sequence[Tensor | None],
    seed: Tensor | None,
    max_batch: int | None,
    *config_and_train: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    config, train = Config(*config_and_train[:-1]), config_and_train[-1]
    _require_matching(input, hx, cx, batch_sizes, lengths, reset, masks, config)
    y, hy, cy, reserve, cells, _ = kernels.forward(
        input, hx, cx, weights, batch_sizes, lengths, reset, masks, seed, config, train, True
    )
    return y, hy, cy, _no_bytes(input) if reserve is None else reserve, cells


def _require_matching(
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    reset: Tensor | None,
    masks: Sequence[Tensor | None],
    config: Config,
) -> None:
    stack = layer(config, input.dtype, input.size(-1), input.device)
    batch = steps_of(input, batch_sizes, lengths).batch
    require_states(hx, cx, stack, batch, input, takes_reset=config.has_reset)
    require_reset(reset, config, input)
    require_masks(masks, config, stack, batch, input)


def _rnn_backward(
    grad_output: Tensor | None,
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    grad_cells: Tensor | None,
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    reset: Tensor | None,
    recurrent_mask: Tensor | None,
    output: Tensor,
    reserve: Tensor,
    *config_and_wanted: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    config, wanted = Config(*config_and_wanted[:-1]), config_and_wanted[-1]
    stack = layer(config, input.dtype, input.size(-1), input.device)
    steps = steps_of(input, batch_sizes, lengths)
    output_shape, batch = (*input.shape[:-1], stack.output_size), steps.batch
    require(output, "output", output_shape, input)
    if grad_output is not None:
        require(grad_output, "grad_output", output_shape, input)
    if grad_cells is not None:
        require(grad_cells, "grad_cells", (*input.shape[:-1], stack.cells_size), input)
    require_reset(reset, config, input)
    require_masks([None, recurrent_mask], config, stack, batch, input, is_backward=True)
    require_states(hx, cx, stack, batch, input, takes_reset=config.has_reset)
    require_states(grad_hy, grad_cy, stack, batch, input, ("grad_hy", "grad_cy"))
    gradients = (grad_output, grad_hy, grad_cy, grad_cells)
    if batch > 0 and stack.spends_reserve(handle(input.device), steps.sizes, reserve.numel()):
        reserve = reserve.clone()  # of which the schema says that it is not written to
    results = kernels.backward(
        gradients, input, hx, cx, weights, batch_sizes, lengths, reset, recurrent_mask, output, reserve, config, wanted
    )
    grad_input, grad_hx, grad_cx, grad_weights = (input.new_empty(0) if g is None else g for g in results)
    return grad_input, grad_hx, grad_cx, grad_weights


def _rnn_fake(
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    reset: Tensor | None,
    masks: Sequence[Tensor | None],
    seed: Tensor | None,
    max_batch: int | None,
    *config_and_train: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    refuse_onnx()
    _require_one_device(
        input,
        hx=hx,
        cx=cx,
        weights=weights,
        batch_sizes=batch_sizes,
        lengths=lengths,
        reset=reset,
        masks=masks,
        seed=seed,
    )
    config, train = Config(*config_and_train[:-1]), config_and_train[-1]
    stack = layer(config, input.dtype, int(input.size(-1)), input.device)
    batch: Any
    if batch_sizes is None:
        batch = input.size(1)
    elif hx is not None:
        batch = hx.size(-2)
    else:
        batch = max_batch
    training = train or config.dropout > 0 or config.return_cells
    reserve_size = reserve_of_operator(stack, input, batch_sizes, batch) if training else 0
    return (
        input.new_empty(*input.shape[:-1], stack.output_size),
        input.new_empty(stack.states, batch, stack.state_size),
        input.new_empty((stack.states, batch, stack.hidden_size) if stack.is_lstm else 0),
        input.new_empty(reserve_size, dtype=torch.uint8),
        input.new_empty((*input.shape[:-1], stack.cells_size) if config.return_cells else 0),
    )


def _rnn_backward_fake(
    grad_output: Tensor | None,
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    grad_cells: Tensor | None,
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    reset: Tensor | None,
    recurrent_mask: Tensor | None,
    output: Tensor,
    reserve: Tensor,
    *config_and_wanted: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    gradients = {"grad_output": grad_output, "grad_hy": grad_hy, "grad_cy": grad_cy, "grad_cells": grad_cells}
    sequences = {"batch_sizes": batch_sizes, "lengths": lengths, "reset": reset, "recurrent_mask": recurrent_mask}
    _require_one_device(input, **gradients, hx=hx, cx=cx, weights=weights, **sequences, output=output)
    config, wanted = Config(*config_and_wanted[:-1]), config_and_wanted[-1]
    stack = layer(config, input.dtype, int(input.size(-1)), input.device)
    return (
        input.new_empty(input.shape if wanted[0] else 0),
        input.new_empty(hx.shape if wanted[1] and hx is not None else 0),
        input.new_empty(cx.shape if wanted[2] and cx is not None else 0),
        input.new_empty(stack.params_size if wanted[3] else 0),
    )


# Inputs of the Functions below: input, hx, cx, batch_sizes, lengths, reset, masks, seed, max_batch, config, and then
# each of the weights, for a Function differentiates direct arguments alone.


def _run(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    input, hx, cx, batch_sizes, lengths, reset, masks, seed, max_batch, config, *weights = inputs
    sequences = (batch_sizes, lengths, reset, masks, seed, max_batch)
    return _rnn_below_autograd(input, hx, cx, weights, *sequences, *config, True)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    input, hx, cx, batch_sizes, lengths, reset, masks, seed, max_batch, config, *weights = inputs
    y, _, cy, reserve, cells = output
    ctx.config, ctx.max_batch = Config(*config), max_batch
    ctx.set_materialize_grads(False)
    empty = [] if ctx.config.return_cells else [cells]
    ctx.mark_non_differentiable(reserve, *empty, *([] if ctx.config.mode == MODES["LSTM"] else [cy]))
    zoneout_mask, recurrent_mask = masks or (None, None)
    sequences = (batch_sizes, lengths, reset, zoneout_mask, recurrent_mask, seed)
    ctx.save_for_backward(input, hx, cx, *sequences, y, reserve, *weights)
    ctx.has_run, ctx.later_reserve, ctx.plain = False, None, None


def _kept(ctx: Any) -> tuple[Any, ...]:
    """What _keep() has kept of a call: input, hx, cx, batch_sizes, lengths, reset, the masks of zoneout and of the
    recurrence, seed, output, the reserve space and the weights."""
    if ctx.plain is None:
        return tuple(ctx.saved_tensors)
    input, hx, cx, *results_and_weights = ctx.saved_tensors
    batch_sizes, lengths = _tensors_of(ctx.sequences, input)
    return input, hx, cx, batch_sizes, lengths, None, None, None, None, *results_and_weights


def _tensors_of(sequences: Any, input: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The operator's batch_sizes and lengths."""
    if input.dim() == 2:
        return torch.tensor(sequences.sizes, device="cpu"), None
    return None, torch.tensor(sequences.lengths, device="cpu") if sequences.is_padded else None


def _gradients(
    ctx: Any,
    gradients: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None],
    needs: Sequence[bool],
    is_plain_call: bool,
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Those of input, hx and cx, and those of the weights, from those of output, hy, cy and cells.

    needs: which are wanted, of the first three and then of each weight. is_plain_call: _is_direct() has been said of
    the call's tensors."""
    input, hx, cx, *saved = _kept(ctx)
    batch_sizes, lengths, reset, zoneout_mask, recurrent_mask, seed, output, reserve, *weights = saved
    config = ctx.config
    if is_plain_call and ctx.given is not config:
        kernels.make_ready(input, hx, cx, weights, batch_sizes, lengths, ctx.given)
    needs_weights = needs[3:]
    wanted = [*needs[:3], True in needs_weights]
    if ctx.later_reserve is not None:
        reserve = ctx.later_reserve
    elif ctx.has_run and _spends_reserve(input, batch_sizes, lengths, reserve, config):  # with retain_graph=True
        masks = [zoneout_mask, recurrent_mask] if config.mask_kinds else []
        if seed is not None and is_plain_call:  # it has counted the call
            seed = torch.stack([seed[0], seed[1] - 1])
        again = (batch_sizes, lengths, reset, masks, seed, ctx.max_batch, config)
        with torch.autocast(input.device.type, enabled=False):  # what is saved has been cast
            reserve = _run(input, hx, cx, *again, *weights)[3]
        if not _spends_reserve(input, batch_sizes, lengths, reserve, config):
            ctx.later_reserve = reserve  # an operator's, which is larger
    ctx.has_run = True
    data = (input, hx, cx)
    rest = (batch_sizes, lengths, reset, recurrent_mask, output, reserve)
    results: tuple[Tensor | None, ...]
    # With a graph of the gradients (create_graph=True) the operator refuses.
    is_direct = not torch.is_grad_enabled() and _is_direct(() if is_plain_call else (*data, *weights))
    for gradient in gradients:
        is_direct = is_direct and (gradient is None or is_plain(gradient))
    if not is_direct and _undisturbed() and any(g is not None and is_batched(g) for g in gradients):

        def all_gradients(given: Any) -> list[Tensor | None]:
            of_data, of_weights = _gradients(ctx, given, needs, is_plain_call)
            return of_data + of_weights

        found = call_for_batched(all_gradients, gradients)
        return found[:3], found[3:]
    if is_direct:
        results = kernels.backward(gradients, *data, weights, *rest, config, wanted)
    else:
        results = rnn_backward(*gradients, *data, weights, *rest, *config, wanted)
    *of_data, of_weights = [grad if want else None for grad, want in zip(results, wanted, strict=True)]
    grads: list[Tensor | None] = [None] * len(weights)
    if of_weights is not None:
        place = 0
        for index, weight in enumerate(weights):
            if needs_weights[index]:
                # One view: split() and view() would be two.
                strides = weight.stride() if weight.is_contiguous() else weight.contiguous().stride()
                grads[index] = of_weights.as_strided(weight.shape, strides, place)
            place += weight.numel()
        if False in needs_weights:
            grads = _without_others(grads, of_weights)
    return of_data, grads


# Bytes of gradients below which a copy costs more than it saves.
_LITTLE_MEMORY = 2**16


def _without_others(grads: list[Tensor | None], of_all: Tensor) -> list[Tensor | None]:
    """The gradients of the weights that want one: views of those of all weights, whose memory they keep, or copies
    where most of it is of weights that want none."""
    if of_all.nbytes < _LITTLE_MEMORY:
        return grads
    if 2 * sum(grad.numel() for grad in grads if grad is not None) < of_all.numel():
        return [None if grad is None else grad.clone() for grad in grads]
    return grads


def _plain_gradients(
    ctx: Any, gradients: tuple[Tensor | None, ...], needs: Sequence[bool]
) -> tuple[Tensor | None, ...] | None:
    """_gradients() after forward_plain(), of a graph whose first backward pass this is, and whose weights are where
    they were; otherwise None."""
    call: PlainCall = ctx.plain
    if ctx.has_run or torch.is_grad_enabled() or not _undisturbed():
        return None
    for gradient in gradients:
        if gradient is not None and not is_plain(gradient):
            return None
    input, hx, cx, output, reserve, *weights = ctx.saved_tensors
    stack = call.stack
    if input.dtype is not stack.dtype or input.device != stack.device or is_elsewhere(input):
        return None
    if list(map(_address_of, weights)) != call.addresses:  # torch.autograd.graph.save_on_cpu() makes copies
        return None
    if call.thread is not this_thread.token:
        stack = layer(stack.config, stack.dtype, stack.input_size, stack.device)
    if call.given is not stack.config and stack.is_small and stack not in call.ready:
        kernels.make_ready(input, hx, cx, weights, *_tensors_of(ctx.sequences, input), call.given)
        call.ready.add(stack)
    ctx.has_run = True
    needs_weights = needs[4:]
    wanted = (*needs[:3], True in needs_weights)
    grads_of_outputs = gradients[0], gradients[1], gradients[2]
    *of_data, of_weights = kernels.backward_plain(
        stack, ctx.sequences, grads_of_outputs, (input, hx, cx), weights[0], output, reserve, wanted
    )
    if of_weights is None:
        return *of_data, *[None] * (len(needs) - 3)
    grads = [
        of_weights.as_strided(*layout) if wants else None
        for layout, wants in zip(call.layouts, needs_weights, strict=True)
    ]
    return *of_data, None, *(_without_others(grads, of_weights) if False in needs_weights else grads)


def _spends_reserve(
    input: Tensor, batch_sizes: Tensor | None, lengths: Tensor | None, reserve: Tensor, config: Config
) -> bool:
    sizes, stack = steps_of(input, batch_sizes, lengths).sizes, layer(config, input.dtype, input.size(-1), input.device)
    return bool(sizes) and sizes[0] > 0 and stack.spends_reserve(handle(input.device), sizes, reserve.numel())


class _RnnFunction(torch.autograd.Function):
    """rnn with its gradients."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        output = _run(*inputs)
        _keep(ctx, inputs, output)
        return output

    @staticmethod
    def backward(
        ctx: Any,
        grad_output: Tensor | None,
        grad_hy: Tensor | None,
        grad_cy: Tensor | None,
        _: None,
        grad_cells: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad
        gradients = (grad_output, grad_hy, grad_cy, grad_cells)
        of_data, of_weights = _gradients(ctx, gradients, (*needs[:3], *needs[10:]), False)
        return *of_data, *[None] * 7, *of_weights

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> None:
        raise NotSupportedError(
            "prnn's recurrent layers have no derivative in forward mode (torch.func.jvp, jacfwd, hessian), only in "
            "reverse mode"
        )


class PlainCall(NamedTuple):
    """What serves the calls of a size that forward_plain() runs."""

    stack: Layer
    thread: object  # whose stack it is
    addresses: list[int]  # of the weights
    layouts: list[tuple[Any, ...]]  # of each weight: its shape, strides and place in the packed weights
    given: Config  # of which the stack's was made
    ready: set[Layer]  # those of threads that have made ready() for backward passes
    sequences: "_C.Sequences"  # of the first of them; of others with lengths or packed input they are others


class _RnnFunctionOfKernels(torch.autograd.Function):
    """The recurrent operator without the dispatcher: see _is_direct. Inputs: input, hx, cx, in a tuple the others up to
    the configuration, or a PlainCall and its sequences, and each of the weights. Outputs: output, hy, cy and cells,
    None for those without elements. Each argument and each output costs time."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        input, hx, cx, rest, *weights = inputs
        ctx.has_run, ctx.later_reserve = False, None
        ctx.set_materialize_grads(False)
        if len(rest) == 2:
            ctx.plain, ctx.sequences = call, sequences = rest
            y, hy, cy, reserve = kernels.forward_plain(call.stack, sequences, (input, hx, cx), weights[0], True)
            ctx.save_for_backward(input, hx, cx, y, reserve, *weights)
            return y, hy, cy, None
        batch_sizes, lengths, reset, masks, seed, max_batch, config = rest
        y, hy, cy, reserve, cells, ctx.config = kernels.forward(
            input, hx, cx, weights, batch_sizes, lengths, reset, masks, seed, config, True
        )
        ctx.plain, ctx.max_batch, ctx.given = None, max_batch, config
        others = (batch_sizes, lengths, reset, *(masks or (None, None)), seed)
        ctx.save_for_backward(input, hx, cx, *others, y, reserve, *weights)
        return y, hy, cy if config.mode == MODES["LSTM"] else None, cells if config.return_cells else None

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad
        if ctx.plain is not None:
            if (found := _plain_gradients(ctx, gradients, needs)) is not None:
                return found
            call: PlainCall = ctx.plain
            ctx.config, ctx.max_batch, ctx.given = call.stack.config, ctx.sequences.batch, call.given
        of_data, of_weights = _gradients(ctx, gradients, (*needs[:3], *needs[4:]), True)
        return *of_data, None, *of_weights

    jvp = _RnnFunction.jvp


class _RnnBackwardFunction(torch.autograd.Function):
    """rnn_backward where its results might be differentiated, which is refused. Arguments: the number of weights, then
    rnn_backward's, but the weights last."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        count = arguments[0]
        keep_layouts(ctx, arguments)
        ctx.set_materialize_grads(False)
        return _rnn_backward_below_autograd(*arguments[1:8], list(arguments[-count:]), *arguments[8:-count])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return second_derivatives(
            ctx,
            gradients,
            "a gradient of prnn's recurrent layers was differentiated once more; they have first derivatives alone: "
            "detach the gradient, or let prnn.convert_back(model) make torch.nn's layers, which have more on the CPU",
        )

    jvp = _RnnFunction.jvp  # of a gradient: torch.func.hessian, jvp(grad(f))


# Which else is looked up for every node.
_RnnFunctionOfKernels._backward_cls.apply = _RnnFunctionOfKernels.backward  # type: ignore[attr-defined]
_rnn_function: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = apply_at_each_level(_RnnFunction)
_rnn_function_of_kernels: Callable[..., tuple[Tensor, Tensor, Tensor | None, Tensor | None]] = _apply_of(
    _RnnFunctionOfKernels
)
_rnn_backward_function: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = apply_at_each_level(_RnnBackwardFunction)


_is_any_autocast_enabled = torch._C._is_any_autocast_enabled  # each look-up takes time
_address_of = Tensor.data_ptr
_in_functorch = torch._C._are_functorch_transforms_active


def _is_direct(tensors: Sequence[Tensor | None]) -> bool:
    """Whether nothing can tell a call of the operator from one of its kernel, which costs a fraction of it: plain
    tensors, with memory of their values, that nobody traces, transforms or casts."""
    if not _undisturbed() or _is_any_autocast_enabled():
        return False
    for tensor in tensors:  # without a generator, which takes longer than what it looks at
        if tensor is not None and (type(tensor) not in _PLAIN or tensor.is_meta or tensor.is_neg()):
            return False
    return True


def _wants_grad(tensors: Sequence[Tensor | None]) -> bool:
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def without_frozen_layers(
    input: Tensor, hx: Tensor | None, cx: Tensor | None, weights: Sequence[Tensor], config: Config
) -> Config:
    """The configuration of a call that has a gradient, with the number of its lowest layers that have none."""
    if config.num_layers == 1 or weights[0].requires_grad or _in_functorch():  # which has gradients at other levels
        return config
    for tensor in (input, hx, cx):
        if tensor is not None and tensor.requires_grad:
            return config
    return layer(config, input.dtype, int(input.size(-1)), input.device).without_frozen(weights)


def _rnn_autograd(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    data, weights, sequences, config = arguments[:3], arguments[3], arguments[4:10], arguments[10:-1]
    # Forward-mode derivatives go the same way, for a Function without jvp refuses them.
    if _wants_grad((*data, *weights)) or torch.autograd.forward_ad._current_level >= 0:
        if not arguments[-1]:  # else a transform inside wants gradients, too
            input, hx, cx = data
            config = tuple(without_frozen_layers(input, hx, cx, weights, Config(*config)))
        return _rnn_function(*data, *sequences, config, *weights)
    # AOTInductor's programs give None for a list without elements.
    return _rnn_below_autograd(*arguments[:7], arguments[7] or [], *arguments[8:])


def call(
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    reset: Tensor | None,
    masks: Sequence[Tensor | None],
    seed: Tensor | None,
    max_batch: int | None,
    config: Config,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """rnn for whoever wants its results and not its reserve space: (output, hy, cy, cells). The seed is of this call
    alone."""
    tensors = (input, hx, cx, *weights)
    sequences = (batch_sizes, lengths, reset, masks, seed)
    if _is_direct(tensors):
        if _wants_grad(tensors):
            return _with_gradients(input, hx, cx, weights, (*sequences, max_batch, config))
        if input.is_cpu and (config.dropout > 0 or config.return_cells):  # no backward pass will want the reserve space
            config = config._replace(frozen_layers=config.num_layers - config.return_cells)
        output, hy, cy, _, cells, _ = kernels.forward(input, hx, cx, weights, *sequences, config, False)
        return output, hy, cy, cells
    run = rnn
    if not input.is_meta and torch.is_autocast_enabled(input.device.type) and _in_functorch():
        # The dispatcher comes to the transforms, which must see what is cast, before it comes to autocast.
        run = functools.partial(rnn_on_cuda if input.is_cuda else rnn_on_cpu, rnn)
    output, hy, cy, _, cells = run(input, hx, cx, weights, *sequences, max_batch, *config, False)
    return output, hy, cy, cells


def _with_gradients(
    input: Tensor, hx: Tensor | None, cx: Tensor | None, weights: Sequence[Tensor], rest: tuple[Any, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """call() where _is_direct() and a gradient is wanted."""
    *sequences, config = rest
    rest = (*sequences, without_frozen_layers(input, hx, cx, weights, config))
    output, hy, cy, cells = _rnn_function_of_kernels(input, hx, cx, rest, *weights)
    if cy is None or cells is None:
        nothing = layer(config, input.dtype, input.size(-1), input.device).nothing(input)
        cy, cells = nothing if cy is None else cy, nothing if cells is None else cells
    return output, hy, cy, cells


def call_plainly(
    call: PlainCall,
    sequences: "_C.Sequences",
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    wants_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """call() of what forward_plain() serves."""
    if wants_grad:
        output, hy, cy, _ = _rnn_function_of_kernels(input, hx, cx, (call, sequences), *weights)
    else:
        output, hy, cy, _ = kernels.forward_plain(call.stack, sequences, (input, hx, cx), weights[0], False)
    nothing = call.stack._nothing
    if nothing is None:
        nothing = call.stack.nothing(input)
    return output, hy, nothing if cy is None else cy, nothing


def _rnn_of_cast(
    input: Tensor, hx: Tensor | None, cx: Tensor | None, weights: Sequence[Tensor], *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """rnn for what autocast has cast, with no more reserve space than it needs where nothing is traced: one that
    autograd alone has."""
    tensors = (input, hx, cx, *weights)
    if _wants_grad(tensors) and _is_direct(tensors):
        config = Config(*rest[6:-1])
        batch_sizes, lengths, reset, masks = rest[:4]
        _require_matching(input, hx, cx, batch_sizes, lengths, reset, masks, config)
        output, hy, cy, cells = _with_gradients(input, hx, cx, weights, (*rest[:6], config))
        return output, hy, cy, _no_bytes(input), cells
    return rnn(input, hx, cx, weights, *rest)


def _rnn_backward_autograd(*arguments: Any) -> tuple[Tensor, ...]:
    weights = arguments[7]
    if _wants_grad((*arguments[:7], *weights)) or torch.autograd.forward_ad._current_level >= 0:
        return _rnn_backward_function(len(weights), *arguments[:7], *arguments[8:], *weights)
    return _rnn_backward_below_autograd(*arguments)


for _suffix in _TAGS:
    for _key in ("CPU", "CUDA"):
        _library.impl(f"rnn{_suffix}", _rnn, _key)
        _library.impl(f"rnn_backward{_suffix}", _rnn_backward, _key)
    torch.library.register_fake(f"prnn::rnn{_suffix}", _rnn_fake, lib=_library)
    torch.library.register_fake(f"prnn::rnn_backward{_suffix}", _rnn_backward_fake, lib=_library)
    for _name in ("rnn", "rnn_backward"):
        register_vmap(getattr(torch.ops.prnn, _name + _suffix).default, _library)
_library.impl("rnn", _rnn_autograd, "Autograd")
_library.impl("rnn_backward", _rnn_backward_autograd, "Autograd")
_library.impl("rnn", functools.partial(rnn_on_cpu, _rnn_of_cast), "AutocastCPU")
_library.impl("rnn", functools.partial(rnn_on_cuda, _rnn_of_cast), "AutocastCUDA")
