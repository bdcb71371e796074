"""When words are said. A streaming transducer emits the first symbol of a word some tenths of a second after the word
has begun, and its last symbol at about its end. Each validation of a training measures both delays, at the first and
the last word of its utterances, where the power of the recording tells when speech begins and ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from prnn._fields import shown
from prnn.transducer import Hypothesis

_LOUD = 0.25  # of the way from the quietest to the loudest frames' log power, from which on a frame is speech
_EARLIEST, _LATEST = -100, 300  # frames of features, to which a delay is clipped
_LONGEST_DELAY = 10.0  # seconds, of a checkpoint's


class WordDelays(NamedTuple):
    """Seconds from a word's beginning to that of the encoder frame which emits its first symbol, and from its end to
    that of the frame which emits its last one; below 0 if that is earlier."""

    begin: float = 0.0
    end: float = 0.0


NO_DELAYS = WordDelays()


def speech_bounds(features: np.ndarray) -> tuple[int, int] | None:
    """The first frame of log mel energies (T, bins) with speech, and the one behind the last; None of silence."""
    power = np.logaddexp.reduce(features, axis=1)
    quiet, loud = np.percentile(power, (5, 95))
    speech = np.flatnonzero(power > quiet + _LOUD * (loud - quiet))
    return (int(speech[0]), int(speech[-1]) + 1) if len(speech) else None


class DelayMeter:
    """Counts the delays of utterances' first and last symbols.

    Args:
        stride: frames of features from encoder frame to encoder frame.
    """

    def __init__(self, stride: int) -> None:
        self._stride = stride
        self._counts = np.zeros((2, _LATEST - _EARLIEST + 1))

    def add(self, features: Tensor, lengths: Tensor, hypotheses: Sequence[Hypothesis]) -> None:
        """Features (N, T, bins), the frames of each, and what was recognised in it."""
        rows = features.float().cpu().numpy()
        for row, length, hypothesis in zip(rows, lengths.tolist(), hypotheses, strict=True):
            bounds = speech_bounds(row[:length]) if hypothesis.tokens and length else None
            if bounds is None:
                continue
            first, last = hypothesis.timestamps[0], hypothesis.timestamps[-1] + 1
            for counts, frame, bound in zip(self._counts, (first, last), bounds, strict=True):
                counts[min(max(frame * self._stride - bound, _EARLIEST), _LATEST) - _EARLIEST] += 1

    def taken(self, device: torch.device) -> Tensor:
        """The counts, to be summed over processes; counting begins anew."""
        counts, self._counts = self._counts, np.zeros_like(self._counts)
        return torch.from_numpy(counts).flatten().to(device)

    @staticmethod
    def delays(counts: Tensor, shift_seconds: float) -> WordDelays:
        """The medians of what was counted, by sums of `taken`; zeros if nothing was."""
        found = []
        for part in counts.cpu().view(2, -1).numpy():
            middle = int(np.searchsorted(part.cumsum(), part.sum() / 2)) if part.any() else -_EARLIEST
            found.append(round((middle + _EARLIEST) * shift_seconds, 6))
        return WordDelays(*found)


def delays_of(description: dict[str, Any]) -> WordDelays:
    """The delays in a checkpoint's description; zeros of one that was saved without. ValueError unless they are two
    numbers."""
    values = description.get("word_delays", [0.0, 0.0])
    if not isinstance(values, list) or len(values) != 2 or not all(type(value) in (int, float) for value in values):
        raise ValueError(f"word_delays is {shown(values)}; it must be a list of two numbers")
    if not all(math.isfinite(value) and abs(value) <= _LONGEST_DELAY for value in values):
        raise ValueError(f"word_delays is {shown(values)}; they must be from -{_LONGEST_DELAY:g} to {_LONGEST_DELAY:g}")
    return WordDelays(*map(float, values))
