"""Error rates of a recogniser over a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prnn.transducer.streaming import MAX_SYMBOLS

from .dataset import load_features
from .manifest import Utterance
from .metrics import ErrorRates, error_rates
from .recogniser import Recogniser, transcribe_batch


class Evaluation(NamedTuple):
    """Error rates, and the recognised texts in the manifest's order."""

    rates: ErrorRates
    texts: list[str]


def evaluate(
    recogniser: Recogniser,
    utterances: Sequence[Utterance],
    beam: int = 1,
    batch_size: int = 32,
    max_symbols: int = MAX_SYMBOLS,
) -> Evaluation:
    """Recognises every utterance, in batches of similar duration, and compares with its text."""
    order = sorted(range(len(utterances)), key=lambda index: utterances[index].duration)
    texts = [""] * len(utterances)
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        features = [load_features(utterances[index], recogniser.features) for index in indices]
        for index, text in zip(indices, transcribe_batch(recogniser, features, beam, max_symbols), strict=True):
            texts[index] = text
    return Evaluation(error_rates([utterance.text for utterance in utterances], texts), texts)
