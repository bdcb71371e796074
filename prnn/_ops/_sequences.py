"""The sequences of a call as the C API takes them, _C.Sequences: packed from long to short, B_t in each timestep."""

from collections.abc import Sequence

import torch
from torch import Tensor

from prnn._C import Handle, Sequences, unpack_sequences

__all__ = ["sequences_of", "unpack"]


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
    found = Sequences.of_sizes(sizes, input.size(0))
    if found is None:
        if sum(sizes) != input.size(0) or not sizes:
            raise ValueError(f"batch_sizes add up to {sum(sizes)}, but the packed input has {input.size(0)} rows")
        raise ValueError("batch_sizes must be at least 1 and must not grow from a timestep to the next")
    return found


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


def unpack(library: Handle, packed: Tensor, shape: Sequence[int], sizes: list[int], order: list[int] | None) -> Tensor:
    """(rows, width) as a padded tensor of `shape`, (T, N, width), with zeros beyond each length.

    sizes: the sequences of each timestep; order: from long to short, None where they lie so."""
    steps, batch, width = shape
    padded, row = packed.new_empty(shape), width * packed.itemsize
    addresses = packed.data_ptr(), padded.data_ptr()
    unpack_sequences(library, sizes, order, row, *addresses, steps, batch * row, row)
    return padded
