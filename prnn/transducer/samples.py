"""The samples of a pool's streams: those of a chunk to features, and those that wait for the rest of their frame."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from prnn.transducer.step_result import Array


class FrameFeatures(Protocol):
    """The interface that a pool wants of features, as `prnn.asr.fbank.Fbank` has them: frames of `frame_length`
    samples, each `frame_shift` after the one before, the first of them beginning `before` samples before the first
    sample, with the recording mirrored beyond its ends."""

    frame_length: int
    frame_shift: int
    before: int

    def __call__(self, audio: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Whole recordings: (N, S) and (N,) to (N, T, F) and (N,)."""
        ...

    def of_frames(self, frames: Tensor) -> Tensor:
        """Frames (N, T, frame_length) to features (N, T, F)."""
        ...


class Phase(NamedTuple):
    """Where a stream stands.

    Attributes:
        kept: how many of its last samples are still needed.
        is_new: whether it has had no frame yet, so that the mirrored ones before its first are still to come.
    """

    kept: int
    is_new: bool


class SampleSlots:
    """Samples that wait, in the slots of a pool.

    Args:
        features: what they are made to.
        slots: of the pool.
        device: of the pool.
    """

    def __init__(self, features: FrameFeatures, slots: int, device: torch.device) -> None:
        if 2 * features.frame_shift > features.frame_length:
            shift, length = features.frame_shift, features.frame_length
            raise ValueError(f"fbank has a shift of {shift} samples; it must be at most half of a frame, {length}")
        self.features = features
        self._rows = torch.zeros(slots + 1, features.frame_length, device=device)  # the last one is a spare row
        self._kept = np.zeros(slots, np.int64)
        self._is_new = np.ones(slots, bool)

    def open(self, slot: int) -> None:
        """Begins a stream."""
        self._kept[slot], self._is_new[slot] = 0, True

    def groups(self, places: Array, lengths: Array, waiting: Array) -> list[tuple[Array, int, Phase]]:
        """Streams that are alike: their rows, how many samples each has been given, and their phase.

        Args:
            places: (N,), their slots.
            lengths: (N,), the samples of each.
            waiting: (N,), frames that wait in an encoder, in which they are to be alike, too.
        """
        kept, is_new = self._kept[places], self._is_new[places]
        key = ((lengths * (self.features.frame_length + 1) + kept) * 2 + is_new) * (int(waiting.max()) + 1) + waiting
        if (key == key[0]).all():
            parts = [np.arange(len(places))]
        else:
            _, which = np.unique(key, return_inverse=True)
            order = which.argsort(kind="stable")
            parts = np.split(order, np.flatnonzero(np.diff(which[order])) + 1)
        return [(part, int(lengths[part[0]]), Phase(int(kept[part[0]]), bool(is_new[part[0]]))) for part in parts]

    def advance(self, places: Array, given: int, phase: Phase) -> int:
        """Notes that streams of a phase have had so many samples, and returns how many frames these give."""
        frames, kept = self._counts(given, phase)
        self._kept[places], self._is_new[places] = kept, phase.is_new and not frames
        return frames

    def _counts(self, given: int, phase: Phase) -> tuple[int, int]:
        """How many frames are complete, and how many samples are kept after them."""
        features = self.features
        samples = phase.kept + given
        mirrored = samples + (features.before if phase.is_new else 0)
        frames = (mirrored - features.frame_length) // features.frame_shift + 1
        return (frames, mirrored - frames * features.frame_shift) if frames > 0 else (0, samples)

    def taken(self, rows: Tensor | None, audio: Tensor, phase: Phase) -> Tensor:
        """The features (N, T, F) of the frames that samples (N, S) of streams of one phase complete. What is still
        needed is kept.

        rows: (N,) int64; None: all slots in their order.
        """
        features = self.features
        held = self._rows[:-1] if rows is None else self._rows.index_select(0, rows)
        x = torch.cat([held[:, : phase.kept], audio.to(held.dtype)], dim=1)
        frames, kept = self._counts(audio.shape[1], phase)
        if frames and phase.is_new:
            x = torch.cat([x[:, : features.before].flip(1), x], dim=1)
        found = self._of(x, frames)
        after = torch.zeros_like(held)
        after[:, :kept] = x[:, x.shape[1] - kept :]
        if rows is None:
            self._rows[:-1].copy_(after)
        else:
            self._rows.index_copy_(0, rows, after)
        return found

    def rest(self, rows: Tensor, phase: Phase) -> Tensor:
        """The features (N, T, F) of the last frames of streams of one phase, once no more samples will come."""
        features = self.features
        held = self._rows.index_select(0, rows)[:, : phase.kept]
        if phase.is_new:
            if phase.kept + features.frame_shift // 2 < features.frame_shift:
                return self._of(held, 0)
            return features(held, torch.full((len(held),), phase.kept, dtype=torch.int64, device="cpu"))[0]
        frames = (phase.kept + features.frame_shift // 2 - features.before) // features.frame_shift
        missing = (frames - 1) * features.frame_shift + features.frame_length - phase.kept
        x = torch.cat([held, held[:, phase.kept - missing :].flip(1)], dim=1) if missing > 0 else held
        return self._of(x, frames)

    def _of(self, x: Tensor, frames: int) -> Tensor:
        features = self.features
        if not frames:
            nothing = x.new_zeros(1, 1, features.frame_length)
            return features.of_frames(nothing)[:, :0].expand(len(x), 0, -1)
        x = x[:, : (frames - 1) * features.frame_shift + features.frame_length]
        return features.of_frames(x.unfold(1, features.frame_length, features.frame_shift))
