"""Samples from a microphone, through the package sounddevice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .errors import InputError


def microphone_blocks(
    sample_rate: int, seconds: float, device: str | None, lost: Callable[[], object]
) -> Iterator[np.ndarray]:
    """Records until the consumer stops.

    Args:
        sample_rate: in hertz.
        seconds: of a block.
        device: number of a device, or a part of its name, as ``python -m sounddevice`` lists them; None is the default.
        lost: called where samples were lost before a block, because the blocks were not taken fast enough.

    Yields:
        Blocks of float32 samples, mono.

    Raises:
        ModuleNotFoundError: sounddevice is not installed.
        InputError: there is no PortAudio, or no such device, or it cannot record at this rate.
    """
    try:
        import sounddevice
    except OSError as error:  # no PortAudio
        raise InputError(f"the microphone cannot be used: {error}") from error
    chosen = int(device) if device is not None and device.isascii() and device.isdigit() else device
    size = max(1, round(seconds * sample_rate))
    try:
        with sounddevice.InputStream(samplerate=sample_rate, channels=1, dtype="float32", device=chosen) as stream:
            while True:
                samples, overflowed = stream.read(size)
                if overflowed:
                    lost()
                yield samples[:, 0]
    except (sounddevice.PortAudioError, ValueError) as error:  # ValueError: no such device
        raise InputError(f"the microphone cannot be used: {' '.join(str(error).split())}") from error
