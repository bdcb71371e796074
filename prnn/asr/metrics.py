"""Word and character error rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jiwer


class ErrorRates(NamedTuple):
    """Substitutions, deletions and insertions over the reference's words (wer) and characters (cer), as fractions.
    Spaces before and after a text do not count."""

    wer: float
    cer: float


class ErrorCounts(NamedTuple):
    """What error rates are made of: the counts of several parts of a corpus can be added."""

    word_errors: int
    words: int
    character_errors: int
    characters: int

    @property
    def rates(self) -> ErrorRates:
        """The error rates."""
        return ErrorRates(self.word_errors / self.words, self.character_errors / self.characters)


def has_words(texts: Sequence[str]) -> bool:
    """Whether most of the texts have a space. Those of languages that do not write words apart (Chinese, Japanese,
    Thai) have none, or few between phrases: what stands between spaces there is no word, and WER says little."""
    return 2 * sum(" " in text for text in texts) >= len(texts)


def count_errors(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorCounts:
    """Counts the errors of ``hypotheses``, and the words and characters of ``references``, of which none may be empty;
    zeros without any."""
    if not references:
        return ErrorCounts(0, 0, 0, 0)
    counts = []
    for found in (
        jiwer.process_words(list(references), list(hypotheses)),
        jiwer.process_characters(list(references), list(hypotheses)),
    ):
        counts.append(found.substitutions + found.deletions + found.insertions)
        counts.append(found.hits + found.substitutions + found.deletions)
    return ErrorCounts(*counts)


def error_rates(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorRates:
    """Returns the error rates of ``hypotheses`` over the whole of ``references``, of which none may be empty."""
    return count_errors(references, hypotheses).rates
