"""Error rates of a recogniser over a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from prnn.transducer import SymbolBias
from prnn.transducer.streaming import MAX_SYMBOLS

from .dataset import LoadUtterance
from .errors import InputError
from .manifest import Utterance
from .metrics import ErrorRates, error_rates
from .recogniser import Recogniser
from .recognition import Load, recognise
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
    bias: SymbolBias | None = None,
    load: Load | None = None,
) -> Evaluation:
    """Recognises every utterance, and compares with its text.

    Args:
        recogniser: which recognises.
        utterances: as :func:`prnn.asr.read_manifest` returns them.
        beam: hypotheses kept; 1 is greedy search.
        batch_size: most utterances that are recognised at once; of long ones fewer, to bound memory.
        max_symbols: most symbols in one encoder frame.
        bias: phrases that a beam search prefers.
        load: loads an utterance by its number; None reads its recording.

    Raises:
        InputError: a recording cannot be used.
    """
    load = load or LoadUtterance(utterances)
    found: dict[int, Transcript] = {}
    durations = [utterance.duration for utterance in utterances]
    results = recognise(recogniser, load, durations, beam, max_symbols, bias, batch_size)
    with closing(results):
        for number, result in results:
            if isinstance(result, InputError):
                raise result
            found[number] = result
    transcripts = [found[number] for number in range(len(utterances))]
    texts = [transcript.text for transcript in transcripts]
    return Evaluation(error_rates([utterance.text for utterance in utterances], texts), transcripts)
