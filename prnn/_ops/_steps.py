"""The sequences of an operator's input, as the C API takes them: packed, from long to short."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Steps(NamedTuple):
    """The sequences of a call as the C API takes them: B_t for each timestep, and how padded data gets there."""

    sizes: list[int]
    rows: Tensor | None = None  # of the packed data, in padded data seen as (T N, ...); None: the data is packed
    order: Tensor | None = None  # sequences from long to short
    inverse: Tensor | None = None

    @property
    def batch(self) -> int:
        return self.sizes[0] if self.sizes else 0

    def pack(self, padded: Tensor) -> Tensor:
        if self.rows is None:
            return padded.contiguous()
        return padded.reshape(-1, padded.size(-1)).index_select(0, self.rows)

    def new_packed(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Room for packed data that unpack() is to bring to a padded `shape`."""
        return like.new_empty(shape if self.rows is None else (self.rows.size(0), shape[-1]))

    def unpack(self, packed: Tensor, shape: Sequence[int]) -> Tensor:
        """Data from new_packed(), padded with zeros."""
        if self.rows is None:
            return packed
        padded = packed.new_zeros(shape)
        padded.view(-1, shape[-1]).index_copy_(0, self.rows, packed)
        return padded

    def sort(self, state: Tensor | None) -> Tensor | None:
        if state is None or self.order is None:
            return None if state is None else state.contiguous()
        return state.index_select(1, self.order)

    def unsort(self, state: Tensor) -> Tensor:
        return state if self.inverse is None or state.dim() < 3 else state.index_select(1, self.inverse)


def steps_of(input: Tensor, batch_sizes: Tensor | None, lengths: Tensor | None) -> Steps:
    """The timesteps of the operator's input; ValueError where its arguments disagree."""
    if input.dim() == 3 and batch_sizes is None:
        steps, batch = input.shape[:2]
        if steps == 0:
            raise ValueError(f"input has no timesteps (shape {tuple(input.shape)}); at least one is wanted")
        return Steps([batch] * steps) if lengths is None else _of_lengths(steps, batch, lengths, input.device)
    if input.dim() != 2 or batch_sizes is None or lengths is not None:
        raise ValueError(
            f"input has {input.dim()} dimensions; it must have 3, or 2 with batch_sizes and without lengths"
        )
    sizes = batch_sizes.tolist()
    if any(later > earlier for earlier, later in itertools.pairwise(sizes)) or (sizes and sizes[-1] < 1):
        raise ValueError("batch_sizes must be at least 1 and must not grow from a timestep to the next")
    if sum(sizes) != input.size(0) or not sizes:
        raise ValueError(f"batch_sizes add up to {sum(sizes)}, but the packed input has {input.size(0)} rows")
    return Steps(sizes)


def _of_lengths(steps: int, batch: int, lengths: Tensor, device: torch.device) -> Steps:
    if lengths.shape != (batch,) or lengths.is_floating_point():
        raise ValueError(
            f"lengths has shape {tuple(lengths.shape)} and dtype {lengths.dtype}; wanted are {batch} integers"
        )
    lengths = lengths.to("cpu", torch.int64)
    for index, length in enumerate(lengths.tolist()):
        if not 1 <= length <= steps:
            raise ValueError(f"lengths[{index}] is {length}; it must lie between 1 and the {steps} timesteps of input")
    in_order, order = lengths.sort(descending=True, stable=True)
    active = torch.arange(steps).unsqueeze(1) < in_order  # (T, N), sequences from long to short
    sizes = active.sum(1)
    time, place = active.nonzero(as_tuple=True)
    rows = (time * batch + order[place]).to(device)
    return Steps(sizes[sizes > 0].tolist(), rows, order.to(device), order.argsort().to(device))
