"""Computations around the kernels for calls with resets, masks, heads or dropout, eager or traced."""

from __future__ import annotations  # torch 2.6 does not compile a nested function annotated with a union

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from prnn._C import Sequences
from prnn._layer_arguments import is_autocast
from prnn._layer_norm_stack import run_layer_norm_stack
from prnn._modes import CELL_STATES, MODES
from prnn._ops._call import NO_OPTIONS, Options
from prnn._ops._dropout import draw_seed
from prnn._ops._layer import BACKENDS, Config
from prnn._ops._segments import cut, resets_in_kernels
from prnn._ops._segments import run as run_segments
from prnn._ops.rnn import call as call_operator
from prnn._state_masks import draw_masks, mask_configuration

__all__ = [
    "CELL_STATES",
    "Layout",
    "by_head",
    "by_layer",
    "compute",
    "configuration_of",
    "in_layout_of_input",
    "run_operator",
]

_OF_CELL = {MODES[mode]: count for mode, count in CELL_STATES.items()}

Results = tuple[Tensor, Tensor, Tensor, Tensor]  # output, hy, cy and cells, which may have no elements


# How sequences lie in the input: batch_sizes of packed ones, lengths of padded ones that do not have one length, and
# their number; and, of an eager call, all as the library takes them, whether it has a gradient, and autocast.
Layout = tuple[Tensor | None, Any, int, Sequences | None, bool, bool]

# Calls a kernel or the operator: input, hx, cx, weights, layout, options and configuration. hx and cx have the states
# of reset_hx, too, as the operator takes them; those of layers with heads are still (L D, N, H).
Run = Callable[[Tensor, Tensor | None, Tensor | None, Sequence[Tensor], Layout, Options, Config], Results]


def configuration_of(module: Any, return_cells: bool = False, has_reset: bool = False) -> Config:
    """The operator's configuration of a call of a prnn.nn.LSTM, GRU or RNN."""
    zoneout, mask_kinds = mask_configuration(module)
    return Config(
        MODES[module.mode],
        module.hidden_size,
        module.proj_size,
        module.num_layers,
        module.bidirectional,
        module.dropout if module.training and module.num_layers > 1 else 0.0,
        BACKENDS[module.backend],
        return_cells,
        has_reset,
        module.heads,
        zoneout,
        mask_kinds,
    )


def compute(
    module: Any,
    config: Config,
    input: Tensor,
    states: Sequence[Tensor | None],
    weights: Sequence[Tensor],
    layout: Layout,
    reset: Tensor | None,
    run: Run,
) -> Results:
    """A call with options, of arguments that have been checked.

    input: (T, N, I) or packed; states: hx, cx, and those of reset_hx, (L D, N, ...); reset: in the layout of input."""
    batch_sizes, lengths, batch, _, _, _ = layout
    if module.normalize != "none":
        return run_layer_norm_stack(module, input, states, weights, batch_sizes, _tensor_of(lengths), reset, run)
    seed = draw_seed(input.device, 2) if config.dropout > 0 else None
    zoneout, recurrent = draw_masks(module, input, batch) if config.mask_kinds > 0 else (None, None)
    hx, cx, reset_hx, reset_cx = states
    options = NO_OPTIONS
    if not (reset is zoneout is recurrent is seed is None):
        options = (reset, zoneout, recurrent, seed, None)
    if reset is not None and input.is_cuda and not resets_in_kernels(config, input, batch):
        return _run_segments(config, input, states, weights, layout, options, run)
    if reset_hx is not None or reset_cx is not None:
        hx, cx = _with_reset_state(hx, reset_hx), _with_reset_state(cx, reset_cx)
    return run(input, hx, cx, weights, layout, options, config)


def run_operator(
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    layout: Layout,
    options: Options,
    config: Config,
) -> Results:
    """A Run by the operator prnn::rnn, for traces, transforms and tensors that are not plain."""
    reset, zoneout, recurrent, seed, on_device = options
    if config.heads > 1:
        hx, cx, recurrent = by_head(config, hx, cx, recurrent)
    masks = (zoneout, recurrent) if config.mask_kinds > 0 else ()
    batch_sizes, lengths, batch, *_ = layout
    max_batch = None if batch_sizes is None else batch
    sequences = (batch_sizes, lengths if on_device is None else on_device, reset, masks, seed, max_batch)
    output, hy, cy, cells = call_operator(input, hx, cx, list(weights), *sequences, config)
    if config.heads > 1:
        hy, cy = by_layer(config, hy, cy)
    return output, hy, cy, cells


