"""The measurements of `prnn bench data`: batches, their parts, and training steps with the loader and without."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import soundfile
import torch
from torch import Tensor

from prnn.asr.configuration import parse
from prnn.asr.data import batch_bytes, open_data
from prnn.asr.dataset import Batch, Example, UtteranceDataset, audio_or_features, augmented, collate, read_samples
from prnn.asr.fbank import fewest_samples
from prnn.asr.features import resampled
from prnn.asr.loader import PREFETCH, Prefetcher
from prnn.asr.options import TrainingOptions
from prnn.asr.own_encoder import build_model
from prnn.asr.packed_batch import PackedBatch, Slots
from prnn.asr.perturb import Perturbation
from prnn.asr.task import TransducerTask

if TYPE_CHECKING:
    from prnn.asr.cuts import CutDataset

_SECONDS, _LETTERS, _RATE = 15.0, 60, 16000
_PARTS_SECONDS = 5.0
_PARTS = {
    "reading": "reading and decoding",
    "resampling": "resampling",
    "changes": "changes of speed, noise, rooms",
    "features": "features",
    "batches": "masks, padding, sending",
}
_T = TypeVar("_T")


def synthetic(folder: Path, files: int) -> Path:
    """Writes a corpus of noise; returns its manifest."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(files):
        # Brown noise: FLAC packs it about as well as speech.
        samples = np.cumsum(rng.standard_normal(round(_SECONDS * _RATE)))
        samples -= np.linspace(samples[0], samples[-1], len(samples))
        soundfile.write(folder / f"{number}.flac", 0.3 * samples / np.abs(samples).max(), _RATE)
        text = "".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), _LETTERS))
        entry = {"audio_filepath": f"{number}.flac", "duration": _SECONDS, "text": text}
        lines.append(json.dumps(entry) + "\n")
    manifest = folder / "noise.jsonl"
    manifest.write_text("".join(lines))
    return manifest


def _forever(loader: Prefetcher) -> Iterator[Batch]:
    while True:
        yield from loader


class _Parts:
    """Times the parts of one process's work on batches."""

    def __init__(self, options: TrainingOptions, dataset: UtteranceDataset | CutDataset) -> None:
        self._config, self._augmentation = options.features, options.augmentation
        self._on_device = options.features_on == "device"
        self._dataset = dataset
        self._slots = Slots(1, batch_bytes(options))
        changes = options.augmentation.of_recordings
        rate = options.features.sample_rate
        self._change = Perturbation(options.augmentation, rate, fewest_samples(options.features)) if changes else None
        self.seconds = dict.fromkeys(_PARTS, 0.0)
        self.audio = self.batches = 0.0

    def _timed(self, part: str, work: Callable[[], _T]) -> _T:
        began = time.perf_counter()
        result = work()
        self.seconds[part] += time.perf_counter() - began
        return result

    def _example(self, item: Any, rng: np.random.Generator) -> Example:
        config, dataset = self._config, self._dataset
        if isinstance(dataset, UtteranceDataset):
            utterance = dataset.utterances[item]
            self.audio += utterance.duration
            samples, rate = self._timed("reading", lambda: read_samples(utterance))
        else:
            self.audio += item.duration
            if not dataset.reads_recording(item):
                loaded = self._timed("reading", lambda: dataset.loaded(item, audio=False))
                return self._masked(loaded, rng)
            samples, rate = self._timed("reading", lambda: dataset.read(item))
        samples = self._timed("resampling", lambda: resampled(samples, rate, config.sample_rate))
        if (change := self._change) is not None:
            samples = self._timed("changes", lambda: change(samples, rng))
        return self._masked(self._timed("features", lambda: audio_or_features(samples, self._on_device, config)), rng)

    def _masked(self, loaded: Tensor, rng: np.random.Generator) -> Example:
        example = Example(loaded, torch.ones(1, dtype=torch.int64), "a")
        mean = torch.zeros(self._config.num_mel_bins)
        return self._timed("batches", lambda: augmented(example, self._augmentation, self._config, mean, rng))

    def add(self, items: Sequence[Any]) -> None:
        """Prepares a batch, once."""
        rng = np.random.default_rng(0)
        examples = [self._example(item, rng) for item in items]
        self._timed("batches", lambda: PackedBatch(collate(examples), self._slots, 0).batch(self._slots))
        self.batches += 1

    def show(self, workers: int) -> dict[str, float]:
        """Prints the parts. Returns milliseconds of a process: of each part for a second of audio, and for a batch."""
        whole = sum(self.seconds.values())
        print(f"to prepare a second of audio, one process, in batches of {self.audio / self.batches:.0f} s:")
        for part, seconds in self.seconds.items():
            print(f"  {_PARTS[part]:<30} {1000 * seconds / self.audio:7.3f} ms {100 * seconds / whole:5.1f} %")
        limit = _PARTS[max(self.seconds, key=lambda part: self.seconds[part])]
        speed, workers = self.audio / whole, max(1, workers)
        print(f"  {'in all':<30} {1000 / speed:7.3f} ms, most of it {limit}")
        print(
            f"{speed:.0f} s of audio a second a process, {speed * max(1, workers):.0f} s by {max(1, workers)} of them"
        )
        parts = {f"{part}_ms_a_second": 1000 * seconds / self.audio for part, seconds in self.seconds.items()}
        return {**parts, "prepare_batch_ms": 1000 * whole / self.batches}


