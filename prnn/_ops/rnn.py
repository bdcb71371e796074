"""torch.ops.prnn.rnn and rnn_backward: a stack of recurrent layers as one operator.

Sizes as in persistent_rnn.h: T timesteps, N sequences, I input size, H hidden size, P state size (the projection's,
else H), L layers, D directions. With K heads, H is a head's, and D counts the heads of both directions.

rnn(input, hx, cx, weights, batch_sizes, lengths, reset, masks, seed, max_batch, *config, train)
    -> (output, hy, cy, reserve, cells)
    input: (T, N, I), or packed (sum of batch_sizes, I).
    hx: (L D, N, P) or None for zeros.  cx: (L D, N, H) or None; LSTM only. sLSTM: c, n and m, (3 L D, N, H), the three
        of a layer's direction one after the other.  With reset also (2, ...): the states that
        sequences begin with, and those that they start anew with, which are zeros otherwise.
    weights: tensors whose elements, one tensor after the other, are the packed weights of persistent_rnn.h. Nothing is
        copied where they already lie so in memory. Of an LSTM with gates_input: weight_hh (4 H, H), and if it is
        normalised the gain and bias of the gates, (4 H,), and of the cell state, (H,).
    batch_sizes: for packed input, (T,) integers on the CPU, non-increasing; max_batch is then its first entry.
    lengths: for input (T, N, I), (N,) integers from 1 to T in any order, or None where all are T. Of an LSTM with
        gates_input: int32 from 0 to T on the device of input, which the host does not look at; output beyond is h.
    reset: bool, (T, N) or (sum of batch_sizes,): where a sequence starts anew, as prnnRNNExtras_t has it; or None.
    masks: of GRU and RNN, none, or those of prnnRNNMasks_t, each of which may be None: zoneout, a GRU's, bool
        (T, N, L D H) or (sum of batch_sizes, L D H), and recurrent, (L D, N, H). config.mask_kinds says which. Of an
        LSTM with gates_input: zoneout (T, N, H), of any type.
    seed: (2,) int64 on the device of input, wanted where dropout > 0: the masks follow from it, from the value that it
        has when the layers run.
    config: mode, hidden_size, proj_size, num_layers, bidirectional, dropout, backend, return_cells, has_reset, heads,
        zoneout, mask_kinds, frozen_layers, gates_input, reverse, normalize, epsilon.
        mode and backend are the C API's numbers; hidden_size is that of all heads; dropout is that of this call, 0
        outside training; return_cells: whether cells is filled; has_reset: whether reset is given; zoneout:
        zoneoutExpectation of prnnRNNMasks_t; mask_kinds: the sum of 1, if zoneout is in masks, and 2, if recurrent is;
        frozen_layers: that of prnnSetRNNFrozenLayers, which autograd sets, too; gates_input: PRNN_GATES_INPUT; reverse:
        PRNN_REVERSE; normalize and epsilon: those of prnnSetRNNNormalization.
    train: whether reserve is filled for rnn_backward. Autograd sets it where a gradient is wanted.
    output: (T, N, D P), zero beyond each length, or (sum of batch_sizes, D P).  hy, cy: as hx, cx; cy has no elements
        unless the mode is LSTM or sLSTM, and hy has none of an LSTM with gates_input, of whose output it is a row.
    reserve: bytes, opaque, empty without train, dropout and return_cells.
        cells: c of the last layer, (T, N, D H) or (sum of batch_sizes, D H), or no elements.
Tensors are of one device and one dtype.

The operators are defined with torch.library.Library and not with custom_op, whose wrappers cost more than a step of a
small layer.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from prnn._C import Sequences
from prnn._ops._autocast import are_even, cast_to, cast_weights, casts_of
from prnn._ops._call import Call, operators_layer, pack_weights
from prnn._ops._handles import device_of, handle
from prnn._ops._layer import BACKENDS, MODES, Config, Layer, layer, without_frozen_layers
from prnn._ops._operator import differentiate, library, operator, refuse_onnx
from prnn._ops._rnn_function import wanted_gradients
from prnn._ops._sequences import sequences_of
from prnn._ops._torch_private import below_autograd, in_functorch
from prnn._ops._vmap import register_vmap

__all__ = ["BACKENDS", "MODES", "Config", "call", "rnn", "rnn_backward"]


def _require_one_device(op: Any, given: Sequence[Any]) -> None:
    """For fake kernels: the dispatcher calls them for one tensor on the meta device, and takes their outputs, which are
    on the device of input, for results. How long sequences are may be on the CPU, as torch has it."""
    named = {argument.name: value for argument, value in zip(op._schema.arguments, given, strict=True)}
    input = named["input"]
    for name, value in named.items():
        for tensor in value if isinstance(value, (list, tuple)) else [value]:
            of_host = name in ("batch_sizes", "lengths")
            if not isinstance(tensor, Tensor) or (of_host and tensor.device.type == "cpu" and input.is_meta):
                continue
            if (tensor.device.type == "meta") != (input.device.type == "meta"):
                raise ValueError(f"{name} is on {tensor.device}, but input is on {input.device}")


def _require(
    tensor: Tensor | None, name: str, shape: tuple[int, ...], input: Tensor, dtype: torch.dtype | None = None
) -> None:
    """dtype: the tensor's; None: that of input."""
    if tensor is None:
        return
    if tensor.dtype != (dtype or input.dtype):
        wanted = f"it must have {dtype}" if dtype else f"but input has {input.dtype}"
        raise ValueError(f"{name} has dtype {tensor.dtype}, {wanted}")
    if tensor.device != input.device:
        raise ValueError(f"{name} is on {tensor.device}, but input is on {input.device}")
    if tensor.shape != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {shape}")


