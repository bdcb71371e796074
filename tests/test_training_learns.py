"""A training on a hundred sentences of a synthesiser, through everything that `prnn train` does, learns to listen: its
losses, and that on sentences that were not in it, fall far below that of guessing symbols by how often they occur."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from prnn.asr import dataset, read_manifest
from prnn.asr.augment import Augmentation
from prnn.asr.dataset import Batch, Example, collate, encoded, load_features
from prnn.asr.options import TrainingOptions
from prnn.asr.training import train
from recipes.digits.espeak import Speaker, Synthesizer
from recipes.digits.prepare import DIGITS

RATE = 16000
MODEL = {
    "encoder_cell": "layer_norm_lstm", "encoder_layers": 1, "encoder_hidden": 128, "frame_stack": 8, "frame_stride": 4,
    "predictor": "stateless", "predictor_hidden": 32, "joiner_dim": 64, "ctc_weight": 0.5,
}  # fmt: skip


def write_sentences(folder: Path, name: str, count: int, seed: int, synthesizer: Synthesizer) -> Path:
    """Strings of two to five digits by one voice, at rates and pitches that differ."""
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    lines = []
    for number in range(count):
        text = " ".join(rng.choice(DIGITS, size=rng.integers(2, 6)))
        speaker = Speaker("en-us", "m3", rate=int(rng.integers(110, 150)), pitch=int(rng.integers(40, 60)))
        samples = soxr.resample(synthesizer.speak(text, speaker), synthesizer.sample_rate, RATE)
        samples = (0.5 * samples + 1e-3 * rng.standard_normal(len(samples))).astype(np.float32)
        soundfile.write(folder / f"{name}-{number}.wav", samples, RATE, subtype="PCM_16")
        entry = {"audio_filepath": f"{name}-{number}.wav", "duration": len(samples) / RATE, "text": text}
        lines.append(json.dumps(entry) + "\n")
    (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder / f"{name}.jsonl"


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder, synthesizer = tmp_path_factory.mktemp("sentences"), Synthesizer()
    return write_sentences(folder, "train", 100, 0, synthesizer), write_sentences(folder, "valid", 20, 1, synthesizer)


def losses(manifests: tuple[Path, Path], output: Path, epochs: int = 12) -> tuple[float, float]:
    """Trains; returns CTC's loss a symbol at the end of the training, and the transducer's on the validation sentences,
    both as a share of the loss of guessing."""
    options = TrainingOptions(
        *manifests, output=output, model=MODEL, accelerator="cpu", epochs=epochs, valid_every=epochs, batch_size=10,
        lr=5e-3, log_every=5, pictures=0, augmentation=Augmentation(start_epoch=epochs + 1),
    )  # fmt: skip
    train(options, progress=False)
    events = EventAccumulator(str(output / "tensorboard"))
    events.Reload()

    def last(tag: str, count: int = 1) -> float:
        return float(np.mean([event.value for event in events.Scalars(tag)[-count:]]))

    symbols = np.mean([len(utterance.text) for utterance in read_manifest(manifests[1])])
    guessing = last("train/guessing_a_symbol")
    return last("train/ctc_a_symbol", 4) / guessing, last("valid/loss") / float(symbols) / guessing


BROKEN = ("features", "targets", "order")


def break_data(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features: frames in another order. Targets: symbols in another order. Order: the texts of other recordings of the
    batch."""

    def permuted(values: Tensor) -> Tensor:
        return values[torch.randperm(len(values), generator=torch.Generator().manual_seed(len(values)))]

    def exchanged(examples: Sequence[Example]) -> Batch:
        batch = collate(examples)
        return batch._replace(targets=batch.targets.roll(1, 0), target_lengths=batch.target_lengths.roll(1, 0))

    name, replacement = {
        "features": ("load_features", lambda *arguments: permuted(load_features(*arguments))),
        "targets": ("encoded", lambda *arguments: permuted(encoded(*arguments))),
        "order": ("collate", exchanged),
    }[broken]
    monkeypatch.setattr(dataset, name, replacement)


def test_it_learns_to_listen(manifests: tuple[Path, Path], tmp_path: Path) -> None:
    """Measured: 0.05 and 0.04; with features, targets or order broken, as below, 0.7 or more and 0.2 or more."""
    ctc, valid = losses(manifests, tmp_path / "out")
    assert ctc < 0.4
    assert valid < 0.12


@pytest.mark.parametrize("broken", BROKEN)
def test_nothing_else_reaches_that(
    manifests: tuple[Path, Path], tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_data(broken, monkeypatch)
    ctc, valid = losses(manifests, tmp_path / "out")
    assert ctc > 0.6
    assert valid > 0.16
