"""Slow transducer searches and lattice sums, in float64, straight from their definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor

from prnn.transducer import Hypothesis, Transducer, TransducerConfig


def tiny_model(
    seed: int,
    vocab_size: int = 5,
    predictor: str = "stateless",
    dtype: torch.dtype = torch.float64,
    gain: float = 3.0,
    blank_bias: float = 1.0,
    **options: object,
) -> Transducer:
    """A small random model, its weights scaled by `gain` so that its decisions depend on what it hears."""
    torch.manual_seed(seed)
    values: dict[str, object] = {
        "feature_dim": 4,
        "frame_stack": 2,
        "encoder_layers": 2,
        "encoder_hidden": 12,
        "predictor_embedding": 6,
        "predictor_hidden": 10,
        "joiner_dim": 11,
    }
    config = TransducerConfig(vocab_size=vocab_size, predictor=predictor, **{**values, **options})  # type: ignore[arg-type]
    model = Transducer.from_config(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(gain)
        model.joiner.output.bias[config.blank] += blank_bias
    return model


@torch.no_grad()
def log_probs(model: Transducer, frames: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """(T, U + 1, V) log-probabilities of encoder frames (T, D) and the symbols of one utterance."""
    targets = torch.tensor([tokens], dtype=torch.int64)
    return torch.log_softmax(model.joiner(frames[None], model.predictor(targets))[0].double(), dim=-1)


@torch.no_grad()
def encode(model: Transducer, features: Tensor) -> Tensor:
    """Encoder frames (T', D) of one utterance (T, F)."""
    return model.encoder(features[None], torch.tensor([len(features)]))[0][0]


def total_log_prob(
    model: Transducer, frames: Tensor, tokens: tuple[int, ...], max_symbols: int, modified: bool
) -> float:
    """The log of the sum over all alignments of `tokens` with at most `max_symbols` symbols a frame; if `modified`, of
    at most one, without the blank that otherwise ends a frame."""
    scores = log_probs(model, frames, tokens)
    alpha = {0: 0.0}
    for t in range(len(frames)):
        after: dict[int, list[float]] = {}
        for u, score in alpha.items():
            here = score
            for v in range(u, len(tokens) + 1):
                if v > u:
                    here += float(scores[t, v - 1, tokens[v - 1]])
                if v - u > max_symbols:
                    break
                ends = here if modified and v > u else here + float(scores[t, v, model.blank])
                after.setdefault(v, []).append(ends)
        alpha = {u: float(torch.logsumexp(torch.tensor(terms, dtype=torch.float64), 0)) for u, terms in after.items()}
    return alpha.get(len(tokens), -math.inf)


def all_sequences(model: Transducer, longest: int) -> list[tuple[int, ...]]:
    symbols = [s for s in range(model.joiner.vocab_size) if s != model.blank]
    return [tokens for length in range(longest + 1) for tokens in itertools.product(symbols, repeat=length)]


def exhaustive(
    model: Transducer, frames: Tensor, max_symbols: int, modified: bool
) -> list[tuple[float, tuple[int, ...]]]:
    """Every transcript of the utterance with its log-probability, the most probable first."""
    sequences = all_sequences(model, len(frames) * max_symbols)
    scored = [(total_log_prob(model, frames, tokens, max_symbols, modified), tokens) for tokens in sequences]
    return sorted(((score, tokens) for score, tokens in scored if score > -math.inf), reverse=True)


def greedy(model: Transducer, frames: Tensor, max_symbols: int) -> Hypothesis:
    """Greedy search one symbol at a time."""
    tokens: tuple[int, ...] = ()
    stamps: list[int] = []
    score = 0.0
    for t in range(len(frames)):
        for _ in range(max_symbols):
            best, symbol = log_probs(model, frames[t : t + 1], tokens)[0, -1].max(0)
            score += float(best)
            if int(symbol) == model.blank:
                break
            tokens += (int(symbol),)
            stamps.append(t)
    return Hypothesis(list(tokens), score, stamps)


Beam = dict[tuple[int, ...], tuple[float, list[int]]]


def _add(beam: Beam, tokens: tuple[int, ...], score: float, stamps: list[int]) -> None:
    """Add a way to spell `tokens`. The more probable side's timestamps stay."""
    if tokens in beam:
        total, kept = beam[tokens]
        beam[tokens] = (float(np.logaddexp(total, score)), stamps if score > total else kept)
    else:
        beam[tokens] = (score, stamps)


def _best(beam: Beam, size: int) -> Beam:
    return dict(sorted(beam.items(), key=lambda item: -item[1][0])[:size])


def beam_search(model: Transducer, frames: Tensor, size: int, max_symbols: int, modified: bool) -> list[Hypothesis]:
    """Modified or standard (time-synchronous) beam search over dictionaries of prefixes."""
    beam: Beam = {(): (0.0, [])}
    for t in range(len(frames)):
        left: Beam = {}
        level = beam
        for _ in range(max_symbols + 1):
            extensions: Beam = {}
            for tokens, (score, stamps) in level.items():
                scores = log_probs(model, frames[t : t + 1], tokens)[0, -1].tolist()
                _add(left, tokens, score + scores[model.blank], stamps)
                for symbol, log_prob in enumerate(scores):
                    if symbol != model.blank:
                        _add(extensions, (*tokens, symbol), score + log_prob, [*stamps, t])
            if modified:
                for tokens, (score, stamps) in extensions.items():
                    _add(left, tokens, score, stamps)
                break
            ranked = sorted((score for score, _ in left.values()), reverse=True)
            bar = ranked[size - 1] if len(ranked) >= size else -math.inf
            level = _best({tokens: way for tokens, way in extensions.items() if way[0] > bar}, size)
        beam = _best(left, size)
    return [Hypothesis(list(tokens), score, stamps) for tokens, (score, stamps) in beam.items()]
