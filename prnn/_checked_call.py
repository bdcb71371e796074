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
from prnn._options import CELL_STATES, Layout, by_head, by_layer, compute, configuration_of, in_layout_of_input

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
    batch_sizes: Any = None
    order = back = None
    batch: Any = None  # of unbatched input
    is_packed = isinstance(input, PackedSequence)
    if is_packed:
        if lengths is not None:
            raise ValueError("lengths is given, but input is a PackedSequence, which has its own")
        input, batch_sizes, order, back = input
        check_not_empty(batch_sizes)
    else:
        check_tensor(input, "input")
        if input.dim() not in (2, 3):
            raise ValueError(
                f"input has {input.dim()} dimensions (shape {tuple(input.shape)}); it must have 3, or 2 if unbatched"
            )
    check_input(input, weights[0], module.input_size)
    is_single = not is_packed and input.dim() == 2
    is_time_second = not is_packed and not is_single and module.batch_first
    if is_packed:
        batch = int(batch_sizes[0]) if order is None else order.size(0)
    elif not is_single:
        batch = input.size(0 if is_time_second else 1)
    elif lengths is not None:
        raise ValueError("lengths is given, but input has 2 dimensions: one sequence, which is as long as it is")
    states = _checked(module, states, reset, batch, names, input)
    if order is not None:
        states = tuple(None if state is None else state.index_select(1, order) for state in states)
    if is_single:
        input, reset = input.unsqueeze(1), None if reset is None else reset.unsqueeze(1)
    if is_time_second:
        input, reset = input.transpose(0, 1), None if reset is None else reset.transpose(0, 1)
    if lengths is not None:
        lengths = checked_lengths(lengths, batch, input)
    if reset is not None and reset.numel() == 0:
        reset, states = None, (*states[:2], None, None)

    config = configuration_of(module, return_cells, reset is not None)
    layout: Layout = (batch_sizes, lengths, batch if is_packed else None, None, False, False)
    results = compute(module, config, input, states, weights, layout, reset, _run_operator)
    if is_packed or is_time_second or is_single:
        return in_layout_of_input(results, (batch_sizes, order, back) if is_packed else None, is_time_second)
    return results


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


def _run_operator(
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    layout: Layout,
    options: Options,
    config: Config,
) -> Results:
    reset, zoneout, recurrent, seed, on_device = options
    if config.heads > 1:
        hx, cx, recurrent = by_head(config, hx, cx, recurrent)
    masks = (zoneout, recurrent) if config.mask_kinds > 0 else ()
    batch_sizes, lengths, max_batch, *_ = layout
    sequences = (batch_sizes, lengths if on_device is None else on_device, reset, masks, seed, max_batch)
    output, hy, cy, cells = call(input, hx, cx, list(weights), *sequences, config)
    if config.heads > 1:
        hy, cy = by_layer(config, hy, cy)
    return output, hy, cy, cells
