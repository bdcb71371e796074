"""A batch packed into one tensor, as the processes that make batches send it."""

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


class PackedBatch:
    """A batch with its tensors in one piece of memory, which a DataLoader sends and pins as one tensor. For each tensor
    that it receives, torch asks the process that made it over a new socket, in Python, which all threads of the
    training wait for.

    Args:
        batch: made by a process of a DataLoader, whose memory others can map.
    """

    def __init__(self, batch: Batch) -> None:
        tensors = list(_tensors(batch))
        places, end = [], 0
        for tensor in tensors:
            places.append(_Place(end, _size(tensor), tensor.dtype, tensor.shape))
            end += -(-_size(tensor) // _ALIGNMENT) * _ALIGNMENT
        storage = torch.UntypedStorage._new_shared(end)
        self._data = torch.empty(0, dtype=torch.uint8).set_(storage)
        self._contents = _with_places(batch, iter(places))
        for place, tensor in zip(places, tensors, strict=True):
            _with_tensors(place, self._data).copy_(tensor)

    def pin_memory(self) -> PackedBatch:
        """Moves the batch to memory from which a GPU reads while the CPU goes on. DataLoader calls it."""
        self._data = self._data.pin_memory()
        return self

    def batch(self) -> Batch:
        """The batch; its tensors are views of the packed memory."""
        return cast(Batch, _with_tensors(self._contents, self._data))
