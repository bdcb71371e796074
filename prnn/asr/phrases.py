"""Phrases for a search, from a file."""

from __future__ import annotations

import re
from pathlib import Path

from prnn._fields import Within, shown
from prnn.transducer import PhraseBias

from .errors import InputError
from .tokenizer import Tokenizer

SCORES = Within(0, 1000, above=True)
_SCORED = re.compile(r"(.*\S)\s+:(\S+)")  # as sherpa-onnx's hotwords have it


def read_phrases(path: str | Path, tokenizer: Tokenizer, score: float) -> PhraseBias:
    """Reads a file of phrases, one a line, each with a score of its own where the line ends with ``:SCORE``.

    Args:
        path: the file, in UTF-8; blank lines are passed over.
        tokenizer: which spells the phrases.
        score: of a phrase whose line has none, in nats.

    Raises:
        InputError: the file is missing or has no phrase, or a line cannot be used; the message names the line.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text in UTF-8") from error
    phrases, scores = [], []
    for number, line in enumerate(lines, start=1):
        text, value = " ".join(line.split()), score
        if not text:
            continue
        try:
            if found := _SCORED.fullmatch(text):
                text, value = found[1], _score(found[2])
            phrases.append(tokenizer.encode(text))
        except ValueError as error:
            raise InputError(f"{path}, line {number}: {error}") from error
        scores.append(value)
    if not phrases:
        raise InputError(f"{path}: the file has no phrase")
    try:
        return PhraseBias(phrases, scores, len(tokenizer), tokenizer.blank)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def _score(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not SCORES.accepts(value):
        raise ValueError(f"the score is {shown(text, str)}; it must be a number of {SCORES}")
    return value
