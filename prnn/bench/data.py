"""How fast the data of a training come, and how much of a training step is spent waiting for them."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import numpy as np
import soundfile
import torch

from prnn._fields import Within, number_parser
from prnn.asr.configuration import parse
from prnn.asr.data import open_data
from prnn.asr.dataset import Batch
from prnn.asr.loader import PREFETCH, Ahead
from prnn.asr.options import TrainingOptions
from prnn.asr.task import TransducerTask
from prnn.transducer import Encoder, Transducer

_DESCRIPTION = """
Measure how fast batches come (hours of audio a second, with their features on the training's device), and the share of
a training step that is spent waiting for them: a step with the loader against a step with one batch again and again.
Takes the options of prnn train, too. Without a manifest, a corpus of noise is made: FLAC files of 15 s, texts of 60
letters.
"""
_SECONDS, _LETTERS, _RATE = 15.0, 60, 16000


def _synthetic(folder: Path, files: int) -> Path:
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


def _forever(loader: Ahead) -> Iterator[Batch]:
    while True:
        yield from loader


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


def main(arguments: Sequence[str]) -> None:
    """Runs ``prnn bench data``."""
    count = number_parser(int, Within(1, 10**6))
    parser = argparse.ArgumentParser(prog="prnn bench data", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--batches", type=count, default=100, help="least batches of each measurement (%(default)s)")
    parser.add_argument("--files", type=count, default=256, help="recordings of the corpus of noise (%(default)s)")
    own, rest = parser.parse_known_args(arguments)
    with ExitStack() as stack:
        if not any(argument.split("=")[0] in ("--manifest", "--config") for argument in rest):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            manifest = str(_synthetic(folder, own.files))
            rest = ["--manifest", manifest, "--valid", manifest, "--cache-gb", "0", *rest]
        options, _, _ = parse(rest)
        data = open_data(options, 0)
        stack.callback(data.close)
        on_gpu = options.accelerator != "cpu" and torch.cuda.is_available()
        device = torch.device("cuda" if on_gpu else "cpu")
        model = Transducer.from_config(options.transducer(len(data.tokenizer), options.features.num_mel_bins))
        assert isinstance(model.encoder, Encoder)
        bins = options.features.num_mel_bins
        model.encoder.set_normalization(torch.full((bins,), -8.0), torch.full((bins,), 3.0))
        task = TransducerTask(model, options.features, data.tokenizer, options)
        steps = _Steps(options, task, device)
        ahead = Ahead(data.loader, task.prepared, lambda: device)
        _measure(options, steps, ahead, own.batches)


def _measure(options: TrainingOptions, steps: _Steps, ahead: Ahead, count: int) -> None:
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
    data, waiting = 100 * max(0.0, 1 - alone / together), 100 * ahead.waited / count / together
    print(f"a step with the loader: {1000 * together:.2f} ms, of which data take {data:.1f} %")
    print(f"the program waits for batches {waiting:.1f} % of the time")