def _check(
    stack: Layer,
    batch: int,
    data: Sequence[Tensor | None],
    reset: Tensor | None,
    masks: Sequence[Tensor | None],
    is_backward: bool = False,
) -> None:
    """Checks what both operators are given for `batch` sequences. data: input, hx and cx. is_backward: zoneout's mask
    is not needed any more, but by an LSTM that takes gates."""
    (input, hx, cx), config = data, stack.config
    assert input is not None
    if config.has_reset != (reset is not None):
        raise ValueError(f"has_reset is {config.has_reset}, but reset is {'None' if reset is None else 'given'}")
    masks = masks or ()  # None in AOTInductor's programs
    if len(masks) != 2 and (masks or config.mask_kinds):
        raise ValueError(f"masks has {len(masks)} entries; it must have two, zoneout and recurrent, or none")
    zoneout, recurrent = masks or (None, None)
    for bit, name, mask in ((1, "zoneout", zoneout), (2, "recurrent", recurrent)):
        is_needed = bit == 2 or not is_backward or stack.takes_gates
        if is_needed and (mask is not None) != bool(config.mask_kinds & bit):
            raise ValueError(f"mask_kinds is {config.mask_kinds}, but that of {name} is {'not ' * (mask is None)}given")
    _require_states(hx, cx, stack, batch, input, "hx cx", config.has_reset)
    rows, units = tuple(input.shape[:-1]), stack.hidden_size
    _require(reset, "reset", rows, input, torch.bool)
    if zoneout is not None:
        dtype = zoneout.dtype if stack.takes_gates else torch.bool
        _require(zoneout, "the mask of zoneout", (*rows, stack.states * units), input, dtype)
    if recurrent is not None:
        _require(recurrent, "the recurrent mask", (stack.states, batch, units), input, recurrent.dtype)


def _require_states(
    h: Tensor | None, c: Tensor | None, stack: Layer, batch: int, input: Tensor, names: str, takes_reset: bool
) -> None:
    """takes_reset: each may have the states of sequences that start anew, too."""
    sizes = ((stack.states, stack.state_size), (stack.cell_states, stack.hidden_size))
    for state, name, (count, size) in zip((h, c), names.split(), sizes, strict=True):
        if state is not None and count == 0:
            raise ValueError(f"{name} is given, but only an LSTM and an sLSTM have a cell state")
        both = (2,) if takes_reset and state is not None and state.dim() == 4 else ()
        _require(state, name, (*both, count, batch, size), input)


