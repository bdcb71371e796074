"""Recognising speech with a trained checkpoint: whole recordings, or chunk by chunk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from prnn.transducer import Transducer
from prnn.transducer.streaming import MAX_SYMBOLS

from .checkpoint import load_recogniser_parts
from .errors import InputError
from .features import FeatureConfig, OnlineFeatures, compute_features
from .tokenizer import Tokenizer


class Recogniser:
    """A trained transducer with its features and tokenizer.

    Args:
        model: in eval mode.
        features: what the model was trained on.
        tokenizer: of its outputs.
    """

    def __init__(self, model: Transducer, features: FeatureConfig, tokenizer: Tokenizer) -> None:
        self.model = model
        self.features = features
        self.tokenizer = tokenizer

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> Recogniser:
        """Reads a checkpoint of ``prnn train``, to recognise on a device: "cpu", or "cuda".

        Raises:
            InputError: the file is no such checkpoint, or torch can use no GPU here.
        """
        model, features, tokenizer = load_recogniser_parts(path)
        if device != "cpu" and not torch.cuda.is_available():
            raise InputError(f"the device is {device}, but torch can use no GPU here")
        return cls(model.to(device), features, tokenizer)

    @property
    def device(self) -> torch.device:
        """Where it recognises."""
        return next(self.model.parameters()).device

    def transcribe(self, samples: np.ndarray, sample_rate: int, beam: int = 1, max_symbols: int = MAX_SYMBOLS) -> str:
        """Recognises a whole recording.

        Args:
            samples: float32 of shape (samples,), mono, from -1 to 1.
            sample_rate: in hertz.
            beam: hypotheses kept; 1 is greedy search.
            max_symbols: most symbols in one encoder frame.

        Returns:
            The text; empty when nothing is heard.
        """
        features = compute_features(samples, sample_rate, self.features)[None].to(self.device)
        if beam == 1:
            best = self.model.greedy_search(features, max_symbols=max_symbols)[0]
        else:
            best = self.model.beam_search(features, beam=beam, mode="standard", max_symbols=max_symbols)[0][0]
        return self.tokenizer.decode(best.tokens)

    def stream(self, sample_rate: int, beam: int = 1, max_symbols: int = MAX_SYMBOLS) -> RecogniserStream:
        """Begins to recognise a recording whose samples come piece by piece, at ``sample_rate`` hertz; `beam` and
        `max_symbols` as in `transcribe`."""
        return RecogniserStream(self, sample_rate, beam, max_symbols)


class RecogniserStream:
    """One recording being recognised. However it is cut, the last text equals that of :meth:`Recogniser.transcribe`."""

    def __init__(self, recogniser: Recogniser, sample_rate: int, beam: int = 1, max_symbols: int = MAX_SYMBOLS) -> None:
        self._recogniser = recogniser
        self._features = OnlineFeatures(sample_rate, recogniser.features)
        search = "greedy" if beam == 1 else "standard"
        self._state = recogniser.model.stream_init(1, search, beam, max_symbols)

    def accept(self, samples: np.ndarray) -> str:
        """Takes the next samples, float32 of shape (samples,). Returns the text so far; a beam may still change it."""
        self._features.accept_waveform(samples)
        self._advance()
        return self._text()

    def finish(self) -> str:
        """Ends the recording and returns its text."""
        self._features.input_finished()
        self._advance()
        _, self._state = self._recogniser.model.stream_finish(self._state)
        return self._text()

    def _advance(self) -> None:
        frames = self._features.pop()
        if len(frames):
            _, self._state = self._recogniser.model.stream_step(frames[None].to(self._recogniser.device), self._state)

    def _text(self) -> str:
        return self._recogniser.tokenizer.decode(self._state.best()[0].tokens)


def transcribe_batch(
    recogniser: Recogniser, features: list[torch.Tensor], beam: int = 1, max_symbols: int = MAX_SYMBOLS
) -> list[str]:
    """Recognises several recordings at once, given their features, each (frames, bins)."""
    lengths = torch.tensor([len(item) for item in features])
    padded = torch.nn.utils.rnn.pad_sequence(features, batch_first=True).to(recogniser.device)
    if beam == 1:
        found = recogniser.model.greedy_search(padded, lengths, max_symbols)
    else:
        lists = recogniser.model.beam_search(padded, lengths, beam=beam, mode="standard", max_symbols=max_symbols)
        found = [hypotheses[0] for hypotheses in lists]
    return [recogniser.tokenizer.decode(hypothesis.tokens) for hypothesis in found]
