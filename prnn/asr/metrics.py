"""Word and character error rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jiwer


class ErrorRates(NamedTuple):
    """Substitutions, deletions and insertions over the reference's words (wer) and characters (cer), as fractions.
    Spaces before and after a text do not count."""

    wer: float
    cer: float


class ErrorCounts(NamedTuple):
    """The counts behind error rates; those of several parts of a corpus can be added."""

    word_errors: int
    words: int
    character_errors: int
    characters: int

    @property
    def rates(self) -> ErrorRates:
        """The error rates; infinite where there are errors and the references are all empty."""
        return ErrorRates(_rate(self.word_errors, self.words), _rate(self.character_errors, self.characters))


def _rate(errors: int, size: int) -> float:
    return errors / size if size else math.inf if errors else 0.0


def has_words(texts: Sequence[str]) -> bool:
    """Whether most texts that are not empty have a space. Those of languages that do not write words apart (Chinese,
    Japanese, Thai) have none, or few between phrases: what stands between spaces there is no word, and WER says
    little."""
    return 2 * sum(" " in text for text in texts) >= sum(map(bool, texts))


def count_errors(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorCounts:
    """Counts the errors of ``hypotheses``, and the words and characters of ``references``. What is found where a
    reference is empty counts as insertions."""
    pairs = [pair for pair in zip(references, hypotheses, strict=True) if pair[0].strip()]
    inserted = [text.strip() for reference, text in zip(references, hypotheses, strict=True) if not reference.strip()]
    counts = [sum(len(text.split()) for text in inserted), 0, sum(map(len, inserted)), 0]
    if pairs:
        said, heard = (list(texts) for texts in zip(*pairs, strict=True))
        for place, found in ((0, jiwer.process_words(said, heard)), (2, jiwer.process_characters(said, heard))):
            counts[place] += found.substitutions + found.deletions + found.insertions
            counts[place + 1] += found.hits + found.substitutions + found.deletions
    return ErrorCounts(*counts)


def error_rates(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorRates:
    """Returns the error rates of ``hypotheses`` over the whole of ``references``."""
    return count_errors(references, hypotheses).rates
