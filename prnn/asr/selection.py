"""Selects the utterances of a manifest that a training takes, and reports the rest."""

from __future__ import annotations

import hashlib

from .errors import InputError
from .options import TrainingOptions


class Selection:
    """Takes utterances by their duration, and counts.

    Args:
        options: of the training.
    """

    def __init__(self, options: TrainingOptions) -> None:
        self._path = options.manifest
        self._least = options.min_duration
        self._most = options.max_duration
        self._batch_seconds = options.batch_seconds
        self._short, self._long = [0, 0.0], [0, 0.0]  # utterances left out, and their seconds
        self._taken = self._empty = self._alone = 0
        self._longest = 0.0
        self._digest = hashlib.blake2b(digest_size=16)

    def fits(self, duration: float) -> bool:
        """Whether an utterance of so many seconds is taken."""
        return self._least <= duration and (self._most is None or duration <= self._most)

    def takes(self, duration: float, text: str) -> bool:
        """Whether an utterance fits; this call counts it."""
        if not self.fits(duration):
            left_out = self._short if duration < self._least else self._long
            left_out[0] += 1
            left_out[1] += duration
            return False
        self._taken += 1
        self._empty += not text
        self._alone += duration > self._batch_seconds
        self._longest = max(self._longest, duration)
        self._digest.update(f"{duration!r} {text}\n".encode(errors="surrogatepass"))
        return True

    def trained_on(self) -> dict[str, object]:
        """The count of the utterances taken and a digest of their durations and texts, for a checkpoint."""
        return {"utterances": self._taken, "digest": self._digest.hexdigest()}

    def require_some(self) -> None:
        """Raises InputError if all that were counted are left out."""
        left_out = self._left_out()
        if left_out and not self._taken:
            raise InputError(f"{self._path}: all utterances are left out: {left_out}")

    def _left_out(self) -> str:
        parts = [
            (self._short, f"shorter than min_duration, {self._least:g} s"),
            (self._long, f"longer than max_duration, {self._most or 0:g} s"),
        ]
        return ", ".join(f"{count} of {seconds:.1f} s in all {why}" for (count, seconds), why in parts if count)

    def notes(self) -> list[str]:
        """Sentences on what was counted: what is left out, what is longer than a batch, which texts are empty."""
        notes = []
        if left_out := self._left_out():
            notes.append(f"left out: {left_out}")
        if self._alone:
            notes.append(
                f"{self._alone} of {self._taken} utterances are longer than batch_seconds, {self._batch_seconds:g} s; "
                f"each is a batch of its own, the longest of {self._longest:.1f} s; --max-duration leaves such ones out"
            )
        if self._empty:
            notes.append(f"{self._empty} of {self._taken} texts are empty: nothing is said in these recordings")
        return [f"{self._path}: {note}" for note in notes]