def _sequences(input: Tensor, batch_sizes: Tensor | None, lengths: Tensor | None, stack: Layer) -> Sequences:
    """The call's sequences as the library takes them, after a check."""
    if not stack.takes_gates:
        return sequences_of(input, batch_sizes, lengths)
    if input.dim() != 3 or batch_sizes is not None:
        raise ValueError(f"input has {input.dim()} dimensions; an LSTM with gates_input takes (T, N, 4 hidden_size)")
    _require(lengths, "lengths", (input.size(1),), input, torch.int32)
    return sequences_of(input, None, None)


def _reserve_size(stack: Layer, input: Tensor, batch_sizes: Tensor | None, batch: int) -> int:
    """Bytes of the operator's reserve space: an expression of symbols where it is traced."""
    steps = (input if batch_sizes is None else batch_sizes).size(0)
    return stack.reserve_bound(steps * batch if batch_sizes is None else input.size(0), steps, batch)


def _all_tensors(input: Tensor, results: Iterable[Tensor | None]) -> tuple[Tensor, ...]:
    """Results of an operator, which are tensors, and do not share memory."""
    return tuple(input.new_empty(0) if result is None else result for result in results)


def _rnn(*given: Any) -> tuple[Tensor, ...]:
    input, hx, cx, weights, batch_sizes, lengths, reset, masks, seed, _, *rest = given
    config, train = Config(*rest[:-1]), rest[-1]
    stack = layer(config, input.dtype, input.size(-1), input.device)
    sequences = _sequences(input, batch_sizes, lengths, stack)
    batch = sequences.batch
    _check(stack, batch, (input, hx, cx), reset, masks)
    if config.dropout > 0 and batch > 0:
        if seed is None:
            raise ValueError(f"seed is None; dropout {config.dropout} wants one")
        _require(seed, "seed", (2,), input, torch.int64)
        seed = seed.clone(memory_format=torch.contiguous_format)  # which counts the call: arguments stay as they are
    if batch == 0:
        pack_weights(weights, stack, input)  # which checks them
        return _rnn_fake(*given)
    training = train or config.dropout > 0 or config.return_cells
    reserve_size = _reserve_size(stack, input, batch_sizes, batch) if training else 0
    with device_of(input):
        packed = pack_weights(weights, stack, input)
        call = Call(operators_layer(stack, sequences, training), sequences, training)
        zoneout, recurrent = masks or (None, None)
        options = (reset, zoneout, recurrent, seed if config.dropout > 0 else None, lengths)
        y, hy, cy, reserve, cells = call.forward(sequences, (input, hx, cx), packed, options, reserve_size)
    if reserve is None:
        reserve = input.new_empty(0, dtype=torch.uint8)
    return _all_tensors(input, (y, hy, cy, reserve, cells))


def _rnn_backward(*given: Any) -> tuple[Tensor, ...]:
    gradients, (input, hx, cx, weights) = given[:4], given[4:8]
    batch_sizes, lengths, reset, masks, output, reserve = given[8:14]
    config, wanted = Config(*given[14:-1]), given[-1]
    grad_output, grad_hy, grad_cy, grad_cells = gradients
    stack = layer(config, input.dtype, input.size(-1), input.device)
    sequences = _sequences(input, batch_sizes, lengths, stack)
    output_shape, batch = (*input.shape[:-1], stack.output_size), sequences.batch
    _require(output, "output", output_shape, input)
    _require(grad_output, "grad_output", output_shape, input)
    _require(grad_cells, "grad_cells", (*input.shape[:-1], stack.cells_size), input)
    _check(stack, batch, (input, hx, cx), reset, masks, is_backward=True)
    _require_states(grad_hy, grad_cy, stack, batch, input, "grad_hy grad_cy", takes_reset=False)
    if batch == 0:
        pack_weights(weights, stack, input)
        return tuple(gradient.zero_() for gradient in _rnn_backward_fake(*given))
    with device_of(input):
        packed = pack_weights(weights, stack, input)
        stack = operators_layer(stack, sequences, True)
        if stack.spends_reserve(handle(input.device), sequences, reserve.numel()):
            reserve = reserve.clone()  # of which the schema says that it is not written to
        zoneout, recurrent = masks or (None, None)
        others = (packed, (reset, zoneout, recurrent, None, lengths), output, reserve, wanted)
        results = Call(stack, sequences, True).backward(sequences, gradients, (input, hx, cx), *others)
    return _all_tensors(input, results)


