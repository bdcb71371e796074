"""Masks, level and warp of the log-mel features of an utterance in training."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .augment import Augmentation


class Masks(NamedTuple):
    """The augmentation drawn for the features of one utterance, or of N.

    Args:
        gain: (), or (N, 1, 1), added to the features.
        bins: (bins,), or (N, 1, bins); True where masked.
        frames: (T, 1), or (N, T, 1); True where masked.
        times: (T,), or (N, T), float64: where, in the frames as they were, each frame comes from; None leaves them.
    """

    gain: Tensor
    bins: Tensor
    frames: Tensor
    times: Tensor | None = None

    def to(self, device: torch.device) -> Masks:
        """A copy on a device, for which nothing waits."""
        return self._replace(
            **{name: value.to(device, non_blocking=True) for name, value in self._asdict().items() if value is not None}
        )

    def __call__(self, features: Tensor, mean: Tensor) -> Tensor:
        """An augmented copy of features (T, bins), or (N, T, bins); masked ones become `mean`, (bins,)."""
        if self.times is not None:
            before = self.times.long()
            after = (before + 1).clamp(max=features.shape[-2] - 1)
            share = (self.times - before).to(features.dtype)[..., None]
            first, second = (features.take_along_dim(index[..., None], dim=-2) for index in (before, after))
            features = torch.lerp(first, second, share)
        return torch.where(self.bins | self.frames, mean, features + self.gain)


def draw_masks(augmentation: Augmentation, frames: int, bins: int, rng: np.random.Generator) -> Masks:
    """Draws what is done to features of shape (frames, bins)."""
    gain = augmentation.gain_db * math.log(10) / 10 * rng.uniform(-1, 1)
    masks = Masks(torch.tensor(gain), torch.zeros(bins, dtype=torch.bool), torch.zeros(frames, 1, dtype=torch.bool))
    for _ in range(augmentation.frequency_masks):
        masks.bins[_span(bins, augmentation.frequency_width, rng)] = True
    for _ in range(augmentation.time_masks):
        masks.frames[_span(frames, min(augmentation.time_width, int(augmentation.time_share * frames)), rng)] = True
    return masks._replace(times=_warped(frames, augmentation.time_warp, rng)) if augmentation.time_warp else masks


def _warped(frames: int, most: int, rng: np.random.Generator) -> Tensor:
    """Draws the source of each frame for a time warp: one frame moves by up to `most`, the others with it."""
    if frames <= 2 * most + 1:
        return torch.arange(frames, dtype=torch.float64)
    old = int(rng.integers(most + 1, frames - most))
    new = old + int(rng.integers(-most, most + 1))
    parts = []
    for size, resized, start in ((old, new, 0), (frames - old, frames - new, old)):
        centres = (torch.arange(resized, dtype=torch.float64) + 0.5) * (size / resized) - 0.5
        parts.append(start + centres.clamp(0, size - 1))
    return torch.cat(parts)


def _span(size: int, width: int, rng: np.random.Generator) -> slice:
    """A random span of at most ``width`` within ``size``."""
    length = int(rng.integers(min(width, size) + 1))
    start = int(rng.integers(size - length + 1))
    return slice(start, start + length)
