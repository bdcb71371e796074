"""The data of a training: what its options name, opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .audio import sample_rate
from .dataset import LoadUtterance, Shown, UtteranceDataset, load_audio, load_features
from .errors import InputError
from .feature_config import FeatureConfig
from .loader import Batches, BatchLoader
from .manifest import Utterance, read_manifest
from .metrics import has_words
from .options import TrainingOptions
from .recognition import Load
from .sampler import BucketSampler, EpochSampler
from .selection import Selection
from .tokenizer import CharTokenizer, PieceTokenizer, Tokenizer, unknown_characters, unknown_sentence

if TYPE_CHECKING:
    from .cuts import CutDataset

_SAMPLED = 500  # utterances for the statistics of features
_MOST_BYTES = 2**26  # of the memory kept for a batch that a worker prepares; larger batches take their own


@dataclass
class TrainingData:
    """Manifests that have been read.

    Args:
        tokenizer: of the texts.
        train: the training data.
        loader: batches for training.
        valid_loader: this process's share of the batches for validation; where there are fewer batches than processes,
            a batch that is another's, too.
        validates: whether these batches are this process's own.
        utterances: how many there are for training.
        hours: of training audio.
        trained_on: of the training utterances, for the checkpoint.
        notes: sentences on what was left out, and what is unusual in the training manifest.
        words: whether words are written apart in the validation texts (`has_words`).
        unknown: characters of the validation texts that no label stands for, and how often each occurs.
        sample: samples or features of this process's share of about 500 training utterances.
        rates: the sample rates of these utterances' recordings, in hertz, from their headers.
        shown: the first validation utterances, so many of them, for the log.
    """

    tokenizer: Tokenizer
    train: UtteranceDataset | CutDataset
    loader: BatchLoader
    valid_loader: Batches
    validates: bool
    utterances: int
    hours: float
    trained_on: dict[str, object]
    notes: list[str]
    words: bool
    unknown: Counter[str]
    sample: Callable[[], Iterable[Tensor]]
    rates: Callable[[], Iterable[int]]
    shown: Callable[[int], list[Shown]]

    def report(self, valid: Path) -> str:
        """A sentence on the unknown characters of the validation manifest."""
        return f"{valid}: {unknown_sentence(self.tokenizer, self.unknown)}"

    def report_rates(self, path: Path, config: FeatureConfig) -> str:
        """A sentence on recordings that are resampled to a higher rate, if there are such; path: of their manifest."""
        rates = list(self.rates())
        low = Counter(rate for rate in rates if rate < config.sample_rate)
        if not low:
            return ""
        counts = ", ".join(f"{count} of {rate} Hz" for rate, count in low.most_common())
        return (
            f"{path}: {low.total()} of {len(rates)} recordings looked at have a lower sample rate ({counts}) than the "
            f"features, {config.sample_rate} Hz. They are resampled, and have nothing above half their own rate, where "
            f"the highest mel bins stay empty; --features.sample_rate {low.most_common(1)[0][0]} leaves these bins out"
        )

    def close(self) -> None:
        """Ends the processes that prepare batches."""
        self.loader.close()
        self.valid_loader.close()


class _Train(NamedTuple):
    dataset: UtteranceDataset | CutDataset
    sampler: EpochSampler
    tokenizer: Tokenizer
    utterances: int
    hours: float
    trained_on: dict[str, object]
    notes: list[str]
    sample: Callable[[], Iterable[Tensor]]
    rates: Callable[[], Iterable[int]]


class _Valid(NamedTuple):
    dataset: UtteranceDataset | CutDataset
    batches: list[Any]
    words: bool
    unknown: Counter[str]
    shown: Callable[[int], list[Shown]]


def are_cuts(path: Path) -> bool:
    """Whether a manifest is one of Lhotse's: a compressed one, or a folder."""
    return path.is_dir() or path.suffix == ".gz"


def read_utterances(path: Path, channel: int | None = None) -> tuple[list[Utterance], Load]:
    """The utterances of a manifest of either kind, and what loads one of them by its number.

    Args:
        path: the manifest.
        channel: of recordings with several, where the manifest does not say which; None is the mean of all.

    Raises:
        InputError: the manifest cannot be used.
    """
    if not are_cuts(path):
        utterances = read_manifest(path, channel)
        return utterances, LoadUtterance(utterances)
    from .cuts import LoadCut, read_cuts, utterance_of

    cuts = read_cuts(path)
    return [utterance_of(cut, path) for cut in cuts], LoadCut(cuts, path, channel)


def open_data(options: TrainingOptions, process: int) -> TrainingData:
    """Reads the manifests.

    Args:
        options: of the training.
        process: which of the processes that train together this is.

    Raises:
        InputError: a manifest, a text, a tokenizer or a folder of the augmentation cannot be used.
    """
    train = (_train_cuts if are_cuts(options.manifest) and not options.also else _train_utterances)(options, process)
    on_gpu = options.accelerator != "cpu" and torch.cuda.is_available()
    valid = (_valid_cuts if are_cuts(options.valid) else _valid_utterances)(options, train.tokenizer)
    size = batch_bytes(options)
    loader = BatchLoader(train.dataset, train.sampler, options.workers, process, options.processes, on_gpu, size)
    own = valid.batches[process :: options.processes]
    valid_loader = Batches(valid.dataset, own or valid.batches[:1], options.workers, size)
    return TrainingData(
        train.tokenizer, train.dataset, loader, valid_loader, bool(own), train.utterances, train.hours,
        train.trained_on, train.notes, valid.words, valid.unknown, train.sample, train.rates, valid.shown,
    )  # fmt: skip


