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


def error_rates(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorRates:
    """Returns the error rates of ``hypotheses`` over the whole of ``references``, of which none may be empty."""
    return ErrorRates(
        float(jiwer.wer(list(references), list(hypotheses))), float(jiwer.cer(list(references), list(hypotheses)))
    )
