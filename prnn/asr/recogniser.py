"""Recognising speech with a trained checkpoint: whole recordings, or chunk by chunk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from prnn.transducer import Hypothesis, StreamPool, SymbolBias, Transducer
from prnn.transducer.streaming import MAX_SYMBOLS

from .checkpoint import load_recogniser
from .endpoint import EndpointRules
from .errors import InputError
from .feature_config import FeatureConfig
from .features import OnlineFeatures, check_recording, compute_features
from .tokenizer import Tokenizer
from .transcript import Transcript, transcript_of
from .word_times import NO_DELAYS, WordDelays

_CHECK_SECONDS = 0.32  # of audio from one look for endpoints to the next, however the audio comes


class Recogniser:
    """A trained transducer with its features and tokenizer.

    Args:
        model: in eval mode.
        features: what the model was trained on.
        tokenizer: of its outputs.
        delays: how late the model emits words, for their times.
    """

    def __init__(
        self,
        model: Transducer,
        features: FeatureConfig,
        tokenizer: Tokenizer,
        delays: WordDelays = NO_DELAYS,
    ) -> None:
        self.model = model
        self.features = features
        self.tokenizer = tokenizer
        self.delays = delays
        self._first_pool: tuple[StreamPool, object] | None = None  # and of which weights it is

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu", encoder_class: str | None = None) -> Recogniser:
        """Reads a checkpoint of ``prnn train``.

        Args:
            path: of the checkpoint.
            device: to recognise on: "cpu", or "cuda".
            encoder_class: "package.module:Class", which is imported, for a checkpoint whose encoder is not prnn's own.

        Raises:
            InputError: the file is no such checkpoint, its encoder is of another class, or torch can use no GPU here.
        """
        model, features, tokenizer, delays = load_recogniser(path, encoder_class)
        if device != "cpu" and not torch.cuda.is_available():
            raise InputError(f"the device is {device}, but torch can use no GPU here")
        return cls(model.to(device), features, tokenizer, delays)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @property
    def frame_seconds(self) -> float:
        """Seconds from encoder frame to encoder frame."""
        return self.model.encoder.frame_stride * self.features.frame_shift_ms / 1000

    def transcribe(
        self,
        samples: np.ndarray,
        sample_rate: int,
        beam: int = 1,
        max_symbols: int = MAX_SYMBOLS,
        bias: SymbolBias | None = None,
    ) -> str:
        """Recognises a whole recording.

        Args:
            samples: float32 of shape (samples,), mono, from -1 to 1.
            sample_rate: in hertz.
            beam: hypotheses kept; 1 is greedy search.
            max_symbols: most symbols in one encoder frame.
            bias: phrases that the search prefers, or a language model.

        Returns:
            The text; empty when nothing is heard.

        Raises:
            ValueError: samples that are not finite, or far from -1 to 1.
        """
        check_recording(samples)
        features = compute_features(samples, sample_rate, self.features)
        return self.transcribe_batch([features], beam, max_symbols, bias)[0].text

    def transcribe_batch(
        self,
        features: Sequence[torch.Tensor],
        beam: int = 1,
        max_symbols: int = MAX_SYMBOLS,
        bias: SymbolBias | None = None,
    ) -> list[Transcript]:
        """Recognises several recordings at once, given their features, each (frames, bins); the rest as in
        `transcribe`. The transcripts have up to ``beam`` alternatives."""
        lengths = torch.tensor([len(item) for item in features], device="cpu")
        padded = torch.nn.utils.rnn.pad_sequence(list(features), batch_first=True).to(self.device)
        return self.transcribe_padded(padded, lengths, beam, max_symbols, bias)

    def transcribe_padded(
        self,
        padded: torch.Tensor,
        lengths: torch.Tensor,
        beam: int = 1,
        max_symbols: int = MAX_SYMBOLS,
        bias: SymbolBias | None = None,
    ) -> list[Transcript]:
        """Transcripts of features (N, T, bins) on the recogniser's device, and the frames of each, (N,), on the CPU."""
        if beam == 1:
            lists = [[found] for found in self.model.greedy_search(padded, lengths, max_symbols, bias)]
        else:
            lists = self.model.beam_search(
                padded, lengths, beam=beam, mode="standard", nbest=beam, max_symbols=max_symbols, bias=bias
            )
        return [transcript_of(nbest, self.tokenizer, self.frame_seconds, self.delays) for nbest in lists]

    def _pool(self, max_symbols: int, bias: SymbolBias | None) -> StreamPool:
        """A pool of one stream. All share the weights that the first one has prepared, while torch's version counters
        tell of no change."""
        weights = [(weight.data_ptr(), weight._version) for weight in self.model.parameters()]
        if self._first_pool is None or self._first_pool[1] != weights:
            self._first_pool = StreamPool(self.model, 1), weights
        return StreamPool(self.model, 1, max_symbols, bias, like=self._first_pool[0])

    def stream(
        self,
        sample_rate: int,
        beam: int = 1,
        max_symbols: int = MAX_SYMBOLS,
        bias: SymbolBias | None = None,
        endpoint: EndpointRules | None = None,
    ) -> RecogniserStream:
        """Begins to recognise a recording whose samples come piece by piece, at ``sample_rate`` hertz.

        Args:
            sample_rate: in hertz.
            beam: hypotheses kept; 1 is greedy search.
            max_symbols: most symbols in one encoder frame.
            bias: phrases that the search prefers, or a language model.
            endpoint: where utterances end; None makes the recording one utterance.
        """
        return RecogniserStream(self, sample_rate, beam, max_symbols, bias, endpoint)


