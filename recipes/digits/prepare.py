"""Makes the recordings and manifests of the digits recipe.

    python -m recipes.digits.prepare --output data/digits

writes WAV files (16 kHz, 16 bit, mono) and train.jsonl, dev.jsonl and test.jsonl: one JSON object a line with
audio_filepath (relative to the manifest), duration in seconds, text, speaker and accent. The same numbers and seed give
the same bytes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr

from recipes.digits.espeak import Speaker, Synthesizer
from recipes.digits.voices import ACCENTS, SPEAKERS

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SAMPLE_RATE = 16000
_SHARD = 500  # utterances made by one process, in order: what espeak-ng carries from one to the next stays the same


@dataclass(frozen=True)
class Shard:
    """A run of utterances of one split, for one process."""

    directory: Path
    split: str
    first: int
    count: int
    seed: int


def add_noise(samples: np.ndarray, snr_db: float, colour: float, rng: np.random.Generator) -> np.ndarray:
    """Adds noise ``snr_db`` under the speech; power falls with frequency to ``colour``: 0 white, 1 pink, 2 brown."""
    size = 1 << (len(samples) - 1).bit_length()
    spectrum = np.fft.rfft(rng.standard_normal(size))
    frequency = np.fft.rfftfreq(size, 1 / SAMPLE_RATE)
    spectrum /= np.maximum(frequency, 20.0) ** (colour / 2)
    noise = np.fft.irfft(spectrum, size)[: len(samples)]
    speech_power = np.mean(samples[np.abs(samples) > 1e-4] ** 2)
    noise *= np.sqrt(speech_power / np.mean(noise**2) * 10 ** (-snr_db / 10))
    return (samples + noise).astype(np.float32)


def make_utterance(
    synthesizer: Synthesizer, split: str, rng: np.random.Generator
) -> tuple[np.ndarray, dict[str, object]]:
    """Speaks a random string of one to five digits; returns its samples at 16 kHz and what the manifest says of it."""
    text = " ".join(rng.choice(DIGITS, size=rng.integers(1, 6)))
    speaker = Speaker(
        accent=str(rng.choice(ACCENTS)),
        variant=str(rng.choice(SPEAKERS[split])),
        rate=int(rng.integers(85, 151)),
        pitch=int(rng.integers(25, 76)),
        pitch_range=int(rng.integers(20, 81)),
        word_gap=int(rng.choice([0, 0, 1, 3, 6, 12])),
    )
    # Training voices are also played a little faster or slower, which moves their formants: more vocal tracts.
    speed = rng.uniform(0.87, 1.15) if split == "train" else 1.0
    speech = soxr.resample(synthesizer.speak(text, speaker), synthesizer.sample_rate * speed, SAMPLE_RATE)
    silence = rng.integers(SAMPLE_RATE // 20, SAMPLE_RATE // 3, size=2)
    samples = np.concatenate([np.zeros(silence[0]), speech, np.zeros(silence[1])]).astype(np.float32)
    samples = add_noise(samples, snr_db=rng.uniform(10, 40), colour=rng.uniform(0, 2), rng=rng)
    samples *= 10 ** (rng.uniform(-25, -1) / 20) / np.abs(samples).max()
    return samples, {"text": text, "speaker": speaker.variant, "accent": speaker.accent}


def make_shard(shard: Shard) -> list[dict[str, object]]:
    """Writes the WAV files of a shard and returns their manifest entries."""
    synthesizer = Synthesizer()
    entries = []
    for index in range(shard.first, shard.first + shard.count):
        rng = np.random.default_rng([shard.seed, list(SPEAKERS).index(shard.split), index])
        samples, entry = make_utterance(synthesizer, shard.split, rng)
        name = f"{shard.split}/{shard.split}-{index:05d}.wav"
        soundfile.write(shard.directory / name, samples, SAMPLE_RATE, subtype="PCM_16")
        entries.append({"audio_filepath": name, "duration": round(len(samples) / SAMPLE_RATE, 4), **entry})
    return entries


def make_shards(directory: Path, split: str, count: int, seed: int) -> Iterator[Shard]:
    """Cuts a split into shards."""
    for first in range(0, count, _SHARD):
        yield Shard(directory, split, first, min(_SHARD, count - first), seed)


def prepare(directory: Path, counts: dict[str, int], seed: int = 0, processes: int | None = None) -> None:
    """Makes ``counts[split]`` utterances of each split under ``directory``, unless the same data are there already."""
    wanted = {"counts": counts, "seed": seed, "version": 1}
    stamp = directory / "prepared.json"
    if stamp.is_file() and stamp.read_bytes() == json.dumps(wanted).encode():
        print(f"{directory} holds these data already")
        return
    stamp.unlink(missing_ok=True)
    started = time.monotonic()
    processes = processes or os.cpu_count() or 1
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
        for split, count in counts.items():
            (directory / split).mkdir(parents=True, exist_ok=True)
            shards = pool.map(make_shard, make_shards(directory, split, count, seed), chunksize=1)
            entries = [entry for shard in shards for entry in shard]
            lines = "".join(json.dumps(entry) + "\n" for entry in entries)
            (directory / f"{split}.jsonl").write_text(lines)
            seconds = sum(float(str(entry["duration"])) for entry in entries)
            voices = f"{len(SPEAKERS[split])} speakers in {len(ACCENTS)} accents"
            print(f"{split}: {count} utterances, {seconds / 60:.1f} minutes, {voices}")
    stamp.write_text(json.dumps(wanted))
    print(f"made in {time.monotonic() - started:.1f} s with {processes} processes")


def main() -> int:
    # Here: the processes of prepare() then do without torch.
    from prnn._fields import Within, number_parser
    from prnn.commands.failure import CommandError, reported

    parser = argparse.ArgumentParser(description="Make spoken digit strings with espeak-ng, and their manifests.")
    parser.add_argument("--output", type=Path, default=Path("data/digits"), help="directory to write (%(default)s)")
    count = number_parser(int, Within(1, 10**6))
    parser.add_argument("--train", type=count, default=4000, help="training utterances (%(default)s)")
    parser.add_argument("--dev", type=count, default=150, help="validation utterances (%(default)s)")
    parser.add_argument("--test", type=count, default=400, help="test utterances (%(default)s)")
    seed = number_parser(int, Within(0, 2**32 - 1))
    parser.add_argument("--seed", type=seed, default=0, help="seed of everything random (%(default)s)")
    parser.add_argument("--processes", type=count, help="parallel processes (one a core)")
    arguments = parser.parse_args()
    counts = {"train": arguments.train, "dev": arguments.dev, "test": arguments.test}
    try:
        with reported():
            prepare(arguments.output, counts, arguments.seed, arguments.processes)
    except CommandError as error:
        print(f"digits: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
