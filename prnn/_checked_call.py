"""Calls of a module by the operator prnn::rnn, after a check of all arguments: for traces, transforms and tensors that
are not plain, and to say what is wrong with arguments."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from prnn._layer_arguments import (
    check_input,
    check_not_empty,
    check_reset,
    check_tensor,
    checked_lengths,
    checked_state,
)
from prnn._ops._call import Options
from prnn._ops._layer import Config
from prnn._ops.rnn import call
from prnn._options import CELL_STATES, Layout, by_head, by_layer, compute, configuration_of

__all__ = ["run_checked"]

States = tuple[Tensor | None, ...]
Results = tuple[Tensor, Tensor, Tensor, Tensor]


def run_checked(
    module: Any,
    input: Any,
    states: States,
    lengths: Tensor | Sequence[int] | None,
    reset: Tensor | None,
    names: Sequence[str],
    return_cells: bool,
) -> Any:
    """Output, hy, cy and cells, in forward()'s layout. states: hx, cx, and those of reset_hx; names: theirs, as the
    caller gave them."""
    weights = module._packed_weights()
    if isinstance(input, PackedSequence):
        if lengths is not None:
            raise ValueError("lengths is given, but input is a PackedSequence, which has its own")
        data, batch_sizes, sorted_indices, unsorted_indices = input
        check_not_empty(batch_sizes)
        check_input(data, weights[0], module.input_size)
        batch = int(batch_sizes[0]) if sorted_indices is None else sorted_indices.size(0)
        states = _checked(module, states, reset, batch, names, data)
        if sorted_indices is not None:
            order = sorted_indices
            states = tuple(None if state is None else state.index_select(1, order) for state in states)
        layout: Layout = (batch_sizes, None, batch, None, False, False)
        output, hy, cy, cells = _call(module, data, states, weights, layout, reset, return_cells)
        if unsorted_indices is not None:
            hy = hy.index_select(1, unsorted_indices)
            cy = cy.index_select(1, unsorted_indices) if module.mode in CELL_STATES else cy
        rest = (batch_sizes, sorted_indices, unsorted_indices)
        return PackedSequence(output, *rest), hy, cy, PackedSequence(cells, *rest)

    check_tensor(input, "input")
    if input.dim() not in (2, 3):
        raise ValueError(
            f"input has {input.dim()} dimensions (shape {tuple(input.shape)}); it must have 3, or 2 if unbatched"
        )
    check_input(input, weights[0], module.input_size)
    if input.dim() == 2:
        if lengths is not None:
            raise ValueError("lengths is given, but input has 2 dimensions: one sequence, which is as long as it is")
        states = _checked(module, states, reset, None, names, input)
        reset = None if reset is None else reset.unsqueeze(1)
        layout = (None, None, None, None, False, False)
        output, hy, cy, cells = _call(module, input.unsqueeze(1), states, weights, layout, reset, return_cells)
        cy, cells = (value.squeeze(1) if value.dim() == 3 else value for value in (cy, cells))
        return output.squeeze(1), hy.squeeze(1), cy, cells
    batch = input.size(0 if module.batch_first else 1)
    states = _checked(module, states, reset, batch, names, input)
    if module.batch_first:
        input, reset = input.transpose(0, 1), None if reset is None else reset.transpose(0, 1)
    if lengths is not None:
        lengths = checked_lengths(lengths, batch, input)
    layout = (None, lengths, None, None, False, False)
    output, hy, cy, cells = _call(module, input, states, weights, layout, reset, return_cells)
    if module.batch_first:
        output, cells = output.transpose(0, 1), cells.transpose(0, 1) if return_cells else cells
    return output, hy, cy, cells


def _checked(
    module: Any, states: States, reset: Tensor | None, batch: int | None, names: Sequence[str], input: Tensor
) -> States:
    """The states as (L D, N, ...), after a check of them and of reset, too. batch: None: of an unbatched input."""
    if reset is not None:
        check_reset(reset, input)
    elif states[2] is not None or states[3] is not None:
        raise ValueError("reset_hx is given, but reset, which says where it is wanted, is None")
    count = module.num_layers * (2 if module.bidirectional else 1)
    checked: list[Tensor | None] = []
    for place, state in enumerate(states):
        if state is not None:
            is_cell = place % 2 == 1
            size = module.hidden_size if is_cell else module.proj_size or module.hidden_size
            own_count = count * CELL_STATES.get(module.mode, 0) if is_cell else count
            state = checked_state(state, names[place], own_count, size, batch, input)
        checked.append(state)
    return tuple(checked)


def _call(
    module: Any,
    input: Tensor,
    states: States,
    weights: list[Tensor],
    layout: Layout,
    reset: Tensor | None,
    return_cells: bool,
) -> Results:
    if reset is not None and reset.numel() == 0:
        reset, states = None, (*states[:2], None, None)
    config = configuration_of(module, return_cells, reset is not None)
    return compute(module, config, input, states, weights, layout, reset, _run_operator)


def _run_operator(
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    layout: Layout,
    options: Options,
    config: Config,
) -> Results:
    reset, zoneout, recurrent, seed = options
    if config.heads > 1:
        hx, cx, recurrent = by_head(config, hx, cx, recurrent)
    masks = (zoneout, recurrent) if config.mask_kinds > 0 else ()
    batch_sizes, lengths, max_batch, *_ = layout
    sequences = (batch_sizes, lengths, reset, masks, seed, max_batch)
    output, hy, cy, cells = call(input, hx, cx, list(weights), *sequences, config)
    if config.heads > 1:
        hy, cy = by_layer(config, hy, cy)
    return output, hy, cy, cells
