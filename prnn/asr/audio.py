"""Reading recordings with libsndfile (WAV, FLAC and whatever else the installed version takes)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile

from .errors import InputError


def _open(path: Path) -> soundfile.SoundFile:
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.is_dir():
        raise InputError(f"{path}: is a directory, not a recording")
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the file is empty")
    try:
        file = soundfile.SoundFile(path)
    except (soundfile.SoundFileError, TypeError, OSError) as error:  # TypeError: a suffix that means headerless samples
        raise InputError(f"{path}: not a recording that libsndfile can read ({_one_line(error)})") from error
    if file.frames == 0:
        file.close()
        raise InputError(f"{path}: the recording has no samples")
    return file


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")


def read_audio(path: str | Path, offset: float = 0.0, duration: float | None = None) -> tuple[np.ndarray, int]:
    """Reads a recording, or the part of it from ``offset`` on that lasts ``duration`` seconds.

    Returns:
        Samples as float32 of shape (samples,), the mean of the channels, from -1 to 1; and the sample rate in hertz.

    Raises:
        InputError: the file is missing, empty, not a recording, or ends before ``offset``.
    """
    path = Path(path)
    with _open(path) as file:
        rate = file.samplerate
        start = round(offset * rate)
        if start >= file.frames:
            end = file.frames / rate
            raise InputError(f"{path}: offset {offset} s is beyond the end of the recording, at {end:.2f} s")
        file.seek(start)
        try:
            samples = file.read(-1 if duration is None else round(duration * rate), dtype="float32", always_2d=True)
        except soundfile.SoundFileError as error:
            raise InputError(f"{path}: cannot be read to its end ({_one_line(error)})") from error
    samples = samples.mean(axis=1) if samples.shape[1] > 1 else samples[:, 0]
    if len(samples) == 0:
        raise InputError(f"{path}: the recording has no samples")
    if not np.isfinite(samples).all():
        raise InputError(f"{path}: the recording has samples that are not finite numbers")
    return np.ascontiguousarray(samples), rate


def chunks(samples: np.ndarray, sample_rate: int, milliseconds: float) -> Iterator[np.ndarray]:
    """Cuts samples into pieces of ``milliseconds``, as a microphone would deliver them; the last one may be shorter."""
    size = max(1, round(sample_rate * milliseconds / 1000))
    for start in range(0, len(samples), size):
        yield samples[start : start + size]
