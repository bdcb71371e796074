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
        shapes: of each utterance the largest shape that its tensor may have; one that has more rows is not kept.
        most: bytes of all that is kept: of the first utterances, as many as fit.

    Raises:
        InputError: there is no room for so many bytes.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], most: int) -> None:
        self._shapes, self._most = shapes, most
        ends = np.cumsum([4 * math.prod(shape) for shape in shapes], dtype=np.int64)
        kept = int(np.searchsorted(ends, most, side="right"))
        self._starts = np.concatenate([[0], ends])[: kept + 1]
        try:
            self._data = torch.frombuffer(mmap.mmap(-1, max(4, int(self._starts[-1]))), dtype=torch.float32)
            self._rows = np.frombuffer(mmap.mmap(-1, 8 * max(1, kept)), dtype=np.int64)  # 0: not there yet
        except (OSError, OverflowError) as error:
            raise InputError(
                f"there is no room for {self._starts[-1] / 1e9:.1f} GB of cached utterances; take a lower cache_gb"
            ) from error

    def __reduce__(self) -> tuple[type[Cache], tuple[Sequence[tuple[int, ...]], int]]:
        return Cache, (self._shapes, self._most)  # where processes are not forked, each has its own

    def get(self, number: int) -> Tensor | None:
        """An utterance, which must not be written to; None if it is not there."""
        if number + 1 >= len(self._starts) or not (rows := int(self._rows[number])):
            return None
        start, others = int(self._starts[number]) // 4, self._shapes[number][1:]
        return self._data[start : start + rows * math.prod(others)].view(rows, *others)

    def put(self, number: int, tensor: Tensor) -> None:
        """Keeps an utterance, if there is a place for it."""
        most, *others = self._shapes[number]
        if number + 1 < len(self._starts) and 0 < len(tensor) <= most and tensor.shape[1:] == torch.Size(others):
            start = int(self._starts[number]) // 4
            self._data[start : start + tensor.numel()] = tensor.reshape(-1)
            self._rows[number] = len(tensor)