class _Steps:
    """Training steps outside of Lightning, which would add its own time to both sides of the comparison."""

    def __init__(self, options: TrainingOptions, task: TransducerTask, device: torch.device) -> None:
        self._task = task.to(device)
        self._device = device
        self._precision = torch.float32 if options.precision == "32-true" else torch.bfloat16
        self._clip = options.clip
        optimizer = task.configure_optimizers()["optimizer"]
        assert isinstance(optimizer, torch.optim.Optimizer)
        self._optimizer = optimizer

    def step(self, batch: Batch) -> None:
        """One training step."""
        with torch.autocast(self._device.type, self._precision, enabled=self._precision != torch.float32):
            loss = self._task.model.loss_parts(*batch[:4]).total
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._task.parameters(), self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def finished(self) -> float:
        """The time when all that was begun is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def measure(arguments: Sequence[str], batches: int) -> tuple[dict[str, float], torch.device]:
    """Measures with these options of ``prnn train``, at least so many batches each time. Prints what it finds.

    Returns it as a row, and the device of the training.
    """
    options, _, _ = parse(arguments)
    data = open_data(options, 0)
    with closing(data):
        on_gpu = options.accelerator != "cpu" and torch.cuda.is_available()
        device = torch.device("cuda" if on_gpu else "cpu")
        config = options.transducer(len(data.tokenizer), options.features.num_mel_bins)
        model = build_model(config, options.model.get("encoder_class"))
        bins = options.features.num_mel_bins
        model.encoder.set_normalization(torch.full((bins,), -8.0), torch.full((bins,), 3.0))
        task = TransducerTask(model, options.features, data.tokenizer, options)
        steps = _Steps(options, task, device)
        ahead = Prefetcher(data.loader, task.prepared, lambda: device)
        parts, began = _Parts(options, data.train), time.perf_counter()
        for number, batch in enumerate(data.loader.sampler.epoch(0)):
            if number == batches or (number and time.perf_counter() - began > _PARTS_SECONDS):
                break
            parts.add(batch)
        prepared = parts.show(options.workers)
        return {**prepared, **_measure(options, steps, ahead, batches, prepared["prepare_batch_ms"] / 1000)}, device


def _measure(
    options: TrainingOptions, steps: _Steps, ahead: Prefetcher, count: int, prepared: float
) -> dict[str, float]:
    """Prints, and returns in milliseconds and per cent, what batches and steps take; prepared: seconds of a batch."""
    batches = _forever(ahead)
    # More than the processes have prepared by then: a measurement that begins with a full queue measures the queue.
    queue = PREFETCH * options.workers
    warm, count = max(3, queue), max(count, 4 * queue)
    for _ in islice(batches, warm):
        pass
    frames, began = 0, steps.finished()
    for batch in islice(batches, count):
        frames += int(batch.feature_lengths.sum())
    seconds = steps.finished() - began
    hours = frames * options.features.frame_shift_ms / 1000 / 3600
    print(f"batches alone: {1000 * seconds / count:.2f} ms each, {hours / seconds:.3f} hours of audio a second")

    kept = list(islice(batches, 4))
    for index in range(warm):
        steps.step(kept[index % len(kept)])
    began = steps.finished()
    for index in range(count):
        steps.step(kept[index % len(kept)])
    alone = (steps.finished() - began) / count
    for batch in islice(batches, warm):  # the queue has filled meanwhile
        steps.step(batch)
    began, ahead.waited = steps.finished(), 0.0
    for batch in islice(batches, count):
        steps.step(batch)
    together = (steps.finished() - began) / count
    print(f"a step on batches that are there: {1000 * alone:.2f} ms")
    enough = math.ceil(prepared / alone)
    print(f"a batch takes a process {1000 * prepared:.2f} ms: {enough} with cores of their own keep up with the steps")
    data, waiting = 100 * max(0.0, 1 - alone / together), 100 * ahead.waited / count / together
    print(f"a step with the loader: {1000 * together:.2f} ms, of which data take {data:.1f} %")
    print(f"the program waits for batches {waiting:.1f} % of the time")
    return {
        "batch_ms": 1000 * seconds / count,
        "hours_of_audio_a_second": hours / seconds,
        "step_ms": 1000 * alone,
        "step_with_loader_ms": 1000 * together,
        "waiting_percent": waiting,
    }
