"""Warnings about a training's manifests: for what is allowed and seldom intended."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from .options import TrainingOptions
from .tokenizer import CharTokenizer, Tokenizer


def spelling_note(path: Path, tokenizer: Tokenizer) -> str:
    """A sentence if a tokenizer of characters has capitals beside small letters, or punctuation, from the training
    texts; else empty."""
    if not isinstance(tokenizer, CharTokenizer):
        return ""
    letters = "".join(tokenizer.characters)
    both = letters != letters.upper() and letters != letters.lower()
    marks = [letter for letter in letters if unicodedata.category(letter)[0] == "P" and letter not in "'’-"]
    found = [*(["capitals beside small letters"] if both else []), *([" ".join(marks)] if marks else [])]
    if not found:
        return ""
    return (
        f"{path}: the texts have {' and '.join(found)}: the model learns to write them, and error rates count them; "
        "write the texts without, if that is not meant"
    )


def same_data_note(options: TrainingOptions) -> str:
    """Warns if a training is validated on its own recordings; else empty."""
    if options.manifest.resolve() != options.valid.resolve():
        return ""
    return (
        f"{options.valid}: validation and training have the same manifest: error rates will not say how well other "
        "recordings are recognised"
    )
