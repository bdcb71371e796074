"""Computations around the operator for calls with resets, masks, heads or dropout, eager or traced."""

from __future__ import annotations  # torch 2.6 does not compile a nested function annotated with a union

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prnn._C import Sequences
from prnn._lstm_layers import run_lstm_layers
from prnn._modes import CELL_STATES, MODES
from prnn._ops._call import Options
from prnn._ops._dropout import draw_seed
from prnn._ops._layer import BACKENDS, Config
from prnn._ops._segments import cut, resets_in_kernels
from prnn._ops._segments import run as run_segments
from prnn._state_masks import (
    are_in_kernels,
    draw_masks,
    gru_weights,
    in_types_of_rnn,
    mask_configuration,
    operator_mode,
    uses_masks,
)

__all__ = ["CELL_STATES", "Layout", "compute", "configuration_of", "resets_in_kernels", "with_reset_states"]

_OF_CELL = {MODES[mode]: count for mode, count in CELL_STATES.items()}

Results = tuple[Tensor, Tensor, Tensor, Tensor]  # output, hy, cy and cells, which may have no elements


class Layout(NamedTuple):
    """How sequences lie in the input: batch_sizes and their first entry of packed ones; lengths of padded ones that do
    not have one length. sequences: both as the library takes them, where a caller knows them."""

    batch_sizes: Tensor | None
    lengths: Any
    max_batch: int | None
    sequences: Sequences | None = None


# Calls a kernel or the operator: input, hx, cx, weights, layout, options and configuration. hx and cx have the states
# of reset_hx, too, as the operator takes them.
Run = Callable[[Tensor, Tensor | None, Tensor | None, Sequence[Tensor], Layout, Options, Config], Results]


def configuration_of(module: Any, return_cells: bool = False, has_reset: bool = False) -> Config:
    """The operator's configuration of a call of a prnn.nn.LSTM, GRU or RNN."""
    zoneout, mask_kinds = mask_configuration(module) if uses_masks(module) else (0.0, 0)
    return Config(
        MODES[operator_mode(module)],
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
    arguments = (module, input, states, weights, layout.batch_sizes, layout.lengths, reset)
    if module.normalize != "none":
        return run_lstm_layers(*arguments, None)
    seed = draw_seed(input.device, 2) if config.dropout > 0 else None
    is_gru_for_rnn = config.mode != MODES[module.mode]
    if is_gru_for_rnn:
        weights = gru_weights(list(weights), module.hidden_size, module.heads)
    masks: tuple[Tensor | None, ...] = ()
    if config.zoneout > 0 or config.mask_kinds > 0:
        batch = input.size(1) if layout.max_batch is None else layout.max_batch
        masks = draw_masks(module, input, batch)
        if config.mode == MODES["LSTM"] and not are_in_kernels(config, input, batch, layout.lengths, weights):
            return run_lstm_layers(*arguments, masks, config.return_cells)
    if reset is not None:
        batch = input.size(1) if layout.max_batch is None else layout.max_batch
        if not resets_in_kernels(config, input, batch):
            return _run_segments(config, input, states, weights, layout, reset, masks, seed, run)
    zoneout, recurrent = masks or (None, None)
    options = (reset, zoneout, recurrent, seed)
    results = _run_whole(config, input, states, weights, layout, options, run)
    return in_types_of_rnn(results, input) if is_gru_for_rnn else results


def _run_segments(
    config: Config,
    input: Tensor,
    states: Sequence[Tensor | None],
    weights: Sequence[Tensor],
    layout: Layout,
    reset: Tensor,
    masks: tuple[Tensor | None, ...],
    seed: Tensor | None,
    run: Run,
) -> Results:
    """compute() where kernels without resets serve the layer: each piece of a sequence is one of its own."""
    pieces = cut(reset, layout.batch_sizes, layout.lengths)
    zoneout, recurrent = pieces.cut_masks(*masks) if masks else (None, None)
    without = config._replace(has_reset=False)

    def call_segments(data: Tensor, hx: Tensor | None, cx: Tensor | None, sizes: Tensor, batch: int) -> Results:
        options = (None, zoneout, recurrent, seed)
        return _run_whole(without, data, (hx, cx, None, None), weights, Layout(sizes, None, batch), options, run)

    directions = 2 if config.bidirectional else 1
    return run_segments(call_segments, input, states[:2], states[2:], pieces, directions)


def _run_whole(
    config: Config,
    input: Tensor,
    states: Sequence[Tensor | None],
    weights: Sequence[Tensor],
    layout: Layout,
    options: Options,
    run: Run,
) -> Results:
    """Brings states and the recurrent mask, (L D, N, H), to the operator's form, which has one for every head, and in
    one tensor the states to begin with and those of resets; and its states back."""
    heads, of_cell = config.heads, _OF_CELL.get(config.mode, 1)
    if heads > 1:
        reset, zoneout, recurrent, seed = options
        parts = (1, of_cell, 1, of_cell, 1)
        *states, recurrent = [
            None if state is None else _by_head(state, heads, count)
            for state, count in zip((*states, recurrent), parts, strict=True)
        ]
        options = (reset, zoneout, recurrent, seed)
    hx, cx, *at_reset = states
    if at_reset[0] is not None or at_reset[1] is not None:
        hx, cx = with_reset_states(states)
    output, hy, cy, cells = run(input, hx, cx, weights, layout, options, config)
    if heads > 1:
        hy = hy.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)
        cy = _by_layer(cy, heads, of_cell) if cy.dim() == 3 else cy
    return output, hy, cy, cells


def _by_head(state: Tensor, heads: int, parts: int) -> Tensor:
    """(L D parts, N, H) as (L D heads parts, N, H / heads)."""
    if parts == 1:  # the same in fewer operators
        return state.unflatten(2, (heads, -1)).transpose(1, 2).flatten(0, 1)
    return state.unflatten(2, (heads, -1)).unflatten(0, (-1, parts)).permute(0, 3, 1, 2, 4).flatten(0, 2)


def _by_layer(state: Tensor, heads: int, parts: int) -> Tensor:
    """The inverse of _by_head()."""
    if parts == 1:
        return state.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)
    return state.unflatten(0, (-1, heads, parts)).permute(0, 2, 3, 1, 4).flatten(3).flatten(0, 1)


def with_reset_states(states: Sequence[Tensor | None]) -> tuple[Tensor | None, Tensor | None]:
    """hx and cx of hx, cx and those of reset_hx: where the latter are given, (2, L D, N, H) of both."""
    hx, cx, *at_reset = states
    if at_reset[0] is not None:
        hx = torch.stack([torch.zeros_like(at_reset[0]) if hx is None else hx, at_reset[0]])
    if at_reset[1] is not None:
        cx = torch.stack([torch.zeros_like(at_reset[1]) if cx is None else cx, at_reset[1]])
    return hx, cx
