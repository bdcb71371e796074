"""The results of a step of a pool, in arrays on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from prnn.transducer.hypothesis import Hypothesis

Array = np.ndarray[Any, np.dtype[Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class StepResult(Sequence[Hypothesis]):
    """The symbols that the frames of one step have added to N streams: as a sequence, a `Hypothesis` of each, which is
    made when it is asked for. With thousands of streams the arrays cost less: those of stream n are elements `ends[n] -
    counts[n]` to `ends[n] - 1`.

    Attributes:
        tokens: (S,), integer, the symbols of all streams, one stream after the other.
        timestamps: as tokens, integer, the encoder frame of each, counted from the stream's first.
        log_probs: as tokens, float, natural log-probability of each among all symbols but the blank.
        counts: (N,), integer, symbols of each stream.
        scores: (N,), float64, log-probability of all symbols since the stream, or the utterance, began.
    """

    tokens: Array
    timestamps: Array
    log_probs: Array
    counts: Array
    scores: Array

    @property
    def ends(self) -> Array:
        """(N,), integer, the number of symbols of each stream and those before it."""
        ends: Array = self.counts.cumsum()
        return ends

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, index: int) -> Hypothesis: ...

    @overload
    def __getitem__(self, index: slice) -> list[Hypothesis]: ...

    def __getitem__(self, index: int | slice) -> Hypothesis | list[Hypothesis]:
        if isinstance(index, slice):
            return list(self)[index]
        stream = range(len(self))[index]
        count = int(self.counts[stream])
        first = int(self.counts[:stream].sum())
        place = slice(first, first + count)
        columns = (column[place].tolist() for column in (self.tokens, self.timestamps, self.log_probs))
        tokens, timestamps, log_probs = columns
        return Hypothesis(tokens, float(self.scores[stream]), timestamps, log_probs)

    def __iter__(self) -> Iterator[Hypothesis]:
        columns = self.tokens, self.timestamps, self.log_probs, self.counts, self.scores
        tokens, timestamps, log_probs, counts, scores = (column.tolist() for column in columns)
        begin = 0
        for count, score in zip(counts, scores, strict=True):
            end = begin + count
            yield Hypothesis(tokens[begin:end], score, timestamps[begin:end], log_probs[begin:end])
            begin = end

    @classmethod
    def of(cls, columns: Columns, first_frames: Array) -> StepResult:
        """Returns the results of streams whose first frame in the step is number (N,) `first_frames`."""
        counts = columns.counts
        most = int(counts.max(initial=0))
        if not most:
            return cls.nothing(columns.scores.copy())
        real = np.arange(most) < counts[:, None]
        symbols, frames, log_probs = (
            column[:, :most][real] for column in (columns.symbols, columns.frames, columns.confidences)
        )
        # Copies of counts and scores: they may be parts of a larger array.
        return cls(symbols, frames + first_frames.repeat(counts), log_probs, counts.copy(), columns.scores.copy())

    @classmethod
    def joined(cls, streams: int, parts: Sequence[tuple[Array, StepResult]]) -> StepResult:
        """Parts, each of the streams of its numbers, as one result of so many streams; of a stream that is in several
        one after the other."""
        numbers = np.concatenate([rows.repeat(part.counts) for rows, part in parts])
        order = numbers.argsort(kind="stable")
        scores = np.empty(streams)
        for rows, part in parts:
            scores[rows] = part.scores
        tokens, timestamps, log_probs = (
            np.concatenate([getattr(part, name) for _, part in parts])[order]
            for name in ("tokens", "timestamps", "log_probs")
        )
        return cls(tokens, timestamps, log_probs, np.bincount(numbers, minlength=streams), scores)

    @classmethod
    def nothing(cls, scores: Array) -> StepResult:
        """Returns the results of streams that have found nothing."""
        none = np.zeros(0, np.int64)
        return cls(none, none, np.zeros(0), np.zeros(len(scores), np.int64), scores)


class Columns(NamedTuple):
    """Members of a `Found` on the host, or the tensors themselves."""

    scores: Any  # (N,) float64
    confidences: Any  # (N, L)
    symbols: Any  # (N, L)
    frames: Any  # (N, L)
    counts: Any  # (N,)

    @classmethod
    def of(cls, found: Any) -> Columns:
        """The tensors."""
        return cls(found.scores, found.confidences, found.symbols, found.frames, found.counts)

    def packed(self) -> Tensor:
        """All tensors as one of int32, which is one copy from a GPU."""
        return torch.cat([tensor.contiguous().view(torch.int32).flatten() for tensor in self._wide_first()])

    def unpacked(self, packed: Array) -> Columns:
        """The columns of what `packed` has made, on the host; `self` tells their shapes and types."""
        places, at = {}, 0
        for tensor in self._wide_first():
            end = at + tensor.numel() * tensor.element_size() // packed.itemsize
            array = packed[at:end].view(str(tensor.dtype).removeprefix("torch."))
            places[id(tensor)], at = array.reshape(tuple(tensor.shape)), end
        return Columns(*(places[id(tensor)] for tensor in self))

    def on_host(self) -> Columns:
        """The columns as arrays. Waits for the GPU."""
        if not self.counts.is_cuda:
            return Columns(*(tensor.numpy() for tensor in self))
        return self.unpacked(host_copy(self.packed()))

    def _wide_first(self) -> list[Tensor]:
        """In an order in which each begins at a multiple of its elements' size."""
        return sorted(self, key=lambda tensor: -tensor.element_size())


def host_copy(tensor: Tensor) -> Array:
    """A copy of a GPU's tensor, through pinned memory. Waits for the GPU."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    array: Array = host.numpy()
    return array


def device_copy(array: Array, device: torch.device) -> Tensor:
    """A copy of an array on a device, without a wait for a GPU."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
