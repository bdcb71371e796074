"""Recognising many recordings at once: in batches of similar length, which threads read."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from prnn.transducer import SymbolBias
from prnn.transducer.streaming import MAX_SYMBOLS

from .audio import read_audio
from .dataset import padded
from .errors import InputError
from .fbank import Fbank
from .feature_config import FeatureConfig
from .features import compute_features, resampled
from .recogniser import Recogniser
from .transcript import Transcript

_MOST_SECONDS = 600.0  # of a batch, padding included
_MOST_THREADS = 16
_AHEAD = 2  # batches that are read while one is recognised


class Load(Protocol):
    """Loads a recording; threads call it."""

    def __call__(self, number: int, config: FeatureConfig, audio: bool) -> Tensor:
        """Recording ``number``: its features (T, bins), or if ``audio``, unless features are stored, its samples (S,)
        at the features' sample rate. Raises InputError for one that cannot be used."""
        ...


class LoadRecording:
    """Loads whole recordings, by their place among the files.

    Args:
        files: the recordings.
        channel: of those with several, the one to take; None is the mean of all.
    """

    def __init__(self, files: Sequence[str | Path], channel: int | None = None) -> None:
        self._files, self._channel = files, channel

    def __call__(self, number: int, config: FeatureConfig, audio: bool) -> Tensor:
        samples, rate = read_audio(self._files[number], channel=self._channel)
        if audio:
            return torch.from_numpy(resampled(samples, rate, config.sample_rate))
        return compute_features(samples, rate, config)


def recognise(
    recogniser: Recogniser,
    load: Load,
    durations: Sequence[float],
    beam: int = 1,
    max_symbols: int = MAX_SYMBOLS,
    bias: SymbolBias | None = None,
    batch_size: int = 32,
) -> Generator[tuple[int, Transcript | InputError]]:
    """Recognises recordings, each as it is recognised alone. Beside that, threads read the next ones, one thread for
    each core, at most 16.

    Args:
        recogniser: which recognises. On a GPU it computes the features, too.
        load: loads a recording by its number.
        durations: seconds of each recording, about.
        beam: hypotheses kept; 1 is greedy search.
        max_symbols: most symbols in one encoder frame.
        bias: phrases that the search prefers, or a language model.
        batch_size: most recordings that are recognised at once; of long ones fewer, to bound memory.

    Yields:
        The number of a recording, and its transcript, or what is wrong with it: shorter ones first.
    """
    audio = _computes_features(recogniser.device)
    fbank = Fbank(recogniser.features).to(recogniser.device) if audio else None

    def loaded(number: int) -> Tensor | InputError:
        try:
            return load(number, recogniser.features, audio)
        except InputError as error:
            return error

    def recognised(items: Sequence[Tensor]) -> list[Transcript]:
        """Transcripts of features, or of samples, whose features are computed here."""
        lengths = torch.tensor([len(item) for item in items])
        batch = padded(items)
        batch = (batch.pin_memory() if recogniser.device.type == "cuda" else batch).to(recogniser.device)
        if batch.dim() == 2:
            assert fbank is not None
            batch, lengths = fbank(batch, lengths)
        return recogniser.transcribe_padded(batch, lengths, beam, max_symbols, bias)

    def results(numbers: list[int], futures: list[Future[Tensor | InputError]]) -> dict[int, Transcript | InputError]:
        found: dict[int, Transcript | InputError] = {}
        usable: dict[int, dict[int, Tensor]] = {}  # by their dimensions: stored features may lie beside samples
        for number, future in zip(numbers, futures, strict=True):
            item = future.result()
            if isinstance(item, InputError):
                found[number] = item
            else:
                usable.setdefault(item.dim(), {})[number] = item
        for items in usable.values():
            found.update(zip(items, recognised(list(items.values())), strict=True))
        return found

    pool = ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), _MOST_THREADS))
    ahead: deque[tuple[list[int], list[Future[Tensor | InputError]]]] = deque()
    try:
        for numbers in _batches(durations, batch_size):
            ahead.append((numbers, [pool.submit(loaded, number) for number in numbers]))
            if len(ahead) > _AHEAD:
                yield from results(*ahead.popleft()).items()
        while ahead:
            yield from results(*ahead.popleft()).items()
    finally:
        pool.shutdown(cancel_futures=True)


def _computes_features(device: torch.device) -> bool:
    return device.type == "cuda"


def _batches(durations: Sequence[float], most: int) -> Iterator[list[int]]:
    """Numbers of recordings of similar duration, which together are not too long."""
    batch: list[int] = []
    for number in sorted(range(len(durations)), key=durations.__getitem__):
        if batch and (len(batch) == most or (len(batch) + 1) * durations[number] > _MOST_SECONDS):
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
