"""Augmentation of recordings: speed, rooms, noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

from .audio import read_audio
from .augment import Augmentation
from .errors import InputError
from .features import resampled

_SUFFIXES = {f".{name.lower()}" for name in soundfile.available_formats()} - {".raw"}
_LONGEST_ROOM = 4.0  # seconds of an impulse response


def _recordings(folder: Path, what: str) -> list[Path]:
    """The recordings under a folder, in the order of their names."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder, from which {what} was to come")
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())
    if not found:
        raise InputError(f"{folder}: there are no recordings in it, from which {what} was to come")
    return found


def change_speed(samples: np.ndarray, speed: float, rate: int) -> np.ndarray:
    """Plays samples so many times as fast; the sample rate stays."""
    return resampled(samples, rate * speed, rate)


def add_room(samples: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Convolves samples with a room's impulse response, whose loudest sample is time zero. Length and power stay."""
    size = 1 << (len(samples) + len(response) - 1).bit_length()
    spectrum = np.fft.rfft(samples, size) * np.fft.rfft(response, size)
    delay = int(np.abs(response).argmax())
    heard = np.fft.irfft(spectrum, size)[delay : delay + len(samples)]
    power = float(np.mean(np.square(heard)))
    return (heard * np.sqrt(np.mean(np.square(samples)) / power) if power > 0 else samples).astype(np.float32)


def add_noise(samples: np.ndarray, noise: np.ndarray, snr: float) -> np.ndarray:
    """Adds noise, repeated as often as it takes, so many decibels under the samples."""
    noise = np.resize(noise, len(samples))
    power = float(np.mean(np.square(noise)))
    if power == 0:
        return samples
    gain = np.sqrt(np.mean(np.square(samples)) / power * 10 ** (-snr / 10))
    return (samples + gain * noise).astype(np.float32)


class Perturbation:
    """Changes recordings as an Augmentation says.

    Args:
        augmentation: what is done how often.
        rate: sample rate of the recordings, in hertz.
        least: samples that a recording has at least after a change of speed; one that would have fewer keeps its speed.

    Raises:
        InputError: a folder is missing, or has no recordings.
    """

    def __init__(self, augmentation: Augmentation, rate: int, least: int = 1) -> None:
        self._augmentation = augmentation
        self._rate = rate
        self._least = least
        noise, rooms = augmentation.noise, augmentation.reverberation
        self._noises = _recordings(noise, "noise") if noise is not None else []
        self._rooms = _recordings(rooms, "reverberation") if rooms is not None else []

    def _read(self, path: Path, seconds: float, place: float) -> np.ndarray:
        """So much of a recording, or all that there is; from the beginning for a `place` of 0, the end for 1."""
        try:
            length = soundfile.info(path).duration
        except (soundfile.SoundFileError, OSError) as error:
            raise InputError(f"{path}: not a recording that libsndfile can read") from error
        samples, rate = read_audio(path, place * max(0.0, length - seconds), seconds)
        return resampled(samples, rate, self._rate)

    def __call__(self, samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A changed copy of samples (S,), or these themselves."""
        augmentation = self._augmentation
        changed = change_speed(samples, augmentation.speeds[rng.integers(len(augmentation.speeds))], self._rate)
        samples = changed if len(changed) >= self._least else samples
        if self._rooms and rng.random() < augmentation.reverberation_share:
            samples = add_room(samples, self._read(self._rooms[rng.integers(len(self._rooms))], _LONGEST_ROOM, 0.0))
        if self._noises and rng.random() < augmentation.noise_share:
            path, seconds = self._noises[rng.integers(len(self._noises))], len(samples) / self._rate
            noise = self._read(path, seconds, rng.random())
            samples = add_noise(samples, noise, rng.uniform(augmentation.snr_low, augmentation.snr_high))
        return samples
