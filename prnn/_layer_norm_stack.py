"""The layers of a LayerNormLSTM by calls of each one's recurrence on the input of its gates."""

from __future__ import annotations  # torch 2.6 does not compile a nested function annotated with a union

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from prnn._C import Sequences
from prnn._compiler import disable
from prnn._layer_arguments import check_not_empty, is_autocast
from prnn._modes import NORMALIZE
from prnn._ops._handles import handle
from prnn._ops._layer import BACKENDS, MODES, Config
from prnn._ops._segments import cut, groups
from prnn._ops._segments import run as run_segments
from prnn._ops._sequences import sequences_of, unpack
from prnn._ops._torch_private import assert_async
from prnn._ops.layer_norm_lstm_input import input_products
from prnn._state_masks import draw_masks, mask_configuration

__all__ = ["gates_configuration", "run_layer_norm_stack"]

States = tuple[Tensor | None, Tensor | None]  # h and c
Masks = tuple[Tensor | None, Tensor | None]  # zoneout's (T, N, L D H), and the recurrent (L D, N, H)
Run = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]  # a call of a layer, as prnn._options has it
Stack = Callable[[Tensor, States, Tensor | None, Masks], tuple[Tensor, Tensor, Tensor]]


def run_layer_norm_stack(
    module: Any,
    input: Tensor,
    states: Sequence[Tensor | None],
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    reset: Tensor | None,
    run: Run,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A call of a LayerNormLSTM, of arguments that have been checked: output, hy, cy, and no elements for cells.

    Args:
        input: (T, N, I), or a PackedSequence's rows with batch_sizes; lengths and reset of the same layout.
        states: h and c, and those of reset_hx.
        weights: the module's, in the order of its _packed_weights().
        run: makes a layer's call.
    """
    is_cast = is_autocast(input)
    # The type of the results: the weights' type, under autocast the autocast type unless they are float64. On the CPU
    # 16 bits are computed in float32, without rounding what is given in float32.
    dtype = result_dtype = weights[0].dtype
    if is_cast and dtype != torch.float64:
        dtype = result_dtype = torch.get_autocast_dtype(input.device.type)
    if input.device.type == "cpu" and dtype in (torch.float16, torch.bfloat16):
        dtype = torch.float32
    directions = 2 if module.bidirectional else 1
    if batch_sizes is not None:
        if reset is not None:
            reset, _ = pad_packed_sequence(PackedSequence(reset, batch_sizes))
        input, lengths = pad_packed_sequence(PackedSequence(input, batch_sizes))
    check_not_empty(input)
    with torch.autocast(input.device.type, enabled=False) if is_cast else nullcontext():
        input = input.to(dtype)
        masks = draw_masks(module, input, input.size(1))
        if result_dtype != dtype or is_cast:
            states = [None if state is None else state.to(dtype) for state in states]
            weights = [weight.to(dtype) for weight in weights]
        on_device = None if lengths is None else _lengths_on_device(lengths, input)
        stack = partial(_run_stack, module, weights, run)
        output, hy, cy = _run_with_resets(stack, input, states, on_device, masks, reset, directions)
    if batch_sizes is not None:
        output = pack_padded_sequence(output, lengths).data  # type: ignore[arg-type]
    output, hy, cy = (result.to(result_dtype) for result in (output, hy, cy))
    return output, hy, cy, output.new_empty(0)


def _lengths_on_device(lengths: Tensor, input: Tensor) -> Tensor:
    """(N,) int32 on the device of input, (T, N, I). The host does not look at lengths on a GPU; those on the CPU are
    constants of a CUDA graph."""
    steps = input.size(0)
    if lengths.device.type == "cpu" and torch.compiler.is_compiling():
        is_right = ((lengths >= 1) & (lengths <= steps)).all()
        assert_async(is_right, "lengths must be 1 to the number of timesteps of input")
    elif lengths.device.type == "cpu":
        sequences = sequences_of(input, None, lengths)  # which checks them
        if input.is_cuda and torch.cuda.is_current_stream_capturing():  # which a copy from the host cannot be part of
            return _constant_lengths(sequences, input)
    return lengths.to(input.device, torch.int32, non_blocking=True)


def _constant_lengths(sequences: Sequences, input: Tensor) -> Tensor:
    """From a padded batch of ones, whose sizes are the copy's constants."""
    steps, batch = input.shape[:2]
    if not sequences.is_padded:
        return torch.full((batch,), steps, dtype=torch.int32, device=input.device)
    ones = torch.ones(sequences.rows, 1, dtype=torch.int32, device=input.device)
    places = (sequences.sizes, sequences.order)
    return unpack(handle(input.device), ones, (steps, batch, 1), *places).sum((0, 2), dtype=torch.int32)


def _run_stack(
    module: Any, weights: Sequence[Tensor], run: Run, input: Tensor, hx: States, lengths: Tensor | None, masks: Masks
) -> tuple[Tensor, Tensor, Tensor]:
    """All layers of input (T, N, I): output (T, N, D H), zero beyond each length, and the last h and c, (L D, N, H).

    Args:
        hx: h and c, (L D, N, H); None is zeros.
        lengths: of _lengths_on_device(); None: all are T.
    """
    directions, dropout = 2 if module.bidirectional else 1, module.dropout if module.training else 0.0
    padding = None
    if lengths is not None:
        padding = (torch.arange(input.size(0), device=input.device)[:, None] >= lengths)[:, :, None]
        input = input.masked_fill(padding, 0)
    last_h: list[Tensor] = []
    last_c: list[Tensor] = []
    for layer in range(module.num_layers):
        if layer > 0 and dropout > 0:
            input = functional.dropout(input, dropout)
        outputs = []
        for direction in range(directions):
            y, cy = _run_layer(module, weights, layer * directions + direction, input, hx, lengths, masks, run)
            outputs.append(y)
            last_h.append(y[:1] if direction else y[-1:])
            last_c.append(cy)
        input = torch.cat(outputs, -1) if directions == 2 else outputs[0]
        if padding is not None:
            input = input.masked_fill(padding, 0)
    return input, torch.cat(last_h), torch.cat(last_c)


def _run_layer(
    module: Any,
    weights: Sequence[Tensor],
    index: int,
    input: Tensor,
    hx: States,
    lengths: Tensor | None,
    masks: Masks,
    run: Run,
) -> tuple[Tensor, Tensor]:
    """One layer and direction, counted together by `index`: y (T, N, H) and the last c, (1, N, H). hx, masks: those of
    all."""
    hidden, directions = module.hidden_size, 2 if module.bidirectional else 1
    own, (h, c), (zoneout, recurrent_mask) = slice(index, index + 1), hx, masks
    h, c = None if h is None else h[own], None if c is None else c[own]
    if zoneout is not None:
        zoneout = zoneout[..., index * hidden : (index + 1) * hidden].to(input.dtype)
    if recurrent_mask is not None:
        recurrent_mask = recurrent_mask[own]
    count = len(weights) // (module.num_layers * directions)
    weight_ih, weight_hh, *norm = weights[index * count : (index + 1) * count]
    x = input_products(input, weight_ih)
    if module.normalize == "products":
        x = functional.layer_norm(x, (x.size(-1),), norm.pop(0), eps=module.eps)
    trains = False
    for leaf in (x, h, c, weight_hh, *norm):  # any() would enter a function for each
        trains = trains or (leaf is not None and leaf.requires_grad)
    layout = (None, None, None, None, trains and torch.is_grad_enabled(), False)
    options = (None, zoneout, recurrent_mask, None, lengths)
    config = gates_configuration(module, index % directions == 1)
    y, _, cy, _ = run(x, h, c, [weight_hh, *norm], layout, options, config)
    return y, cy


def gates_configuration(module: Any, reverse: bool) -> Config:
    """The operator's configuration of a layer's recurrence."""
    zoneout, mask_kinds = mask_configuration(module)
    return Config(
        *(MODES["LSTM"], module.hidden_size, 0, 1, False, 0.0, BACKENDS["best"]),
        zoneout=zoneout,
        mask_kinds=mask_kinds,
        gates_input=True,
        reverse=reverse,
        normalize=NORMALIZE[module.normalize],
        epsilon=module.eps,
    )


def _run_with_resets(
    stack: Stack,
    input: Tensor,
    hx: Sequence[Tensor | None],
    lengths: Tensor | None,
    masks: Masks,
    reset: Tensor | None,
    directions: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """stack(input, states, lengths, masks) of sequences that start anew where `reset`, (T, N), is set, by kernels that
    know no resets. hx: h and c, and those of reset_hx."""
    h, c = hx[:2]
    if reset is not None and input.size(0) > 1:
        return _run_cut(stack, input, hx, lengths, masks, reset, directions)
    if reset is not None:  # an agent acts: nothing to cut, and nothing to wait for
        h, c = (_initial_state(*pair, reset[0], directions) for pair in zip(hx[:2], hx[2:], strict=True))
    return stack(input, (h, c), lengths, masks)


@disable  # how many pieces there are, and how long, differs from call to call
def _run_cut(
    stack: Stack,
    input: Tensor,
    hx: Sequence[Tensor | None],
    lengths: Tensor | None,
    masks: Masks,
    reset: Tensor,
    directions: int,
) -> tuple[Tensor, Tensor, Tensor]:
    segments = cut(reset, None, lengths)
    zoneout, recurrent_mask = segments.cut_masks(*masks)

    def call(data: Tensor, h: Tensor | None, c: Tensor | None, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        all_groups = groups(segments)
        results = []
        for group in all_groups:
            own = slice(group.begin, group.end)
            states = None if h is None else h[:, own], None if c is None else c[:, own]
            stays = None if zoneout is None else group.pad(zoneout)
            kept = None if recurrent_mask is None else recurrent_mask[:, own]
            results.append(stack(group.pad(data), states, group.lengths, (stays, kept)))
        outputs, last_h, last_c = zip(*results, strict=True)
        padded = torch.cat([output.flatten(0, 1) for output in outputs])
        rows = torch.cat([group.rows.flatten() for group in all_groups])
        packed = padded.new_zeros(data.size(0) + 1, padded.size(-1)).index_copy(0, rows, padded)[:-1]
        return packed, torch.cat(last_h, 1), torch.cat(last_c, 1), packed.new_empty(0)

    output, hy, cy, _ = run_segments(call, input, hx[:2], hx[2:], segments, directions)
    return output, hy, cy


def _initial_state(state: Tensor | None, at_reset: Tensor | None, reset: Tensor, directions: int) -> Tensor | None:
    """Returns the states that a call of one timestep begins with, (L D, N, H); reset: (N,). States that go backwards
    cross no border."""
    some = state if state is not None else at_reset
    if some is None:
        return None
    state, at_reset = (torch.zeros_like(some) if each is None else each for each in (state, at_reset))
    is_forward = torch.arange(some.size(0), device=some.device)[:, None, None] % directions == 0
    return torch.where(is_forward & reset[:, None], at_reset, state)
