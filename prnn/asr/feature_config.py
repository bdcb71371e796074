"""The description of features that a checkpoint carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from prnn._fields import Within, check_fields

_NARROWEST = 100.0  # hertz, of the mel bins' upper edge


@dataclass(frozen=True)
class FeatureConfig:
    """Parameters of log-mel filterbank features.

    Args:
        sample_rate: hertz; recordings of another rate are resampled to it.
        num_mel_bins: features a frame.
        frame_shift_ms: milliseconds from frame to frame.
        frame_length_ms: milliseconds of a frame's window.
        high_freq: upper edge of the mel bins in hertz, as Kaldi has it: 0 or less counts from half the sample rate.
            With -400 features are those that Lhotse and sherpa-onnx compute unless told otherwise.

    Raises:
        ValueError, TypeError: naming the field, its value and what is accepted.
    """

    sample_rate: Annotated[int, Within(1000, 192_000)] = 16000
    num_mel_bins: Annotated[int, Within(1, 512)] = 80
    frame_shift_ms: Annotated[float, Within(1, 200)] = 10.0
    frame_length_ms: Annotated[float, Within(5, 200)] = 25.0
    high_freq: float = -400.0

    def __post_init__(self) -> None:
        check_fields(self)
        nyquist = self.sample_rate / 2
        least = _NARROWEST - nyquist
        if not (least <= self.high_freq <= 0 or _NARROWEST <= self.high_freq <= nyquist):
            raise ValueError(
                f"high_freq is {self.high_freq:g}; with a sample_rate of {self.sample_rate} it must be "
                f"{_NARROWEST:g} to {nyquist:g}, or {least:g} to 0"
            )
