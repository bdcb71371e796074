"""Recognition results: text, words with times and confidences, and alternative hypotheses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from prnn.transducer import Hypothesis

from .tokenizer import Tokenizer
from .word_times import NO_DELAYS, WordDelays


class Word(NamedTuple):
    """A word of a transcript.

    Attributes:
        text: without spaces.
        start: where the encoder frame begins that emitted its first symbol, less the model's delay, in seconds.
        end: where the encoder frame ends that emitted its last symbol, less the model's delay, in seconds.
        confidence: the smallest of its symbols' probabilities, each given the frame, the symbols before it, and that
            it is not the blank: how sure the model is of what it hears, and not of when.
    """

    text: str
    start: float
    end: float
    confidence: float


class Alternative(NamedTuple):
    """A text and its score, the natural log-probability that the search gave it, phrases included."""

    text: str
    score: float


@dataclass(frozen=True)
class Transcript:
    """An utterance.

    Attributes:
        text: the words, as the recogniser spelled them.
        words: with times from the recording's beginning.
        alternatives: the texts of the best hypotheses and their scores, best first, each text once.
        pause: seconds without a word after the last one, at most those that end an utterance; less than 0 where the
            next word begins in the encoder frame in which this one ends.
    """

    text: str
    words: tuple[Word, ...]
    alternatives: tuple[Alternative, ...]
    pause: float = 0.0

    @property
    def confidence(self) -> float | None:
        """The mean of the words'; None where there is no word."""
        return sum(word.confidence for word in self.words) / len(self.words) if self.words else None

    def as_dict(self) -> dict[str, Any]:
        """The transcript in plain types, for JSON. Times have milliseconds, probabilities four digits."""
        return {
            "start": round(self.words[0].start, 3) if self.words else None,
            "end": round(self.words[-1].end, 3) if self.words else None,
            "confidence": rounded(self.confidence, 4),
            "words": [
                {
                    "word": word.text,
                    "start": round(word.start, 3),
                    "end": round(word.end, 3),
                    "confidence": rounded(word.confidence, 4),
                }
                for word in self.words
            ],
        }

    def best(self, nbest: int) -> Transcript:
        """This transcript with at most `nbest` alternatives."""
        return replace(self, alternatives=self.alternatives[:nbest])

    def moved(self, seconds: float) -> Transcript:
        """This transcript with its times so many seconds later."""
        words = tuple(word._replace(start=word.start + seconds, end=word.end + seconds) for word in self.words)
        return replace(self, words=words)


def rounded(value: float | None, digits: int) -> float | None:
    """A number for JSON, which has none that are not finite."""
    return round(value, digits) if value is not None and math.isfinite(value) else None


def _without_delays(words: Sequence[Word], delays: WordDelays) -> tuple[Word, ...]:
    """Words at the times when they were said. Those that would overlap meet in the middle."""
    times = [[max(0.0, word.start - delays.begin), max(0.0, word.end - delays.end)] for word in words]
    for before, after in itertools.pairwise(times):
        if before[1] > after[0]:
            before[1] = after[0] = max(before[0], (before[1] + after[0]) / 2)
    return tuple(word._replace(start=a, end=max(a, b)) for word, (a, b) in zip(words, times, strict=True))


def words_of(
    hypothesis: Hypothesis, tokenizer: Tokenizer, frame_seconds: float, delays: WordDelays = NO_DELAYS
) -> tuple[Word, ...]:
    """The words of a hypothesis.

    Args:
        hypothesis: of a search with the tokenizer's labels.
        tokenizer: which splits its text into words at spaces.
        frame_seconds: from encoder frame to encoder frame.
        delays: of the model.
    """
    words: list[Word] = []
    inside = False
    columns = (tokenizer.surfaces(hypothesis.tokens), hypothesis.timestamps, hypothesis.log_probs)
    for surface, frame, log_prob in zip(*columns, strict=True):
        start, end, confidence = frame * frame_seconds, (frame + 1) * frame_seconds, math.exp(log_prob)
        for place, part in enumerate(surface.split(" ")):
            inside = inside and place == 0  # a space ends a word
            if part and inside:
                last = words[-1]
                words[-1] = Word(last.text + part, last.start, end, min(last.confidence, confidence))
            elif part:
                words.append(Word(part, start, end, confidence))
            inside = inside or bool(part)
    return tuple(words) if delays == NO_DELAYS else _without_delays(words, delays)


def transcript_of(
    nbest: Sequence[Hypothesis], tokenizer: Tokenizer, frame_seconds: float, delays: WordDelays = NO_DELAYS
) -> Transcript:
    """The transcript of an utterance's best hypotheses, the best first; the others as of `words_of`."""
    scores: dict[str, float] = {}
    for hypothesis in nbest:
        scores.setdefault(tokenizer.decode(hypothesis.tokens).strip(), hypothesis.score)
    alternatives = tuple(Alternative(text, score) for text, score in scores.items())
    return Transcript(alternatives[0].text, words_of(nbest[0], tokenizer, frame_seconds, delays), alternatives)
