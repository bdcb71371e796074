"""Utterances as batches."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import get_worker_info

from .audio import read_audio
from .augment import Augmentation
from .cache import Cache
from .errors import InputError
from .fbank import Fbank, fewest_samples, frame_count
from .feature_config import FeatureConfig
from .features import compute_features, resampled
from .manifest import Utterance
from .masks import Masks, draw_masks
from .perturb import Perturbation
from .tokenizer import Tokenizer

_MOST_THREADS = 8  # that read a batch's recordings and compute their features, where no other process does
_TOGETHER = 32  # utterances of a sample that are read at once
_ROUNDING = 64  # samples that a resampled recording may have beyond its duration
_MISSING = 0.5  # seconds by which a recording may be shorter than its manifest says: decoders pad MP3 differently


class Position(NamedTuple):
    """A process's position in the training data: the number of batches done of one of its sampler's epochs."""

    epoch: int
    batch: int


class Request(NamedTuple):
    """A batch to make: its items as the sampler chose them, and the process's position after it."""

    items: Any
    after: Position


class Batch(NamedTuple):
    """N utterances, padded.

    Args:
        features: (N, T, bins), float32; with `audio`, samples from -1 to 1, (N, S), of which the features are still to
            be computed, and augmented.
        feature_lengths: (N,), int64; with `audio`, samples.
        targets: (N, U), int64.
        target_lengths: (N,), int64.
        texts: the N transcripts.
        audio: whether `features` are samples.
        masks: with `audio`, the augmentation to come.
        after: the process's position after this batch.
    """

    features: Tensor
    feature_lengths: Tensor
    targets: Tensor
    target_lengths: Tensor
    texts: list[str]
    audio: bool = False
    masks: Masks | None = None
    after: Position = Position(0, 0)


class Example(NamedTuple):
    """One utterance: features (T, bins) or samples (S,), targets (U,), text; masks for samples."""

    features: Tensor
    targets: Tensor
    text: str
    masks: Masks | None = None


class Shown(NamedTuple):
    """An utterance for the log: samples (S,) at the features' sample rate, if it has a recording; features (T, bins);
    text."""

    audio: Tensor | None
    features: Tensor
    text: str


def read_samples(utterance: Utterance) -> tuple[np.ndarray, int]:
    """Reads an utterance's part of its recording: samples (S,), and their rate in hertz."""
    place = f"{utterance.source}: " if utterance.source else ""
    try:
        samples, rate = read_audio(utterance.audio, utterance.offset, utterance.duration, utterance.channel)
    except InputError as error:
        raise InputError(f"{place}{error}") from error
    there = len(samples) / rate
    if there < utterance.duration - _MISSING:
        raise InputError(
            f"{place}the duration is {utterance.duration:g} s, but {utterance.audio} has only {there:.2f} s "
            f"from {utterance.offset:g} s on"
        )
    return samples, rate


def require_frames(frames: int, samples: int, rate: int, place: object) -> None:
    """Raises InputError, which names the place, if a recording has no frame of features."""
    if frames == 0:
        raise InputError(f"{place}: {samples} samples at {rate} Hz are too few for one frame of features")


def load_features(utterance: Utterance, config: FeatureConfig) -> Tensor:
    """Reads an utterance's part of its recording and returns the features, (frames, bins)."""
    samples, rate = read_samples(utterance)
    features = compute_features(samples, rate, config)
    require_frames(len(features), len(samples), rate, utterance.source or utterance.audio)
    return features


def load_audio(utterance: Utterance, config: FeatureConfig) -> Tensor:
    """Reads an utterance's part of its recording and returns its samples at the features' sample rate, (S,)."""
    samples, rate = read_samples(utterance)
    samples = resampled(samples, rate, config.sample_rate)
    require_frames(int(frame_count(len(samples), config)), len(samples), rate, utterance.source or utterance.audio)
    return torch.from_numpy(samples)


class LoadUtterance:
    """Loads utterances of a manifest, for `recognise`."""

    def __init__(self, utterances: Sequence[Utterance]) -> None:
        self._utterances = utterances

    def __call__(self, number: int, config: FeatureConfig, audio: bool) -> Tensor:
        return (load_audio if audio else load_features)(self._utterances[number], config)


