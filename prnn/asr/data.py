"""The data of a training: what its options name, opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from prnn._fields import shown

from .dataset import UtteranceDataset, load_audio, load_features
from .loader import Batches, BatchLoader
from .manifest import read_manifest
from .options import TrainingOptions
from .order import BatchOrder
from .pictures import Shown
from .tokenizer import CharTokenizer, PieceTokenizer, Tokenizer, unknown_characters


@dataclass
class TrainingData:
    """Manifests that have been read.

    Args:
        tokenizer: of the texts.
        train: the training data.
        valid: the validation data.
        loader: batches for training.
        valid_loader: batches for validation.
        hours: of training audio.
        unknown: characters of the validation texts that no label stands for, and how often each occurs.
    """

    tokenizer: Tokenizer
    train: UtteranceDataset
    valid: UtteranceDataset
    loader: BatchLoader
    valid_loader: Batches
    hours: float
    unknown: Counter[str]

    def shown(self, count: int) -> Iterator[Shown]:
        """The first validation utterances, for the log."""
        for utterance in self.valid.utterances[:count]:
            config = self.valid.config
            yield Shown(load_audio(utterance, config), load_features(utterance, config), utterance.text)

    def report(self, options: TrainingOptions) -> str:
        """A sentence on the unknown characters; empty if there are none."""
        if not self.unknown:
            return ""
        most = ", ".join(f"{character!r} {count} times" for character, count in self.unknown.most_common(5))
        return (
            f"{options.valid}: {self.unknown.total()} characters, {len(self.unknown)} different ones, are not among "
            f"the {shown(self.tokenizer, str)}; they count as errors: {most}{', ...' if len(self.unknown) > 5 else ''}"
        )


def _tokenizer(options: TrainingOptions, texts: Iterable[str]) -> Tokenizer:
    return CharTokenizer.from_texts(texts) if options.tokenizer is None else PieceTokenizer.load(options.tokenizer)


def open_data(options: TrainingOptions, process: int) -> TrainingData:
    """Reads the manifests.

    Args:
        options: of the training.
        process: which of the processes that train together this is.

    Raises:
        InputError: a manifest, a text or a tokenizer cannot be used.
    """
    utterances, valid_utterances = read_manifest(options.manifest), read_manifest(options.valid)
    tokenizer = _tokenizer(options, (utterance.text for utterance in utterances))
    unknown = unknown_characters(tokenizer, (utterance.text for utterance in valid_utterances))
    cache_bytes, audio = int(options.cache_gb * 1e9), options.features_on == "device"
    train = UtteranceDataset(
        utterances, tokenizer, options.features, options.augmentation, options.seed, cache_bytes, audio
    )
    valid = UtteranceDataset(
        valid_utterances, tokenizer, options.features, None, 0, cache_bytes // 4, audio, pass_over_unknown=True
    )
    sizes = options.batch_size, options.batch_seconds
    order = BatchOrder([utterance.duration for utterance in utterances], *sizes, options.seed)
    valid_order = BatchOrder([utterance.duration for utterance in valid_utterances], *sizes, seed=None)
    pinned = options.accelerator != "cpu" and torch.cuda.is_available()
    return TrainingData(
        tokenizer,
        train,
        valid,
        BatchLoader(train, order, options.workers, process, options.processes, pinned),
        Batches(valid, valid_order.epoch(0), options.workers, pinned),
        sum(utterance.duration for utterance in utterances) / 3600,
        unknown,
    )
