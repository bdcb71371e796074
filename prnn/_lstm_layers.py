"""Stacks of the operator layer_norm_lstm: what LayerNormLSTM, and an LSTM with zoneout or recurrent dropout, share."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from prnn._compiler import disable
from prnn._layer_arguments import checked_lengths
from prnn._ops._segments import Group, cut, run_padded
from prnn._ops._segments import run as run_segments
from prnn._ops._sequences import sequences_of, unpack
from prnn._ops._torch_private import assert_async, in_functorch
from prnn._ops.layer_norm_lstm import NORMALIZE, call_layer_norm_lstm

__all__ = ["Masks", "lengths_on_device", "masks_of", "run_layer", "run_layers", "run_with_resets"]

Masks = tuple[Tensor | None, Tensor | None]  # of a layer and direction: zoneout's (T, N, H), and the recurrent (N, H)
# Runs all layers: of input (T, N, I), h and c, lengths and the masks of all layers, output and the last h and c.
RunStack = Callable[[Tensor, tuple[Tensor | None, Tensor | None], Tensor | None, Masks], tuple[Tensor, Tensor, Tensor]]


def lengths_on_device(lengths: Tensor | Sequence[int], input: Tensor) -> Tensor:
    """(N,) int32 on the device of input, (T, N, I). The host does not look at lengths on a GPU; those on the CPU are
    constants of a CUDA graph."""
    steps, batch = input.shape[:2]
    lengths = checked_lengths(lengths, batch, input)
    if lengths.device.type == "cpu" and torch.compiler.is_compiling():
        is_right = ((lengths >= 1) & (lengths <= steps)).all()
        assert_async(is_right, "lengths must be 1 to the number of timesteps of input")
    elif lengths.device.type == "cpu":
        for place, length in enumerate(lengths.tolist()):
            if not 1 <= length <= steps:
                raise ValueError(f"lengths[{place}] is {length}; it must be 1 to {steps}, the timesteps of input")
        if input.is_cuda and torch.cuda.is_current_stream_capturing():  # which a copy from the host cannot be part of
            return _constant_lengths(lengths, input)
    return lengths.to(input.device, torch.int32, non_blocking=True)


def _constant_lengths(lengths: Tensor, input: Tensor) -> Tensor:
    """From a padded batch of ones, whose sizes are the copy's constants."""
    steps, batch = input.shape[:2]
    sequences = sequences_of(input, None, lengths)
    if not sequences.is_padded:
        return torch.full((batch,), steps, dtype=torch.int32, device=input.device)
    ones = torch.ones(sequences.rows, 1, dtype=torch.int32, device=input.device)
    return unpack(sequences, ones, (steps, batch, 1)).sum((0, 2), dtype=torch.int32)


def masks_of(masks: Masks, index: int, hidden: int, dtype: torch.dtype) -> Masks:
    """Of layer and direction, counted together, from those of all, zoneout's (T, N, L D H) and (L D, N, H)."""
    zoneout, recurrent = masks
    return (
        None if zoneout is None else zoneout[..., index * hidden : (index + 1) * hidden].to(dtype),
        None if recurrent is None else recurrent[index].to(dtype),
    )