class RecogniserStream:
    """One recording being recognised. However it is cut into pieces, its utterances are the same, and the one that it
    is without endpoints has the text of :meth:`Recogniser.transcribe`. Memory does not grow with the recording, but
    with the utterance."""

    def __init__(
        self,
        recogniser: Recogniser,
        sample_rate: int,
        beam: int = 1,
        max_symbols: int = MAX_SYMBOLS,
        bias: SymbolBias | None = None,
        endpoint: EndpointRules | None = None,
    ) -> None:
        self._recogniser = recogniser
        self._device = recogniser.device
        self._features = OnlineFeatures(sample_rate, recogniser.features)
        self._beam = beam
        self._endpoint = endpoint
        self._period = max(1, round(_CHECK_SECONDS * 1000 / recogniser.features.frame_shift_ms))
        self._search: _GreedyStream | _BeamStream
        if beam == 1:
            self._search = _GreedyStream(recogniser._pool(max_symbols, bias))
        else:
            self._search = _BeamStream(recogniser.model, beam, max_symbols, bias)
        self._frames = 0
        self._certain = Hypothesis([], 0.0, [], [])  # of the utterance: what the state has no more
        self._utterances: list[Transcript] = []
        self._finished = False

    @property
    def text(self) -> str:
        """The text of the utterance so far; a beam may still change it."""
        tokens = self._certain.tokens + self._search.nbest(1)[0].tokens
        return self._recogniser.tokenizer.decode(tokens).strip()

    def accept(self, samples: np.ndarray) -> str:
        """Takes the next samples, float32 of shape (samples,), from -1 to 1. Returns `text`. Raises ValueError for
        samples that are not finite, or far from that."""
        self.feed(samples)
        return self.text

    def feed(self, samples: np.ndarray) -> None:
        """Takes more samples (S,), as `accept` does, and returns nothing."""
        self._require_going_on()
        check_recording(samples)
        self._features.accept_waveform(samples)
        self._advance()

    def finish(self) -> str:
        """Ends the recording and returns the text of its last utterance."""
        self._require_going_on()
        self._finished = True
        self._features.input_finished()
        self._advance()
        self._certain = _joined(self._certain, self._search.finish())
        self._look_for_endpoints()
        text = self.text
        if text or self._endpoint is None:
            self._end_utterance()
        return text

    def utterances(self) -> list[Transcript]:
        """The utterances that have ended and were not returned before, with up to ``beam`` alternatives."""
        ended, self._utterances = self._utterances, []
        return ended

    def _require_going_on(self) -> None:
        if self._finished:
            raise ValueError("the stream has finished; Recogniser.stream begins another")

    def _advance(self) -> None:
        frames = self._features.pop()
        while len(frames):
            size = len(frames) if self._endpoint is None else self._period - self._frames % self._period
            chunk, frames = frames[:size], frames[size:]
            self._frames += len(chunk)
            self._certain = _joined(self._certain, self._search.step(chunk[None].to(self._device)))
            if self._frames % self._period == 0:
                self._look_for_endpoints()

    def _best(self) -> Hypothesis:
        return _joined(self._certain, self._search.nbest(1)[0])

    def _look_for_endpoints(self) -> None:
        rules = self._endpoint
        if rules is None:
            return
        silence = math.ceil(rules.silence / self._recogniser.frame_seconds - 1e-6)
        longest = rules.longest / self._recogniser.frame_seconds
        heard = self._search.frames
        while stamps := self._best().timestamps:
            pauses = [place for place in range(1, len(stamps)) if stamps[place] - stamps[place - 1] - 1 >= silence]
            if pauses:
                self._cut(pauses[0])
            elif heard - stamps[-1] - 1 >= silence:
                self._end_utterance()
            elif heard - stamps[0] > longest:
                self._cut(self._last_word() or len(stamps))
            else:
                return

    def _last_word(self) -> int:
        """At which symbol of the utterance its last word begins; 0 if it has one word."""
        surfaces = self._recogniser.tokenizer.surfaces(self._best().tokens)
        places = range(len(surfaces) - 1, 0, -1)
        return next((i for i in places if surfaces[i].startswith(" ") or surfaces[i - 1].endswith(" ")), 0)

    def _cut(self, place: int) -> None:
        """Ends the utterance before a symbol. The symbols from there on are the next one's."""
        if place > len(self._certain.tokens):
            self._certain = _joined(self._certain, self._search.take_best())
        found = self._certain
        surfaces = self._recogniser.tokenizer.surfaces(found.tokens)
        word = next((i for i in range(place, len(surfaces)) if surfaces[i].strip()), None)
        following = self._search.frames if word is None else found.timestamps[word]
        first = Hypothesis(found.tokens[:place], sum(found.log_probs[:place]), found.timestamps[:place],
                           found.log_probs[:place])  # fmt: skip
        self._certain = Hypothesis(found.tokens[place:], 0.0, found.timestamps[place:], found.log_probs[place:])
        self._add([first], following)

    def _end_utterance(self) -> None:
        nbest = self._search.nbest(self._beam)
        self._search.take_best()
        self._add([_joined(self._certain, found) for found in nbest])
        self._certain = Hypothesis([], 0.0, [], [])

    def _add(self, nbest: list[Hypothesis], following: float = math.inf) -> None:
        """Adds an utterance, whose last word ends where a word emitted in that frame begins, or before it."""
        delays, frame_seconds = self._recogniser.delays, self._recogniser.frame_seconds
        found = transcript_of(nbest, self._recogniser.tokenizer, frame_seconds, delays)
        if found.words or self._endpoint is None:
            if self._endpoint is not None and found.words:
                latest, last = following * frame_seconds - delays.begin, found.words[-1]
                last = last._replace(end=max(last.start, min(last.end, latest)))
                pause = min(self._endpoint.silence, latest - last.end)
                found = replace(found, words=(*found.words[:-1], last), pause=pause)
            self._utterances.append(found)