def _rnn_fake(*given: Any) -> tuple[Tensor, ...]:
    refuse_onnx()
    _require_one_device(rnn, given)
    input, hx, _, _, batch_sizes, _, _, _, _, max_batch, *rest = given
    config, train = Config(*rest[:-1]), rest[-1]
    stack = layer(config, input.dtype, int(input.size(-1)), input.device)
    batch = input.size(1) if batch_sizes is None else max_batch if hx is None else hx.size(-2)
    training = train or config.dropout > 0 or config.return_cells
    reserve_size = _reserve_size(stack, input, batch_sizes, batch) if training else 0
    return (
        input.new_empty(*input.shape[:-1], stack.output_size),
        input.new_empty(0 if stack.takes_gates else (stack.states, batch, stack.state_size)),
        input.new_empty((stack.cell_states, batch, stack.hidden_size) if stack.cell_states > 0 else 0),
        input.new_empty(reserve_size, dtype=torch.uint8),
        input.new_empty((*input.shape[:-1], stack.cells_size) if config.return_cells else 0),
    )


def _rnn_backward_fake(*given: Any) -> tuple[Tensor, ...]:
    _require_one_device(rnn_backward, given)
    input, hx, cx = given[4:7]
    config, wanted = Config(*given[14:-1]), given[-1]
    stack = layer(config, input.dtype, int(input.size(-1)), input.device)
    return (
        input.new_empty(input.shape if wanted[0] else 0),
        input.new_empty(hx.shape if wanted[1] and hx is not None else 0),
        input.new_empty(cx.shape if wanted[2] and cx is not None else 0),
        input.new_empty(stack.params_size if wanted[3] else 0),
    )


