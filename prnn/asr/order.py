"""Which utterances make which batch, in which epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

_BUCKETS = 8


class Order(Protocol):
    """Batches of an epoch, as a function of its number alone."""

    def __len__(self) -> int:
        """Batches in an epoch, of all processes together; on average, where epochs differ."""
        ...

    def epoch(self, number: int, process: int = 0, processes: int = 1) -> Iterable[Any]:
        """The batches of an epoch for one of the processes that train together, which all have as many: of each what
        the dataset makes it of."""
        ...


class BatchOrder:
    """Which utterances make which batch in which epoch: a function of the seed and the epoch alone.

    Utterances are divided by duration into buckets; an epoch shuffles each bucket, cuts it into batches and shuffles
    those. Every epoch has the same number of batches.

    Processes that train together wait for one another at each step, so that they have batches at a time whose longest
    utterances are about as long.

    Args:
        durations: seconds of each utterance.
        batch_size: most utterances in a batch.
        batch_seconds: most seconds in a batch, padding included; an utterance longer than that is a batch of its own.
        seed: of the shuffling; None keeps the order of durations.
    """

    def __init__(self, durations: Sequence[float], batch_size: int, batch_seconds: float, seed: int | None) -> None:
        by_duration = np.argsort(np.asarray(durations), kind="stable")
        buckets = np.array_split(by_duration, max(1, min(_BUCKETS, len(durations) // (2 * batch_size))))
        self._buckets = [bucket for bucket in buckets if len(bucket)]
        self._sizes = [max(1, min(batch_size, int(batch_seconds / durations[bucket[-1]]))) for bucket in self._buckets]
        self._durations = durations
        self._seed = seed

    def __len__(self) -> int:
        """Batches in an epoch."""
        return sum(-(-len(bucket) // size) for bucket, size in zip(self._buckets, self._sizes, strict=True))

    def epoch(self, number: int, process: int = 0, processes: int = 1) -> list[list[int]]:
        """The batches of an epoch, each a list of utterance numbers, for one of the processes that train together. All
        have as many; what is then left over, drawn for each epoch, nobody has."""
        rng = None if self._seed is None else np.random.default_rng([self._seed, number])
        batches = []
        for bucket, size in zip(self._buckets, self._sizes, strict=True):
            order = bucket if rng is None else rng.permutation(bucket)
            batches += [order[start : start + size].tolist() for start in range(0, len(order), size)]
        if len(batches) < processes:
            return [batches[process % len(batches)]]
        if rng is None:
            return batches[process : len(batches) // processes * processes : processes]
        if processes > 1:
            kept = rng.permutation(len(batches))[len(batches) % processes :]
            batches = [batches[index] for index in kept]
            batches.sort(key=lambda batch: max(self._durations[index] for index in batch))
        own = batches[process::processes]
        return [own[index] for index in rng.permutation(len(own))]
