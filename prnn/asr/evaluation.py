"""Error rates of a recogniser over a manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from prnn.transducer import PhraseBias
from prnn.transducer.streaming import MAX_SYMBOLS

from .dataset import load_features
from .features import FeatureConfig
from .manifest import Utterance
from .metrics import ErrorRates, error_rates
from .recogniser import Recogniser
from .transcript import Transcript

_MOST_SECONDS = 600.0  # of a batch, padding included


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
    features: Callable[[int, FeatureConfig], Tensor] | None = None,
) -> Evaluation:
    """Recognises every utterance, and compares with its text.

    Args:
        recogniser: which recognises.
        utterances: as :func:`prnn.asr.read_manifest` returns them.
        beam: hypotheses kept; 1 is greedy search.
        batch_size: most utterances that are recognised at once; of long ones fewer, to bound memory.
        max_symbols: most symbols in one encoder frame.
        bias: phrases that a beam search prefers.
        features: loads the features (T, bins) of an utterance, by its number; None reads its recording.
    """
    load = features or (lambda number, config: load_features(utterances[number], config))
    found: dict[int, Transcript] = {}
    for batch in _batches([utterance.duration for utterance in utterances], batch_size):
        loaded = [load(number, recogniser.features) for number in batch]
        found.update(zip(batch, recogniser.transcribe_batch(loaded, beam, max_symbols, bias), strict=True))
    transcripts = [found[number] for number in range(len(utterances))]
    texts = [transcript.text for transcript in transcripts]
    return Evaluation(error_rates([utterance.text for utterance in utterances], texts), transcripts)


def _batches(durations: Sequence[float], most: int) -> Iterator[list[int]]:
    """Numbers of utterances of similar duration, which together are not too long."""
    batch: list[int] = []
    for number in sorted(range(len(durations)), key=durations.__getitem__):
        if batch and (len(batch) == most or (len(batch) + 1) * durations[number] > _MOST_SECONDS):
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
