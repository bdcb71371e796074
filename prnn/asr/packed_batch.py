"""Batches packed into one piece of memory each, as the processes that make batches send them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from .dataset import Batch

_ALIGNMENT = 64  # bytes


class _Place(NamedTuple):
    """The place of a tensor in a packed batch's memory."""

    start: int
    size: int
    dtype: torch.dtype
    shape: torch.Size


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of a batch; what holds some is a NamedTuple, as it is itself."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(item)


def _with_places(value: Any, places: Iterator[_Place]) -> Any:
    if isinstance(value, Tensor):
        return next(places)
    if isinstance(value, tuple):
        return type(value)(*(_with_places(item, places) for item in value))
    return value


def _with_tensors(value: Any, data: Tensor) -> Any:
    if isinstance(value, _Place):
        return data[value.start : value.start + value.size].view(value.dtype).view(value.shape)
    if isinstance(value, tuple):
        return type(value)(*(_with_tensors(item, data) for item in value))
    return value


class Slots:
    """Memory that a loader shares with the processes that make its batches: each batch is written to a slot of it, so
    that what is sent is a number. To receive a tensor, torch asks the process that made it over a new socket, and maps
    its memory, in Python, for which all threads of the training wait.

    Args:
        count: number of slots.
        size: bytes of each; only what is written takes memory.
    """

    def __init__(self, count: int, size: int) -> None:
        size = -(-size // _ALIGNMENT) * _ALIGNMENT
        storage = torch.UntypedStorage._new_shared(count * size)
        self._data = torch.empty(0, dtype=torch.uint8).set_(storage).view(count, size)

    def __len__(self) -> int:
        return len(self._data)

    def slot(self, number: int) -> Tensor:
        """The memory of a slot: (size,), uint8."""
        return self._data[number]


class PackedBatch:
    """A batch with its tensors in one piece of memory: a slot, or, where it is too large for one, memory of its own.

    Args:
        batch: made by a process of a DataLoader, whose memory others can map.
        slots: shared with the process that receives it.
        number: of the slot that is the batch's.
    """

    def __init__(self, batch: Batch, slots: Slots, number: int) -> None:
        tensors = list(_tensors(batch))
        places, end = [], 0
        for tensor in tensors:
            places.append(_Place(end, _size(tensor), tensor.dtype, tensor.shape))
            end += -(-_size(tensor) // _ALIGNMENT) * _ALIGNMENT
        slot = slots.slot(number)
        self._own: Tensor | None = None
        if end > len(slot):
            slot = self._own = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(end))
        self._number, self._size = number, end
        self._contents = _with_places(batch, iter(places))
        for place, tensor in zip(places, tensors, strict=True):
            _with_tensors(place, slot).copy_(tensor)

    def batch(self, slots: Slots, pinned: bool) -> Batch:
        """The batch, whose tensors are views of a copy; its slot may then be another's.

        Args:
            slots: as it was packed into.
            pinned: copies to memory from which a GPU reads while the CPU goes on.
        """
        data = slots.slot(self._number)[: self._size] if self._own is None else self._own
        return cast(Batch, _with_tensors(self._contents, data.pin_memory() if pinned else data.clone()))
