"""An n-gram language model for a search, from a file."""

from __future__ import annotations

from pathlib import Path

from prnn._fields import shown
from prnn.transducer import NgramBias

from .errors import InputError
from .tokenizer import Tokenizer


def read_language_model(path: str | Path, tokenizer: Tokenizer, weight: float = 0.3, bonus: float = 0.0) -> NgramBias:
    """Reads an ARPA file whose words are the tokenizer's symbols, ▁ for a space.

    Args:
        path: the file.
        tokenizer: of the model.
        weight: of the log-probabilities, positive.
        bonus: in nats, for each symbol.

    Raises:
        InputError: the file is missing, no ARPA file, or one of other symbols; the message names the line.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    try:
        found = NgramBias(path, tokenizer.symbols, len(tokenizer), tokenizer.blank, weight, bonus)
    except ValueError as error:
        raise InputError(str(error)) from error
    symbols = len(tokenizer) - 1
    if 2 * found.covered < symbols:
        raise InputError(
            f"{path} has 1-grams of {found.covered} of the {shown(tokenizer, str)}; "
            "it must be a model over the tokenizer's symbols, not over words"
        )
    return found