def encoded(text: str, tokenizer: Tokenizer, pass_over_unknown: bool, place: object) -> Tensor:
    """A text's labels, (U,).

    Raises:
        InputError: naming the place and a character that no label stands for, unless these are passed over.
    """
    if pass_over_unknown:
        return torch.tensor(tokenizer.encode_known(text)[0], dtype=torch.int64)
    try:
        return torch.tensor(tokenizer.encode(text), dtype=torch.int64)
    except ValueError as error:
        raise InputError(f"{place}: {error}") from error


class UtteranceDataset:
    """Features and targets of a manifest's utterances.

    Args:
        utterances: what a manifest holds.
        tokenizer: of the texts.
        config: of the features.
        augmentation: what training does to the features; None leaves them as they are.
        seed: of the augmentation.
        cache_bytes: how much memory features, or samples where batches are made of these, may take when they have been
            read (`Cache`); what does not fit is read each time.
        audio: makes batches of samples, whose features are computed and augmented elsewhere.
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
        audio: bool = False,
        pass_over_unknown: bool = False,
    ) -> None:
        self.utterances = list(utterances)
        self.config = config
        self.augmentation = augmentation
        self.seed = seed
        self.audio = audio
        self.mean = torch.zeros(config.num_mel_bins)
        changes = augmentation is not None and augmentation.of_recordings
        self._perturbation = (
            Perturbation(augmentation, config.sample_rate, fewest_samples(config)) if augmentation and changes else None
        )
        rows = [self._most_rows(utterance.duration) for utterance in self.utterances]
        self._cache = Cache(rows, () if self._reads_samples else (config.num_mel_bins,), cache_bytes)
        self._targets = []
        for utterance in self.utterances:
            self._targets.append(encoded(utterance.text, tokenizer, pass_over_unknown, utterance.source))

    def __len__(self) -> int:
        return len(self.utterances)

    def features(self, index: int) -> Tensor:
        """The features of utterance ``index``, not augmented: (frames, bins)."""
        return load_features(self.utterances[index], self.config)

    @property
    def _reads_samples(self) -> bool:
        """Whether examples are made of samples, not of features as they are."""
        return self.audio or self._perturbation is not None

    def _most_rows(self, duration: float) -> int:
        """Samples or frames of so many seconds, and what rounding may add."""
        samples = math.ceil(duration * self.config.sample_rate) + _ROUNDING
        return samples if self._reads_samples else int(frame_count(samples, self.config))

    def _load(self, index: int) -> Tensor:
        loaded = load_audio(self.utterances[index], self.config) if self._reads_samples else self.features(index)
        self._cache.put(index, loaded)
        return loaded

    def _loaded(self, indices: Sequence[int]) -> list[Tensor]:
        """Utterances from the cache, and what is not there by some threads at once."""
        found = {index: cached for index in indices if (cached := self._cache.get(index)) is not None}
        missing = [index for index in indices if index not in found]
        threads = min(len(missing), _MOST_THREADS, len(os.sched_getaffinity(0)))
        if threads < 2 or get_worker_info() is not None:
            found |= zip(missing, map(self._load, missing), strict=True)
        else:
            with ThreadPoolExecutor(threads) as pool:
                found |= zip(missing, pool.map(self._load, missing), strict=True)
        return [found[index] for index in indices]

    def _example(self, loaded: Tensor, index: int, epoch: int) -> Example:
        key = [self.seed, epoch, index]
        if self._perturbation is not None:
            samples = self._perturbation(loaded.numpy(), np.random.default_rng([*key, 1]))
            loaded = audio_or_features(samples, self.audio, self.config)
        example = Example(loaded, self._targets[index], self.utterances[index].text)
        augmentation = self.augmentation.in_epoch(epoch) if self.augmentation else None
        return augmented(example, augmentation, self.config, self.mean, np.random.default_rng(key))

    def example(self, index: int, epoch: int) -> Example:
        """Utterance ``index`` as an epoch sees it."""
        (loaded,) = self._loaded([index])
        return self._example(loaded, index, epoch)

    def batch(self, request: Request) -> Batch:
        """The batch of the given utterances, by their numbers."""
        epoch = request.after.epoch
        loaded = self._loaded(request.items)
        examples = [self._example(found, index, epoch) for found, index in zip(loaded, request.items, strict=True)]
        return collate(examples)._replace(after=request.after)

    def sample(self, most: int, process: int = 0, processes: int = 1) -> Iterator[Tensor]:
        """Yields the samples (S,) of the utterances that are `sampled`, or their features (T, bins) where batches are
        made of these as they are. The cache keeps them for the training."""
        chosen = self.sampled(most, process, processes)
        for first in range(0, len(chosen), _TOGETHER):
            yield from self._loaded(chosen[first : first + _TOGETHER])

    def sampled(self, most: int, process: int = 0, processes: int = 1) -> range:
        """About so many utterances, evenly chosen, by number; of these, the share of one of several processes."""
        return range(0, len(self), max(1, len(self) // most))[process::processes]


def audio_or_features(samples: np.ndarray, audio: bool, config: FeatureConfig) -> Tensor:
    """Samples at the features' sample rate as they are, or the features of them."""
    return torch.from_numpy(samples) if audio else compute_features(samples, config.sample_rate, config)


