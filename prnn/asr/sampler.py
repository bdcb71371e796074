"""Samplers: choose the utterances of each batch of each epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

_BUCKETS = 8


class EpochSampler(Protocol):
    """Chooses the batches of an epoch, as a function of its number alone."""

    def __len__(self) -> int:
        """Batches in an epoch, of all processes together; on average, where epochs differ."""
        ...

    def epoch(self, number: int, process: int = 0, processes: int = 1) -> Iterable[Any]:
        """The batches of an epoch for one of the processes that train together, each as the items that the dataset
        takes. All processes have as many batches."""
        ...


class BucketSampler:
    """Chooses utterances of similar duration for each batch, as a function of the seed and the epoch alone.

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
        seconds = np.asarray(durations, dtype=np.float64)
        by_duration = np.argsort(seconds, kind="stable")
        # For each utterance, the number of utterances of its duration that fill a batch.
        sizes = np.clip(batch_seconds / seconds[by_duration], 1, batch_size).astype(np.int64)
        self._buckets = []
        for bucket in np.array_split(np.arange(len(sizes)), max(1, min(_BUCKETS, len(sizes) // (2 * batch_size)))):
            self._buckets += [(by_duration[part], int(sizes[part[-1]])) for part in _of_similar_size(bucket, sizes)]
        self._durations = durations
        self._seed = seed

    def __len__(self) -> int:
        """Batches in an epoch."""
        return sum(-(-len(bucket) // size) for bucket, size in self._buckets)

    def epoch(self, number: int, process: int = 0, processes: int = 1) -> list[list[int]]:
        """The batches of an epoch, each a list of utterance numbers, for one of the processes that train together. All
        have as many; what is then left over, drawn for each epoch, nobody has."""
        rng = None if self._seed is None else np.random.default_rng([self._seed, number])
        batches = []
        for bucket, size in self._buckets:
            order = bucket if rng is None else rng.permutation(bucket)
            batches += [part.tolist() for part in np.array_split(order, -(-len(order) // size))]
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


def _of_similar_size(bucket: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """A bucket in parts, in each of which the longest utterance, which bounds its batches, leaves room for at least two
    thirds of what the shortest one would: one long recording makes a batch of its own, and no small ones of others.

    Args:
        bucket: places of the utterances among all, by duration.
        sizes: for each utterance, the number of its duration that a batch holds; falling.
    """
    parts = []
    while len(bucket):
        similar = 3 * sizes[bucket[-1]] >= 2 * sizes[bucket]
        parts.append(bucket[similar])
        bucket = bucket[~similar]
    return parts[::-1]
