"""The sequences of a call as the C API takes them, _C.Sequences: packed from long to short, B_t in each timestep; and
padded tensors brought to that order and back.

The copies have sizes and order as constants, so that a CUDA graph can hold them."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from prnn._C import Handle, Sequences, pack_sequences, unpack_sequences

__all__ = [
    "pack",
    "sequences_of",
    "sequences_of_batch_sizes",
    "sequences_of_lengths",
    "sort_states",
    "unpack",
    "unsort_states",
]

_INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))


def sequences_of(input: Tensor, batch_sizes: Tensor | None, lengths: Tensor | None) -> Sequences:
    """The sequences of the operator's input; ValueError where its arguments disagree."""
    if input.dim() == 3 and batch_sizes is None:
        steps, batch = input.shape[:2]
        if steps == 0:
            raise ValueError("input has 0 timesteps; it must have at least 1")
        return Sequences.even(steps, batch) if lengths is None else _sequences_of_checked_lengths(steps, batch, lengths)
    if input.dim() != 2 or batch_sizes is None or lengths is not None:
        raise ValueError(
            f"input has {input.dim()} dimensions; it must have 3, or 2 with batch_sizes and without lengths"
        )
    sizes = batch_sizes.tolist()
    if any(later > earlier for earlier, later in itertools.pairwise(sizes)) or (sizes and sizes[-1] < 1):
        raise ValueError("batch_sizes must be at least 1 and must not grow from a timestep to the next")
    if sum(sizes) != input.size(0) or not sizes:
        raise ValueError(f"batch_sizes add up to {sum(sizes)}, but the packed input has {input.size(0)} rows")
    return Sequences(sizes)


def _sequences_of_checked_lengths(steps: int, batch: int, lengths: Tensor) -> Sequences:
    if lengths.shape != (batch,) or lengths.is_floating_point():
        raise ValueError(
            f"lengths has shape {tuple(lengths.shape)} and dtype {lengths.dtype}; wanted are {batch} integers"
        )
    if lengths.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ValueError(
            f"lengths is on {lengths.device}, and a CUDA graph is being captured, which cannot wait for its values; "
            "on the CPU they become constants of the graph"
        )
    if batch == 0:
        return Sequences.even(steps, 0)
    return Sequences(lengths.tolist(), steps)


def sequences_of_batch_sizes(batch_sizes: Tensor, rows: int) -> Sequences | None:
    """The sequences of packed data. None where batch_sizes are wrong: sequences_of() raises the error."""
    sizes = batch_sizes.tolist()
    if not sizes or sizes[-1] < 1 or sum(sizes) != rows or sorted(sizes, reverse=True) != sizes:
        return None
    return Sequences(sizes)


def sequences_of_lengths(lengths: Any, steps: int, batch: int) -> Sequences | None:
    """The sequences of padded data. None for lengths that take more to look at than a tensor of integers, a list or a
    tuple, or that are wrong: checked_lengths() and sequences_of() take those."""
    if type(lengths) is Tensor:
        if lengths.dtype not in _INTEGERS or lengths.shape != (batch,) or lengths.is_meta:
            return None
        return Sequences(lengths.tolist(), steps)  # which raises where one is less than 1 or more than steps
    if type(lengths) in (list, tuple) and set(map(type, lengths)) == {int} and len(lengths) == batch:
        return Sequences(lengths, steps) if max(lengths) <= steps and min(lengths) > 0 else None
    return None


def pack(library: Handle, padded: Tensor, sizes: list[int], order: list[int] | None) -> Tensor:
    """(T, N, width), of any dtype, as (rows, width). sizes: the sequences of each timestep; order: from long to short,
    None where they lie so."""
    width, itemsize = padded.size(-1), padded.itemsize
    if padded.stride(-1) != 1:
        padded = padded.contiguous()
    packed = padded.new_empty(sum(sizes), width)
    strides = padded.stride(0) * itemsize, padded.stride(1) * itemsize
    pack_sequences(library, sizes, order, width * itemsize, padded.data_ptr(), *strides, packed.data_ptr())
    return packed


def unpack(library: Handle, packed: Tensor, shape: Sequence[int], sizes: list[int], order: list[int] | None) -> Tensor:
    """pack()'s result as a padded tensor of `shape`, with zeros beyond each length."""
    steps, batch, width = shape
    padded, row = packed.new_empty(shape), width * packed.itemsize
    addresses = packed.data_ptr(), padded.data_ptr()
    unpack_sequences(library, sizes, order, row, *addresses, steps, batch * row, row)
    return padded


def sort_states(library: Handle, sequences: Sequences, states: Tensor) -> Tensor:
    """(..., N, width) with the sequences from long to short, contiguous."""
    if sequences.order is None:
        return states.contiguous()
    by_layer = states.flatten(0, -3)
    return pack(library, by_layer, [sequences.batch] * by_layer.size(0), sequences.order).view(states.shape)


def unsort_states(library: Handle, sequences: Sequences, states: Tensor) -> Tensor:
    """sort_states()'s result in the caller's order."""
    if sequences.order is None:
        return states
    by_layer = states.flatten(0, -3)
    sizes = [sequences.batch] * by_layer.size(0)
    return unpack(library, by_layer, by_layer.shape, sizes, sequences.order).view(states.shape)
