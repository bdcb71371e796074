"""Batches packed into slots of memory that a training shares with the processes that make them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from .dataset import Batch
from .errors import InputError

_ALIGNMENT = 64  # bytes
_PORTABLE = 1  # cudaHostRegisterPortable: for every device


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
    """Memory shared with the processes forked from this one, for one batch each: what a process sends is then a number
    and shapes. To receive a tensor, torch asks the process that made it over a new socket, and maps its memory, in
    Python, for which all threads of the training wait.

    Args:
        count: number of slots.
        size: bytes of each. Pages take memory when they are written to.

    Raises:
        InputError: there is no room for so many bytes.
    """

    def __init__(self, count: int, size: int) -> None:
        size = -(-size // _ALIGNMENT) * _ALIGNMENT
        try:
            self._data = torch.frombuffer(mmap.mmap(-1, count * size), dtype=torch.uint8).view(count, size)
        except (OSError, OverflowError) as error:
            raise InputError(
                f"there is no room for {count} batches of {size / 1e6:.0f} MB that workers prepare ahead; take fewer "
                "workers, or a lower batch_seconds"
            ) from error
        self._registered = False

    def __len__(self) -> int:
        return len(self._data)

    def slot(self, number: int) -> Tensor:
        """The memory of a slot: (size,), uint8."""
        return self._data[number]

    @property
    def registered(self) -> bool:
        """Whether a GPU reads slots while the CPU goes on."""
        return self._registered

    def register(self) -> None:
        """Lets a GPU read slots while the CPU goes on, if the system locks so much memory."""
        if not self._registered:
            place, size = self._data.data_ptr(), self._data.numel()
            self._registered = int(torch.cuda.cudart().cudaHostRegister(place, size, _PORTABLE)) == 0

    def close(self) -> None:
        """Ends what `register` began. What reads the slots must be over."""
        if self._registered:
            torch.cuda.cudart().cudaHostUnregister(self._data.data_ptr())
            self._registered = False


class PackedBatch:
    """A batch with its tensors in one piece of memory: a slot or, if it is larger than one, memory of its own.

    Args:
        batch: made by a process of a DataLoader.
        slots: shared with the process that receives it.
        number: of the batch's slot.
    """

    def __init__(self, batch: Batch, slots: Slots, number: int) -> None:
        tensors = list(_tensors(batch))
        places, end = [], 0
        for tensor in tensors:
            places.append(_Place(end, _size(tensor), tensor.dtype, tensor.shape))
            end += -(-_size(tensor) // _ALIGNMENT) * _ALIGNMENT
        data = slots.slot(number)
        self._own: Tensor | None = None
        if end > len(data):
            data = self._own = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(end))
        self._number, self._size = number, end
        self._contents = _with_places(batch, iter(places))
        for place, tensor in zip(places, tensors, strict=True):
            _with_tensors(place, data).copy_(tensor)

    def batch(self, slots: Slots) -> Batch:
        """The batch. Of registered slots its features and masks are views, which stay until the slot is used again;
        everything else is a copy.

        Args:
            slots: as it was packed into.
        """
        if self._own is not None:
            data = self._own.pin_memory() if slots.registered else self._own
            return cast(Batch, _with_tensors(self._contents, data))
        data = slots.slot(self._number)[: self._size]
        if not slots.registered:
            return cast(Batch, _with_tensors(self._contents, data.clone()))
        batch = cast(Batch, _with_tensors(self._contents, data))
        return batch._replace(
            feature_lengths=batch.feature_lengths.clone(),
            targets=batch.targets.clone(),
            target_lengths=batch.target_lengths.clone(),
        )
