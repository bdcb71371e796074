"""Options of the augmentation in training: of recordings, and of log-mel features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from prnn._fields import Within, check_fields

_Count = Annotated[int, Within(0, 10_000)]
_Share = Annotated[float, Within(0, 1)]
_Decibels = Annotated[float, Within(-100, 100)]
_SPEED = Within(0.5, 2)


@dataclass(frozen=True)
class Augmentation:
    """Random speed, noise, reverberation and level of recordings; warped time, and masked bands of frequency and time
    (Park et al. 2019, "SpecAugment"). A width or a number of zero turns these off.

    Args:
        gain_db: the level changes by up to this many decibels either way.
        frequency_masks: masked bands of mel bins.
        frequency_width: most bins in one band.
        time_masks: masked runs of frames.
        time_width: most frames in one run.
        time_share: most frames in one run, as a share of the utterance's.
        start_epoch: from which epoch, of 1, 2, ..., bands are masked and time is warped.
        time_warp: most frames by which a place of the utterance moves, with linear interpolation before and after it;
            80 is usual. Utterances of at most twice as many frames stay.
        speeds: speeds of which one is drawn for each utterance, pitch and formants with it; [0.9, 1.0, 1.1] is usual.
        noise: folder of recordings of noise, which is added to utterances.
        noise_share: share of the utterances with noise.
        snr_low: least signal-to-noise ratio, in decibels.
        snr_high: largest signal-to-noise ratio, in decibels.
        reverberation: folder of recordings of impulse responses of rooms, with which utterances are convolved.
        reverberation_share: share of the utterances with reverberation.
    """

    gain_db: Annotated[float, Within(0, 100)] = 6.0
    frequency_masks: _Count = 2
    frequency_width: _Count = 20
    time_masks: _Count = 6
    time_width: _Count = 40
    time_share: _Share = 0.08
    start_epoch: Annotated[int, Within(1, 10**6)] = 4
    time_warp: _Count = 0
    speeds: tuple[float, ...] = (1.0,)
    noise: Path | None = None
    noise_share: _Share = 0.5
    snr_low: _Decibels = 10.0
    snr_high: _Decibels = 20.0
    reverberation: Path | None = None
    reverberation_share: _Share = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.speeds, list):  # JSON has no tuples
            object.__setattr__(self, "speeds", tuple(self.speeds))
        check_fields(self)
        if not self.speeds or not all(_SPEED.accepts(speed) for speed in self.speeds):
            raise ValueError(f"speeds is {self.speeds}; it must hold numbers of {_SPEED}")
        if self.snr_low > self.snr_high:
            raise ValueError(f"snr_low is {self.snr_low:g}; it must be at most snr_high, {self.snr_high:g}")

    @property
    def of_recordings(self) -> bool:
        """Whether recordings themselves change, not only features."""
        return self.speeds != (1.0,) or self.noise is not None or self.reverberation is not None

    def in_epoch(self, number: int) -> Augmentation:
        """The augmentation of an epoch, counted from 0."""
        if number + 1 >= self.start_epoch:
            return self
        return replace(self, frequency_masks=0, time_masks=0, time_warp=0)