def batch_bytes(options: TrainingOptions) -> int:
    """Bytes of the largest batch of utterances that are no longer than `batch_seconds`, or `_MOST_BYTES`."""
    features, augmentation = options.features, options.augmentation
    samples = features.sample_rate * features.frame_shift_ms / 1000
    of_frame = 4 * (samples if options.features_on == "device" else features.num_mel_bins)
    of_frame += 9 if augmentation.time_warp else 1  # masks
    frames = options.batch_seconds / min(1.0, *augmentation.speeds) * 1000 / features.frame_shift_ms
    return min(_MOST_BYTES, int(1.1 * frames * of_frame) + 2**18)  # and symbols, and what is drawn for an utterance


def _tokenizer(options: TrainingOptions, texts: Iterable[str]) -> Tokenizer:
    if options.tokenizer is not None:
        return PieceTokenizer.load(options.tokenizer)
    characters = set[str]().union(*texts)
    if not characters:
        raise InputError(f"{options.manifest}: all texts are empty; there is no character to learn")
    return CharTokenizer.from_texts(characters)


def _train_utterances(options: TrainingOptions, process: int) -> _Train:
    selection = Selection(options)
    utterances: list[Utterance] = []
    for path, times in options.manifests:
        if are_cuts(path):
            raise InputError(f"{path}: of Lhotse's manifests a training takes one; lhotse combine joins several")
        read = read_manifest(path, options.channel)
        utterances += [item for item in read if selection.takes(item.duration, item.text)] * times
    selection.require_some()
    tokenizer = _tokenizer(options, (utterance.text for utterance in utterances))
    dataset = UtteranceDataset(
        utterances,
        tokenizer,
        options.features,
        options.augmentation,
        options.seed,
        int(options.cache_gb * 1e9),
        audio=options.features_on == "device",
    )
    durations = [utterance.duration for utterance in utterances]
    sampler = BucketSampler(durations, options.batch_size, options.batch_seconds, options.seed)
    hours = sum(durations) / 3600
    share = _SAMPLED, process, options.processes
    return _Train(
        dataset,
        sampler,
        tokenizer,
        len(utterances),
        hours,
        selection.trained_on(),
        selection.notes(),
        partial(dataset.sample, *share),
        lambda: [sample_rate(utterances[index].audio) for index in dataset.sampled(*share)],
    )


def _train_cuts(options: TrainingOptions, process: int) -> _Train:
    from .cuts import CutDataset, CutManifest, CutSampler, recording_rate

    selection = Selection(options)
    manifest = CutManifest(options.manifest)
    sampler = CutSampler(manifest, options.batch_size, options.batch_seconds, options.seed, selection)
    tokenizer = _tokenizer(options, sampler.characters)
    audio = options.features_on == "device"
    dataset = CutDataset(
        options.manifest, tokenizer, options.features, options.augmentation, options.seed, audio,
        channel=options.channel,
    )  # fmt: skip
    sampled = sampler.sampled[process :: options.processes]
    return _Train(
        dataset,
        sampler,
        tokenizer,
        sampler.cuts,
        sampler.hours,
        selection.trained_on(),
        selection.notes(),
        lambda: dataset.sample(sampled),
        lambda: [recording_rate(cut) for cut in sampled if dataset.reads_recording(cut)],
    )


def _valid_utterances(options: TrainingOptions, tokenizer: Tokenizer) -> _Valid:
    utterances, config = read_manifest(options.valid, options.channel), options.features
    cache_bytes, audio = int(options.cache_gb * 1e9) // 4, options.features_on == "device"
    dataset = UtteranceDataset(
        utterances, tokenizer, config, cache_bytes=cache_bytes, audio=audio, pass_over_unknown=True
    )
    sampler = BucketSampler(
        [item.duration for item in utterances], options.batch_size, options.batch_seconds, seed=None
    )
    return _Valid(
        dataset,
        sampler.epoch(0),
        has_words([utterance.text for utterance in utterances]),
        unknown_characters(tokenizer, (utterance.text for utterance in utterances)),
        lambda count: [
            Shown(load_audio(item, config), load_features(item, config), item.text) for item in utterances[:count]
        ],
    )


def _valid_cuts(options: TrainingOptions, tokenizer: Tokenizer) -> _Valid:
    from .cuts import CutDataset, read_cuts, text_of

    cuts = read_cuts(options.valid)
    texts = [text_of(cut, options.valid) for cut in cuts]
    audio = options.features_on == "device"
    dataset = CutDataset(
        options.valid, tokenizer, options.features, audio=audio, pass_over_unknown=True, channel=options.channel
    )
    sampler = BucketSampler([cut.duration for cut in cuts], options.batch_size, options.batch_seconds, seed=None)
    batches = [[cuts[index] for index in batch] for batch in sampler.epoch(0)]
    return _Valid(
        dataset,
        batches,
        has_words(texts),
        unknown_characters(tokenizer, texts),
        lambda count: [dataset.shown(cut) for cut in cuts[:count]],
    )
