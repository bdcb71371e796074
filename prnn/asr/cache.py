"""Utterances that have been read, in memory that a training shares with the processes that prepare its batches."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .errors import InputError


class Cache:
    """Keeps tensors of float32, by the number of their utterance, in pages that it shares with processes forked from
    this one: what one of them has read none of them reads again. Pages take memory when they are written to.

    Two processes may write the same utterance at once, since what they write is the same.

    Args:
        rows: of each utterance the most rows that its tensor may have; one that has more is not kept.
        shape: of a row.
        most: bytes of all that is kept: of the first utterances, as many as fit.

    Raises:
        InputError: there is no room for so many bytes.
    """

    def __init__(self, rows: Sequence[int], shape: tuple[int, ...], most: int) -> None:
        self._shape, self._size, self._most = shape, math.prod(shape), most
        starts = np.concatenate([[0], np.cumsum(np.asarray(rows, dtype=np.int64))])  # in rows
        self._starts = starts[: np.searchsorted(starts, most // (4 * self._size), side="right")]
        elements, kept = int(self._starts[-1]) * self._size, len(self._starts) - 1
        try:
            self._data = torch.frombuffer(mmap.mmap(-1, 4 * max(1, elements)), dtype=torch.float32)
            self._rows = np.frombuffer(mmap.mmap(-1, 8 * max(1, kept)), dtype=np.int64)  # 0: not there yet
        except (OSError, OverflowError) as error:
            raise InputError(
                f"there is no room for {4 * elements / 1e9:.1f} GB of cached utterances; take a lower cache_gb"
            ) from error

    def __reduce__(self) -> tuple[type[Cache], tuple[Sequence[int], tuple[int, ...], int]]:
        return Cache, (np.diff(self._starts).tolist(), self._shape, self._most)  # of a process that is not forked

    def _place(self, number: int, rows: int) -> Tensor:
        start = int(self._starts[number]) * self._size
        return self._data[start : start + rows * self._size].view(rows, *self._shape)

    def get(self, number: int) -> Tensor | None:
        """An utterance, which must not be written to; None if it is not there."""
        rows = int(self._rows[number]) if number < len(self._starts) - 1 else 0
        return self._place(number, rows) if rows else None

    def put(self, number: int, tensor: Tensor) -> None:
        """Keeps an utterance, if there is a place for it."""
        most = int(self._starts[number + 1] - self._starts[number]) if number < len(self._starts) - 1 else 0
        if len(tensor) <= most and tensor.shape[1:] == torch.Size(self._shape):
            self._place(number, len(tensor)).copy_(tensor)
            self._rows[number] = len(tensor)
