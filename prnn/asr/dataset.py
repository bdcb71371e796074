"""Utterances as batches of similar length, in an order that a resumed training continues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from .audio import read_audio
from .augment import Augmentation
from .errors import InputError
from .features import FeatureConfig, compute_features
from .manifest import Utterance
from .tokenizer import Tokenizer

_BUCKETS = 8


class Batch(NamedTuple):
    """N utterances, padded.

    Args:
        features: (N, T, bins), float32.
        feature_lengths: (N,), int64.
        targets: (N, U), int64.
        target_lengths: (N,), int64.
        texts: the N transcripts.
    """

    features: Tensor
    feature_lengths: Tensor
    targets: Tensor
    target_lengths: Tensor
    texts: list[str]


class Example(NamedTuple):
    """One utterance: features (T, bins), targets (U,), text."""

    features: Tensor
    targets: Tensor
    text: str


def load_features(utterance: Utterance, config: FeatureConfig) -> Tensor:
    """Reads an utterance's part of its recording and returns the features, (frames, bins)."""
    try:
        samples, rate = read_audio(utterance.audio, utterance.offset, utterance.duration)
    except InputError as error:
        raise InputError(f"{utterance.source}: {error}" if utterance.source else str(error)) from error
    features = compute_features(samples, rate, config)
    if len(features) == 0:
        place = utterance.source or utterance.audio
        raise InputError(f"{place}: {len(samples)} samples at {rate} Hz are too few for one frame of features")
    return features


class UtteranceDataset(Dataset[Example]):
    """Features and targets of a manifest's utterances.

    Args:
        utterances: what a manifest holds.
        tokenizer: of the texts.
        config: of the features.
        augmentation: what training does to the features; None leaves them as they are.
        seed: of the augmentation.
        cache_bytes: how much memory computed features may take; what does not fit is computed each time.
        pass_over_unknown: leave characters that no label stands for out of the targets.

    Raises:
        InputError: a text has a character that no label stands for, unless these are passed over.
    """

    def __init__(
        self,
        utterances: Sequence[Utterance],
        tokenizer: Tokenizer,
        config: FeatureConfig,
        augmentation: Augmentation | None = None,
        seed: int = 0,
        cache_bytes: int = 0,
        pass_over_unknown: bool = False,
    ) -> None:
        self.utterances = list(utterances)
        self.config = config
        self.augmentation = augmentation
        self.seed = seed
        self.epoch = 0
        self.mean = torch.zeros(config.num_mel_bins)
        self._free = cache_bytes
        self._cache: dict[int, Tensor] = {}
        self._targets = []
        encode = (lambda text: tokenizer.encode_known(text)[0]) if pass_over_unknown else tokenizer.encode
        for utterance in self.utterances:
            try:
                labels = encode(utterance.text)
            except ValueError as error:
                raise InputError(f"{utterance.source}: {error}") from error
            self._targets.append(torch.tensor(labels, dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.utterances)

    def features(self, index: int) -> Tensor:
        """The features of utterance ``index``, not augmented: (frames, bins)."""
        features = self._cache.get(index)
        if features is None:
            features = load_features(self.utterances[index], self.config)
            size = features.numel() * features.element_size()
            if size <= self._free:
                self._cache[index] = features
                self._free -= size
        return features

    def __getitem__(self, index: int) -> Example:
        features = self.features(index)
        if self.augmentation is not None:
            rng = np.random.default_rng([self.seed, self.epoch, index])
            features = self.augmentation(features, self.mean, rng)
        return Example(features, self._targets[index], self.utterances[index].text)


def collate(examples: Sequence[Example]) -> Batch:
    """Pads examples to a batch."""
    return Batch(
        pad_sequence([example.features for example in examples], batch_first=True),
        torch.tensor([len(example.features) for example in examples]),
        pad_sequence([example.targets for example in examples], batch_first=True),
        torch.tensor([len(example.targets) for example in examples]),
        [example.text for example in examples],
    )


class _Reported(Dataset[Example | InputError]):
    """A dataset whose unusable utterances are values: an error that is raised in a process that prepares batches would
    come out of it with that process's traceback in its message."""

    def __init__(self, dataset: UtteranceDataset) -> None:
        self._dataset = dataset

    def __getitem__(self, index: int) -> Example | InputError:
        try:
            return self._dataset[index]
        except InputError as error:
            return error


def _collate_reported(examples: Sequence[Example | InputError]) -> Batch | InputError:
    errors = [example for example in examples if isinstance(example, InputError)]
    return errors[0] if errors else collate([example for example in examples if isinstance(example, Example)])


class Batches:
    """Iterates over the given batches of a dataset. It draws nothing from torch's global generator, which serves
    weights and dropout.

    Args:
        dataset: where batches come from.
        batches: utterance numbers of each.
        workers: processes that prepare them; 0 prepares them in this one.

    Raises:
        InputError: when the iteration comes to an utterance that cannot be used.
    """

    def __init__(self, dataset: UtteranceDataset, batches: list[list[int]], workers: int = 0) -> None:
        self._loader: DataLoader[Example | InputError] = DataLoader(
            _Reported(dataset),
            batch_sampler=batches,
            collate_fn=_collate_reported,
            num_workers=workers,
            generator=torch.Generator(),
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._loader:
            if isinstance(batch, InputError):
                raise batch
            yield batch


def feature_statistics(dataset: UtteranceDataset, most: int = 500) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each feature over (at most ``most``, evenly chosen) utterances: two of (bins,)."""
    indices = range(0, len(dataset), max(1, len(dataset) // most))
    count = 0
    total = torch.zeros(dataset.config.num_mel_bins, dtype=torch.float64)
    square = torch.zeros_like(total)
    for index in indices:
        features = dataset.features(index).double()
        count += len(features)
        total += features.sum(dim=0)
        square += features.square().sum(dim=0)
    mean = total / count
    std = (square / count - mean.square()).clamp(min=1e-4).sqrt()
    return mean.float(), std.float()


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


class BatchLoader:
    """Iterates over the batches of an epoch, then of the next.

    Args:
        dataset: where batches come from.
        order: which batches.
        workers: processes that prepare batches beside the training; 0 prepares them in it, where features are cached.
        process: which of the ``processes`` that train together this is.
        processes: how many they are.
    """

    def __init__(
        self, dataset: UtteranceDataset, order: BatchOrder, workers: int = 0, process: int = 0, processes: int = 1
    ) -> None:
        self.dataset = dataset
        self.order = order
        self.workers = workers
        self.process = process
        self.processes = processes
        self._steps = 0

    def __len__(self) -> int:
        """Batches in an epoch."""
        return max(1, len(self.order) // self.processes)

    def start(self, steps: int) -> None:
        """Goes on with the batch that is due after so many, counted from the first epoch's beginning."""
        self._steps = steps

    def __iter__(self) -> Iterator[Batch]:
        epoch, done = divmod(self._steps, len(self))
        self.dataset.epoch = epoch
        due = self.order.epoch(epoch, self.process, self.processes)[done:]
        for batch in Batches(self.dataset, due, self.workers):
            self._steps += 1
            yield batch