def in_layout_of_input(results: Results, packed: tuple[Any, ...] | None, is_time_second: bool) -> Any:
    """A call's results in forward()'s layout of a PackedSequence, with the rest of its members, of (N, T, I), or of one
    sequence."""
    output, hy, cy, cells = results
    if packed is not None:
        if (back := packed[2]) is not None:
            hy, cy = hy.index_select(1, back), cy.index_select(1, back) if cy.dim() == 3 else cy
        whole = [PackedSequence(rows, *packed) if rows.dim() == 2 else rows for rows in (output, cells)]
        return whole[0], hy, cy, whole[1]
    if is_time_second:
        return output.transpose(0, 1), hy, cy, cells.transpose(0, 1) if cells.dim() == 3 else cells
    return tuple(value.squeeze(1) if value.dim() == 3 else value for value in results)


def _run_segments(
    config: Config,
    input: Tensor,
    states: Sequence[Tensor | None],
    weights: Sequence[Tensor],
    layout: Layout,
    options: Options,
    run: Run,
) -> Results:
    """compute() where kernels without resets serve the layer: each piece of a sequence is one of its own."""
    reset, zoneout, recurrent, seed, _ = options
    assert reset is not None
    batch_sizes, lengths, _, _, training, is_cast = layout
    pieces = cut(reset, batch_sizes, _tensor_of(lengths))
    zoneout, recurrent = pieces.cut_masks(zoneout, recurrent)
    without = config._replace(has_reset=False)

    def call_segments(data: Tensor, hx: Tensor | None, cx: Tensor | None, sizes: Tensor, batch: int) -> Results:
        layout = (sizes, None, batch, None, training, is_cast)
        return run(data, hx, cx, weights, layout, (None, zoneout, recurrent, seed, None), without)

    directions = 2 if config.bidirectional else 1
    return run_segments(call_segments, input, states[:2], states[2:], pieces, directions)


def _tensor_of(lengths: Any) -> Tensor | None:
    """Lengths that have been checked as a tensor."""
    return lengths if lengths is None or isinstance(lengths, Tensor) else torch.tensor(list(lengths), device="cpu")


def by_head(
    config: Config, hx: Tensor | None, cx: Tensor | None, recurrent: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """States (..., L D, N, H) and the recurrent mask, (L D, N, H), in the operator's form, with one for every head:
    (..., L D heads, N, H / heads)."""
    heads, parts = config.heads, _OF_CELL.get(config.mode, 1)
    if hx is not None:
        hx = hx.unflatten(-1, (heads, -1)).transpose(-3, -2).flatten(-4, -3)
    if recurrent is not None:
        recurrent = recurrent.unflatten(-1, (heads, -1)).transpose(-3, -2).flatten(-4, -3)
    if cx is not None and parts == 1:  # the same as with more in fewer operators
        cx = cx.unflatten(-1, (heads, -1)).transpose(-3, -2).flatten(-4, -3)
    elif cx is not None:
        by_layer = cx.unflatten(-1, (heads, -1)).unflatten(-4, (-1, parts))  # (..., L D, parts, N, heads, H / heads)
        cx = by_layer.movedim(-2, -4).flatten(-5, -3)
    return hx, cx, recurrent


def by_layer(config: Config, hy: Tensor, cy: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse of by_head() for a call's last states. cy has no elements where the cell has none."""
    heads, parts = config.heads, _OF_CELL.get(config.mode, 1)
    hy = hy.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)
    if cy.dim() == 3 and parts == 1:
        cy = cy.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)
    elif cy.dim() == 3:
        cy = cy.unflatten(0, (-1, heads, parts)).permute(0, 2, 3, 1, 4).flatten(3).flatten(0, 1)
    return hy, cy


def _with_reset_state(state: Tensor | None, at_reset: Tensor | None) -> Tensor | None:
    """A state, and where the one of reset_hx is given, (2, L D, N, H) of both. Under autocast stack() takes no 16 bits
    but those of autocast."""
    if at_reset is None:
        return state
    state = torch.zeros_like(at_reset) if state is None else state
    with torch.autocast(state.device.type, enabled=False) if is_autocast(state) else nullcontext():
        return torch.stack([state, at_reset])