def augmented(
    example: Example,
    augmentation: Augmentation | None,
    config: FeatureConfig,
    mean: Tensor,
    rng: np.random.Generator,
) -> Example:
    """An example with its features augmented, or, of samples, with the masks that its features are to have."""
    if augmentation is None:
        return example
    loaded = example.features
    if loaded.dim() == 1:
        frames = int(frame_count(len(loaded), config))
        return example._replace(masks=draw_masks(augmentation, frames, config.num_mel_bins, rng))
    masks = draw_masks(augmentation, len(loaded), loaded.shape[1], rng)
    return example._replace(features=masks(loaded, mean))


def padded(rows: Sequence[Tensor]) -> Tensor:
    """Pads rows with zeros to (rows, longest, ...), as pad_sequence does, which writes each element twice."""
    batch = rows[0].new_empty(len(rows), max(map(len, rows)), *rows[0].shape[1:])
    for place, row in zip(batch, rows, strict=True):
        place[: len(row)] = row
        place[len(row) :] = 0
    return batch


def collate(examples: Sequence[Example]) -> Batch:
    """Pads examples to a batch."""
    masks = [example.masks for example in examples if example.masks is not None]
    times = [mask.times for mask in masks if mask.times is not None]
    return Batch(
        padded([example.features for example in examples]),
        torch.tensor([len(example.features) for example in examples]),
        pad_sequence([example.targets for example in examples], batch_first=True),
        torch.tensor([len(example.targets) for example in examples]),
        [example.text for example in examples],
        examples[0].features.dim() == 1,
        Masks(
            torch.stack([mask.gain for mask in masks])[:, None, None],
            torch.stack([mask.bins for mask in masks])[:, None],
            pad_sequence([mask.frames for mask in masks], batch_first=True),
            pad_sequence(times, batch_first=True) if times else None,
        )
        if masks
        else None,
    )


def feature_sums(sample: Iterable[Tensor], config: FeatureConfig, device: torch.device) -> Tensor:
    """The number of frames, and the sums of each feature and of its square, of utterances: (1 + 2 bins,), float64, on
    the device.

    Args:
        sample: samples (S,) or features (T, bins) of each utterance, on the CPU.
        config: of the features.
        device: where features are computed: on the CPU by kaldi-native-fbank.
    """
    fbank = Fbank(config).to(device) if device.type != "cpu" else None
    sums = torch.zeros(1 + 2 * config.num_mel_bins, dtype=torch.float64, device=device)
    for item in sample:
        if item.dim() == 2:
            features = item.to(device)
        elif fbank is not None:
            features = fbank(item.to(device)[None], torch.tensor([len(item)]))[0][0]
        else:
            features = compute_features(item.numpy(), config.sample_rate, config)
        features = features.double()
        sums += torch.cat([features.new_tensor([len(features)]), features.sum(dim=0), features.square().sum(dim=0)])
    return sums


def feature_statistics(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each feature, two of (bins,), float32, from `feature_sums`."""
    mean, square = sums[1:].div(sums[0]).chunk(2)
    return mean.float(), (square - mean.square()).clamp(min=1e-4).sqrt().float()