class _GreedyStream:
    """A stream's greedy search. What a step has found is certain."""

    def __init__(self, pool: StreamPool) -> None:
        self._pool = pool
        self._slot = self._pool.open()
        self._score = 0.0

    @property
    def frames(self) -> int:
        """Encoder frames searched so far."""
        return self._pool.frames(self._slot)

    def step(self, chunk: torch.Tensor) -> Hypothesis:
        """Returns what has become certain with the frames (1, C, bins)."""
        return self._scored(self._pool.step([self._slot], chunk)[0])

    def finish(self) -> Hypothesis:
        """Returns the hypothesis with the frames that wait for others."""
        return self._scored(self._pool.finish([self._slot])[0])

    def _scored(self, found: Hypothesis) -> Hypothesis:
        self._score = found.score
        return found

    def nbest(self, count: int) -> list[Hypothesis]:
        """The part of the utterance that may still change: one hypothesis, without symbols."""
        return [Hypothesis([], self._score, [], [])]

    def take_best(self) -> Hypothesis:
        """Ends the utterance, and returns what was not certain of its best hypothesis."""
        (best,) = self.nbest(1)
        self._score = self._pool.begin_utterance(self._slot)
        return best


class _BeamStream:
    """A stream's beam search, with the methods of `_GreedyStream`."""

    def __init__(self, model: Transducer, beam: int, max_symbols: int, bias: SymbolBias | None) -> None:
        self._model = model
        self._state = model.stream_init(1, "standard", beam, max_symbols, bias)

    @property
    def frames(self) -> int:
        return int(self._state.frames[0])

    def step(self, chunk: torch.Tensor) -> Hypothesis:
        _, state = self._model.stream_step(chunk, self._state)
        (certain,), self._state = state.take_certain()
        return certain

    def finish(self) -> Hypothesis:
        _, self._state = self._model.stream_finish(self._state)
        return Hypothesis([], 0.0, [], [])

    def nbest(self, count: int) -> list[Hypothesis]:
        return self._state.nbest(count)[0]

    def take_best(self) -> Hypothesis:
        (best,), self._state = self._state.take_best()
        return best


def _joined(start: Hypothesis, end: Hypothesis) -> Hypothesis:
    return Hypothesis(
        start.tokens + end.tokens, end.score, start.timestamps + end.timestamps, start.log_probs + end.log_probs
    )
