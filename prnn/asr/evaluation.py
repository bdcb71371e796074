"""Error rates of a recogniser over a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prnn.transducer import PhraseBias
from prnn.transducer.streaming import MAX_SYMBOLS

from .dataset import load_features
from .manifest import Utterance
from .metrics import ErrorRates, error_rates
from .recogniser import Recogniser
from .transcript import Transcript


class Evaluation(NamedTuple):
    """Error rates, and what was recognised, in the manifest's order, with times from the utterances' beginnings."""

    rates: ErrorRates
    transcripts: list[Transcript]

    @property
    def texts(self) -> list[str]:
        """The recognised texts."""
        return [transcript.text for transcript in self.transcripts]


def evaluate(
    recogniser: Recogniser,
    utterances: Sequence[Utterance],
    beam: int = 1,
    batch_size: int = 32,
    max_symbols: int = MAX_SYMBOLS,
    bias: PhraseBias | None = None,
) -> Evaluation:
    """Recognises every utterance, in batches of similar duration, and compares with its text."""
    order = sorted(range(len(utterances)), key=lambda index: utterances[index].duration)
    found: dict[int, Transcript] = {}
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        features = [load_features(utterances[index], recogniser.features) for index in indices]
        found.update(zip(indices, recogniser.transcribe_batch(features, beam, max_symbols, bias), strict=True))
    transcripts = [found[index] for index in range(len(utterances))]
    texts = [transcript.text for transcript in transcripts]
    return Evaluation(error_rates([utterance.text for utterance in utterances], texts), transcripts)