def run_layer(
    x: Tensor,
    states: tuple[Tensor | None, Tensor | None],
    recurrent: Tensor,
    norm: Sequence[Tensor | None],
    lengths: Tensor | None,
    masks: Masks,
    *,
    normalize: str,
    reverse: bool,
    zoneout: float,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """One layer and direction: y (T, N, H) and the last c.

    Args:
        x: (T, N, 4 H), the products of the input with what is added to them.
        states: h0 and c0, (N, H); None is zeros.
        norm: gain and bias of the gates, gain and bias of the cell state; None each where nothing is normalised.
        lengths: of lengths_on_device(); None: all are T.
        zoneout: the expectation that evaluation takes in place of a mask; 0 in training.
    """
    arrays: list[Tensor | None] = [x, *states, recurrent, *norm, *masks, lengths]
    arrays = [None if array is None else array.contiguous() for array in arrays]
    # Under vmap a tensor does not say whether a transform around it wants its gradient.
    wanted = in_functorch() or any(array is not None and array.requires_grad for array in arrays)
    keep = torch.is_grad_enabled() and wanted
    y, cy, _ = call_layer_norm_lstm(*arrays, NORMALIZE[normalize], reverse, float(eps), float(zoneout), keep)
    return y, cy


def run_layers(
    input: Tensor,
    hx: tuple[Tensor | None, Tensor | None],
    lengths: Tensor | None,
    num_layers: int,
    directions: int,
    dropout: float,
    run: Callable[[Tensor, tuple[Tensor | None, Tensor | None], int, int], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor, Tensor]:
    """A stack: output (T, N, D H), zero beyond each length, and the last h and c, (L D, N, H).

    Args:
        input: (T, N, I).
        hx: h and c, (L D, N, H); None is zeros.
        lengths: of lengths_on_device(); None: all are T.
        dropout: probability of dropout between layers in this call.
        run: run(input, states, layer, direction), as run_layer(), of one layer and direction.
    """
    padding = None
    if lengths is not None:
        padding = (torch.arange(input.size(0), device=input.device)[:, None] >= lengths)[:, :, None]
        input = input.masked_fill(padding, 0)
    last_h, last_c = [], []
    for layer in range(num_layers):
        if layer > 0 and dropout > 0:
            input = functional.dropout(input, dropout)
        outputs = []
        for direction in range(directions):
            h0, c0 = (None if state is None else state[layer * directions + direction] for state in hx)
            y, cy = run(input, (h0, c0), layer, direction)
            outputs.append(y)
            last_h.append(y[0 if direction else -1])
            last_c.append(cy)
        input = torch.cat(outputs, -1) if directions == 2 else outputs[0]
        if padding is not None:
            input = input.masked_fill(padding, 0)
    return input, torch.stack(last_h), torch.stack(last_c)


def run_with_resets(
    run: RunStack,
    input: Tensor,
    hx: Sequence[Tensor | None],
    lengths: Tensor | None,
    masks: Masks,
    reset: Tensor | None,
    directions: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same of sequences that start anew where `reset`, (T, N), is set, by kernels that know no resets. hx: h and c,
    and those of reset_hx."""
    if reset is not None and input.size(0) == 1:  # an agent acts: nothing to cut, and nothing to wait for
        pairs = zip(hx[:2], hx[2:], strict=True)
        hx, reset = [_initial_state(*pair, reset[0], directions) for pair in pairs], None
    if reset is None:
        return run(input, (hx[0], hx[1]), lengths, masks)
    return _run_cut(run, input, hx, lengths, masks, reset, directions)


@disable  # how many pieces there are, and how long, differs from call to call
def _run_cut(
    run: RunStack,
    input: Tensor,
    hx: Sequence[Tensor | None],
    lengths: Tensor | None,
    masks: Masks,
    reset: Tensor,
    directions: int,
) -> tuple[Tensor, Tensor, Tensor]:
    segments = cut(reset, None, lengths)
    zoneout, recurrent = segments.cut_masks(*masks)

    def call_group(input: Tensor, h: Tensor | None, c: Tensor | None, group: Group) -> tuple[Tensor, Tensor, Tensor]:
        own = (
            None if zoneout is None else group.pad(zoneout),
            None if recurrent is None else recurrent[:, group.begin : group.end],
        )
        return run(input, (h, c), group.lengths, own)

    def call(
        data: Tensor, h: Tensor | None, c: Tensor | None, _: Tensor, count: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return run_padded(call_group, data, h, c, segments)

    output, hy, cy, _ = run_segments(call, input, hx[:2], hx[2:], segments, directions)
    return output, hy, cy


def _initial_state(state: Tensor | None, at_reset: Tensor | None, reset: Tensor, directions: int) -> Tensor | None:
    """What a call of one timestep begins with, (L D, N, H); reset: (N,). States that go backwards cross no border."""
    some = state if state is not None else at_reset
    if some is None:
        return None
    state, at_reset = (torch.zeros_like(some) if each is None else each for each in (state, at_reset))
    is_forward = torch.arange(some.size(0), device=some.device)[:, None, None] % directions == 0
    return torch.where(is_forward & reset[:, None], at_reset, state)
