"""The sequences of an operator's input, as the C API takes them: packed, from long to short."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prnn import _C
from prnn._ops._handles import handle


class Steps(NamedTuple):
    """The sequences of a call as the C API takes them: B_t for each timestep, and how padded data gets there.

    The copies have sizes and order as constants, so that a CUDA graph can hold them."""

    sizes: list[int]
    is_padded: bool = False
    order: list[int] | None = None  # sequences from long to short; None: as they lie

    @property
    def batch(self) -> int:
        return self.sizes[0] if self.sizes else 0

    def pack(self, padded: Tensor) -> Tensor:
        """(T, N, width), of any dtype, as (rows, width)."""
        if not self.is_padded:
            return padded.contiguous()
        return _packed(padded, self.sizes, self.order)

    def new_packed(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Room for packed data that unpack() is to bring to a padded `shape`."""
        if self.is_padded:
            return like.new_empty(sum(self.sizes), shape[-1])
        return like.new_empty(*shape)  # a tuple takes half as long again

    def unpack(self, packed: Tensor, shape: Sequence[int]) -> Tensor:
        """Data from new_packed(), padded with zeros."""
        return _padded(packed, shape, self.sizes, self.order) if self.is_padded else packed

    def sort(self, state: Tensor | None) -> Tensor | None:
        if state is None or self.order is None:
            return None if state is None else state.contiguous()
        return _packed(state, [self.batch] * state.size(0), self.order).view(state.shape)

    def unsort(self, state: Tensor) -> Tensor:
        if self.order is None or state.dim() < 3:
            return state
        return _padded(state, state.shape, [self.batch] * state.size(0), self.order)


def _packed(padded: Tensor, sizes: list[int], order: list[int] | None) -> Tensor:
    width, itemsize = padded.size(-1), padded.itemsize
    if padded.stride(-1) != 1:
        padded = padded.contiguous()
    packed = padded.new_empty(sum(sizes), width)
    strides = padded.stride(0) * itemsize, padded.stride(1) * itemsize
    addresses = padded.data_ptr(), *strides, packed.data_ptr()
    _C.pack_sequences(handle(padded.device), sizes, order, width * itemsize, *addresses)
    return packed


def _padded(packed: Tensor, shape: Sequence[int], sizes: list[int], order: list[int] | None) -> Tensor:
    steps, batch, width = shape
    padded, row = packed.new_empty(shape), width * packed.itemsize
    addresses = packed.data_ptr(), padded.data_ptr()
    _C.unpack_sequences(handle(packed.device), sizes, order, row, *addresses, steps, batch * row, row)
    return padded


def steps_of(input: Tensor, batch_sizes: Tensor | None, lengths: Tensor | None) -> Steps:
    """The timesteps of the operator's input; ValueError where its arguments disagree."""
    if input.dim() == 3 and batch_sizes is None:
        steps, batch = input.shape[:2]
        if steps == 0:
            raise ValueError("input has 0 timesteps; it must have at least 1")
        return _even(steps, batch) if lengths is None else _of_lengths(steps, batch, lengths)
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


@functools.lru_cache(maxsize=32)
def _even(steps: int, batch: int) -> Steps:
    """Of sequences that are all as long: the same in every call of a stream."""
    return Steps([batch] * steps)


@functools.lru_cache(maxsize=256)
def even_sequences(steps: int, batch: int) -> _C.Sequences:
    """_even(), as the library takes it."""
    return _C.Sequences([batch] * steps)


def sequences_of_batch_sizes(batch_sizes: Tensor, rows: int) -> _C.Sequences | None:
    """The sequences of packed data. None where batch_sizes are wrong: steps_of() says how."""
    sizes = batch_sizes.tolist()
    if not sizes or sizes[-1] < 1 or sum(sizes) != rows or sorted(sizes, reverse=True) != sizes:
        return None
    return _C.Sequences(sizes)


_INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))


def sequences_of_lengths(lengths: Any, steps: int, batch: int) -> _C.Sequences | None:
    """The sequences of padded data. None for lengths that are wrong, or that take more to look at than a tensor of
    integers, a list or a tuple: steps_of() and checked_lengths() take those."""
    if type(lengths) is Tensor:
        if lengths.dtype not in _INTEGERS or lengths.shape != (batch,) or lengths.is_meta:
            return None
        values = lengths.tolist()
    elif type(lengths) in (list, tuple) and set(map(type, lengths)) == {int} and len(lengths) == batch:
        values = lengths
    else:
        return None
    if min(values) < 1 or max(values) > steps:
        return None
    return _C.Sequences(values, steps)


def _of_lengths(steps: int, batch: int, lengths: Tensor) -> Steps:
    if lengths.shape != (batch,) or lengths.is_floating_point():
        raise ValueError(
            f"lengths has shape {tuple(lengths.shape)} and dtype {lengths.dtype}; wanted are {batch} integers"
        )
    if lengths.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ValueError(
            f"lengths is on {lengths.device}, and a CUDA graph is being captured, which cannot wait for its values; "
            "on the CPU they become constants of the graph"
        )
    values: list[int] = lengths.tolist()
    for index, length in enumerate(values):
        if not 1 <= length <= steps:
            raise ValueError(f"lengths[{index}] is {length}; it must lie between 1 and the {steps} timesteps of input")
    if min(values, default=steps) == steps:
        return _even(steps, batch)
    order = sorted(range(batch), key=values.__getitem__, reverse=True)  # stable
    sizes, active = [], batch
    for step in range(values[order[0]]):
        while values[order[active - 1]] <= step:
            active -= 1
        sizes.append(active)
    return Steps(sizes, True, None if order == list(range(batch)) else order)
