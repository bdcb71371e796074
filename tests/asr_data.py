"""Recordings and manifests for the tests of prnn.asr."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from prnn.asr import CharTokenizer, FeatureConfig, Tokenizer
from prnn.asr.checkpoint import describe
from prnn.transducer import Transducer, TransducerConfig

TONES = {"a": 400.0, "b": 900.0, "c": 2000.0}


def tone_string(text: str, rng: np.random.Generator, rate: int = 16000) -> np.ndarray:
    """A recording of a text over a, b and c: each letter is a tone of its own, 80 ms long, a space is silence."""
    time = np.arange(round(0.08 * rate)) / rate
    parts = [0.3 * np.sin(2 * np.pi * TONES[c] * time) if c != " " else np.zeros(len(time)) for c in text]
    samples = np.concatenate([np.zeros(len(time)), *parts, np.zeros(len(time))])
    return (samples + 0.003 * rng.standard_normal(len(samples))).astype(np.float32)


def write_corpus(folder: Path, name: str, texts: list[str], rate: int = 16000) -> Path:
    """Writes a recording for each text, and their manifest, whose path is returned."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for index, text in enumerate(texts):
        samples = tone_string(text, rng, rate)
        soundfile.write(folder / f"{name}-{index}.wav", samples, rate)
        entry = {"audio_filepath": f"{name}-{index}.wav", "duration": len(samples) / rate, "text": text}
        lines.append(json.dumps(entry) + "\n")
    manifest = folder / f"{name}.jsonl"
    manifest.write_text("".join(lines))
    return manifest


def small_config(vocab_size: int = 4) -> TransducerConfig:
    """A model that computes in no time."""
    return TransducerConfig(
        vocab_size=vocab_size,
        frame_stack=2,
        encoder_layers=1,
        encoder_hidden=16,
        predictor="stateless",
        predictor_hidden=8,
        joiner_dim=16,
    )


def small_checkpoint(characters: str = "abc", tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """Returns a checkpoint as prnn train saves it, of an untrained model."""
    tokenizer = tokenizer or CharTokenizer(characters)
    config = small_config(len(tokenizer))
    model = Transducer.from_config(config)
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    return {"prnn": describe(config, FeatureConfig(), tokenizer), "state_dict": weights}


@contextmanager
def bounded_memory() -> Iterator[None]:
    """8 GB more than the process has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (8 << 30), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
