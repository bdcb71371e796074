"""Augmentation of log-mel features in training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from torch import Tensor

from prnn._fields import Within, check_fields

_Count = Annotated[int, Within(0, 10_000)]


@dataclass(frozen=True)
class Augmentation:
    """Random gain, and masked bands of frequency and time (Park et al. 2019, "SpecAugment"). Zero turns each off.

    Args:
        gain_db: the level changes by up to this many decibels either way.
        frequency_masks: masked bands of mel bins.
        frequency_width: most bins in one band.
        time_masks: masked runs of frames.
        time_width: most frames in one run.
    """

    gain_db: Annotated[float, Within(0, 100)] = 6.0
    frequency_masks: _Count = 2
    frequency_width: _Count = 8
    time_masks: _Count = 2
    time_width: _Count = 6

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, features: Tensor, mean: Tensor, rng: np.random.Generator) -> Tensor:
        """Returns an augmented copy.

        Args:
            features: (frames, bins), natural logarithms of power.
            mean: (bins,), what masked features become.
            rng: source of everything random.
        """
        frames, bins = features.shape
        gain = self.gain_db * math.log(10) / 10 * rng.uniform(-1, 1)
        features = features + gain
        for _ in range(self.frequency_masks):
            start, end = _span(bins, self.frequency_width, rng)
            features[:, start:end] = mean[start:end]
        for _ in range(self.time_masks):
            start, end = _span(frames, self.time_width, rng)
            features[start:end] = mean
        return features


def _span(size: int, width: int, rng: np.random.Generator) -> tuple[int, int]:
    """A random span of at most ``width`` within ``size``."""
    length = int(rng.integers(min(width, size) + 1))
    start = int(rng.integers(size - length + 1))
    return start, start + length