def _setup(ctx: Any, inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
    input, hx, cx, weights, batch_sizes, lengths, reset, masks, _, _, *config, _ = inputs
    output, hy, cy, reserve, cells = outputs
    ctx.config = config
    ctx.mark_non_differentiable(reserve, *(state for state in (hy, cy, cells) if state.dim() == 1))
    zoneout, recurrent = masks or (None, None)
    zoneout = zoneout if Config(*config).gates_input else None  # other layers do not read it again
    ctx.save_for_backward(input, hx, cx, batch_sizes, lengths, reset, zoneout, recurrent, output, reserve, *weights)


def _gradients(ctx: Any, grad_output: Any, grad_hy: Any, grad_cy: Any, _: Any, grad_cells: Any) -> list[Tensor | None]:
    gradients = grad_output, grad_hy, grad_cy, grad_cells
    input, hx, cx, batch_sizes, lengths, reset, zoneout, recurrent, output, reserve, *weights = ctx.saved_tensors
    others = batch_sizes, lengths, reset, [zoneout, recurrent], output, reserve
    needs = ctx.needs_input_grad[: 3 + len(weights)]
    wanted = [*needs[:3], True in needs[3:]]
    results = rnn_backward(*gradients, input, hx, cx, weights, *others, *ctx.config, wanted)
    return wanted_gradients(results, needs, weights)


def _for_training(*arguments: Any) -> tuple[Any, ...]:
    """The arguments of a call that has a gradient: with the number of its lowest layers that have none, unless a
    transform inside wants gradients, too."""
    given, config, train = arguments[:10], Config(*arguments[10:-1]), arguments[-1]
    if not train and not in_functorch():  # which has gradients at other levels
        config = without_frozen_layers(given[:3], given[3], config)
    return *given, *config, True


def _reads_host(input: Tensor, sizes: Sequence[Tensor | None]) -> bool:
    return input.is_cuda and any(given is not None and given.is_cpu for given in sizes)


def _rnn_below_autograd(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    run = torch.ops.prnn.rnn_of_host.default if _reads_host(arguments[0], arguments[4:6]) else rnn
    with below_autograd():  # AOTInductor's programs give None for a list without elements
        return run(*arguments[:7], arguments[7] or [], *arguments[8:])


def _rnn_backward_below_autograd(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    run = torch.ops.prnn.rnn_backward_of_host.default if _reads_host(arguments[4], arguments[8:10]) else rnn_backward
    with below_autograd():
        return run(*arguments[:11], arguments[11] or [], *arguments[12:])


_CONFIG = (
    "int mode, int hidden_size, int proj_size, int num_layers, bool bidirectional, float dropout, int backend, "
    "bool return_cells, bool has_reset, int heads, float zoneout, int mask_kinds, int frozen_layers, bool gates_input, "
    "bool reverse, int normalize, float epsilon"
)
_SEQUENCES = "Tensor? batch_sizes, Tensor? lengths, Tensor? reset"
# The name's end for a GPU's layer whose batch_sizes or lengths are on the CPU: inductor must not take such a call into
# a CUDA graph, whose inputs are copied to the GPU's memory. What torch's compiler sees is one of these below autograd.
_OF_HOST = "_of_host"
for _suffix, _tag in (_OF_HOST, getattr(torch.Tag, "cudagraph_unsafe", None)), ("", None):
    rnn: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = operator(
        f"rnn{_suffix}(Tensor input, Tensor? hx, Tensor? cx, Tensor[] weights, {_SEQUENCES}, Tensor?[] masks, "
        f"Tensor? seed, SymInt? max_batch, {_CONFIG}, bool train) -> "
        "(Tensor output, Tensor hy, Tensor cy, Tensor reserve, Tensor cells)",
        *(_rnn, _rnn_fake, [_tag] if _tag else []),
    )
    rnn_backward: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = operator(
        f"rnn_backward{_suffix}(Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, Tensor? grad_cells, "
        f"Tensor input, Tensor? hx, Tensor? cx, Tensor[] weights, {_SEQUENCES}, Tensor?[] masks, Tensor output, "
        f"Tensor reserve, {_CONFIG}, bool[] wanted) -> "
        "(Tensor grad_input, Tensor grad_hx, Tensor grad_cx, Tensor grad_weights)",
        *(_rnn_backward, _rnn_backward_fake, [_tag] if _tag else []),
    )
    for _op in (rnn, rnn_backward) if _suffix else ():  # others are differentiate()'s
        register_vmap(_op, library)
differentiate(
    *(rnn, _setup, _gradients, rnn_backward),
    refusal="a gradient of prnn's recurrent layers was differentiated once more; they have first derivatives alone: "
    "detach the gradient, or let prnn.convert_back(model) make torch.nn's layers of RNN, GRU and LSTM, which have more "
    "on the CPU",
    below=(_rnn_below_autograd, _rnn_backward_below_autograd),
    for_training=_for_training,
)


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
    """The operator's results without its reserve space: (output, hy, cy, cells). Under autocast the operator is given
    tensors of the type that the layer computes in; it knows no autocast itself."""
    casts = None
    if not input.is_meta and torch.is_autocast_enabled(input.device.type):
        is_even = are_even(batch_sizes) and are_even(lengths)
        casts = casts_of(input, hx, cx, is_even, config.mode, config.proj_size)
        weights = cast_weights(weights, casts.computed)
        input, hx, cx = (cast_to(tensor, casts.computed) for tensor in (input, hx, cx))  # type: ignore[assignment]
    sequences = (batch_sizes, lengths, reset, masks, seed, max_batch)
    output, hy, cy, _, cells = rnn(input, hx, cx, weights, *sequences, *config, False)
    return (output, hy, cy, cells) if casts is None else casts.results(output, hy, cy, cells)  # type: ignore[return-value]
