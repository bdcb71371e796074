"""Recordings that are no files for libsndfile: standard input, and containers that FFmpeg's libraries read through PyAV
(the extra "media"). Either becomes a temporary file without a name, in the folder of tempfile."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
from pathlib import Path

import soundfile

STANDARD_INPUT = Path("-")
_MISSING_SECONDS = 0.5  # by which a recording may be shorter than its container says


def reopened(descriptor: int) -> int:
    """A descriptor of the same file with a place of its own, from the beginning."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


@functools.cache
def standard_input() -> int:
    """The descriptor of a file with all of standard input, which is read once.

    Raises:
        ValueError: it is a terminal.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise ValueError("standard input is a terminal; send it a recording, as in: prnn transcribe MODEL - < talk.wav")
    with tempfile.TemporaryFile() as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        return reopened(file.fileno())


def decoded(descriptor: int) -> int:
    """The descriptor of a W64 file (16 bits) of the first audio stream of a file in a container that
    PyAV reads: MP4 (m4a, mp4), Matroska (webm, mkv), ADTS and others.

    Raises:
        ModuleNotFoundError: PyAV is not installed.
        ValueError: the file has no sound, is damaged, or is not whole.
    """
    import av
    import av.error

    with tempfile.TemporaryFile() as file, open(reopened(descriptor), "rb") as source:
        try:
            with av.open(source, "r") as container:
                if not container.streams.audio:
                    raise ValueError("it has no sound")
                stream = container.streams.audio[0]
                resampler = av.AudioResampler(format="s16")
                rate, channels, written = stream.rate, stream.channels, 0
                with soundfile.SoundFile(file, "w", rate, channels, "PCM_16", format="W64") as wav:
                    for frame in container.decode(stream):
                        for part in resampler.resample(frame):
                            samples = part.to_ndarray().reshape(-1, channels)
                            written += len(samples)
                            wav.write(samples)
                length = None if container.duration is None else container.duration / 1_000_000
        except av.error.FFmpegError as error:
            raise ValueError(f"cannot be decoded ({error.strerror or error})".lower()) from error
        if length is not None and written / rate < length - _MISSING_SECONDS:
            raise ValueError(
                f"it is not whole: it has {written / rate:.2f} of the {length:.2f} s that its header promises"
            )
        file.flush()
        return reopened(file.fileno())
