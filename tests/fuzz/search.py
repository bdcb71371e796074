"""Transducers: whole utterances, batches and chunks give one result when searched, and that of the slow searches."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from reference import transducer as slow
from torch import Tensor

from fuzz.case import Case, Finding
from fuzz.explore import explore
from prnn.transducer import Hypothesis, NgramBias, PhraseBias, StreamPool, Transducer

FEATURES = 4  # of tiny_model


@dataclass(frozen=True)
class Config:
    """max_symbols None: as the functions have it by default. chunks: sizes, over and over."""

    seed: int
    model: dict[str, Any]
    lengths: tuple[int, ...]
    method: str
    beam: int
    max_symbols: int | None
    chunks: tuple[int, ...]
    slowly: bool
    training: bool
    phrases: int  # 0: none
    order: int  # of an n-gram language model, where there are no phrases; 0: none


@st.composite
def configs(draw: st.DrawFn) -> Config:
    stack = draw(st.integers(1, 4))
    model: dict[str, Any] = {
        "vocab_size": draw(st.integers(2, 6)),
        "predictor": draw(st.sampled_from(("lstm", "gru", "stateless"))),
        "encoder_cell": draw(st.sampled_from(("lstm", "gru", "rnn", "layer_norm_lstm"))),
        "encoder_residual": draw(st.booleans()),
        "encoder_norm": draw(st.sampled_from(("none", "before", "after"))),
        "encoder_feedforward": draw(st.sampled_from((0, 5))),
        "frame_stack": stack,
        "frame_stride": draw(st.integers(1, stack)),
        "encoder_layers": draw(st.integers(1, 2)),
        "predictor_layers": draw(st.integers(1, 2)),
        "predictor_context": draw(st.integers(1, 3)),
        "joiner_activation": draw(st.sampled_from(("tanh", "relu"))),
        "gain": draw(st.sampled_from((1.0, 3.0, 6.0))),
        "blank_bias": draw(st.sampled_from((0.0, 1.0, -2.0, -1000.0))),
        "dropout": draw(st.sampled_from((0.0, 0.4))),
    }
    is_stack = model["encoder_cell"] == "lstm" and draw(st.booleans())
    if is_stack:  # what libprnn's layers of streams serve, with a projection
        model |= {"encoder_residual": False, "encoder_norm": "none", "encoder_feedforward": 0}
        model["encoder_projection"] = draw(st.sampled_from((0, 7)))
    model["blank"] = draw(st.integers(0, model["vocab_size"] - 1))
    if draw(st.booleans()):
        durations = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True).filter(any))
        model |= {"loss": "tdt", "durations": tuple(durations)}
    return Config(
        seed=draw(st.integers(0, 10**6)),
        model=model,
        lengths=tuple(draw(st.lists(st.integers(0, 20), min_size=1, max_size=3))),
        method=draw(st.sampled_from(("greedy", "modified", "standard"))),
        beam=draw(st.integers(1, 5)),
        max_symbols=draw(st.sampled_from((None, None, 1, 2, 4))),
        chunks=tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any))),
        slowly=draw(st.booleans()),
        training=draw(st.booleans()),
        phrases=draw(st.sampled_from((0, 0, 1, 3))),
        order=draw(st.sampled_from((0, 0, 1, 2, 3))),
    )


def bias(config: Config) -> PhraseBias | NgramBias | None:
    """Random phrases of the model's symbols, or a language model."""
    if not config.phrases and not config.order:
        return None
    size, blank = config.model["vocab_size"], config.model["blank"]
    generator = torch.Generator().manual_seed(config.seed)
    symbols = [symbol for symbol in range(size) if symbol != blank]
    if not config.phrases:
        return language_model(config, symbols, generator)
    places = torch.randint(0, len(symbols), (config.phrases, 3), generator=generator).tolist()
    return PhraseBias([[symbols[place] for place in row] for row in places], 2.0, size, blank)


def language_model(config: Config, symbols: list[int], generator: torch.Generator) -> NgramBias:
    """Random n-grams of up to `config.order` symbols, with and without back-off weights, in an ARPA file."""
    names = [f"s{symbol}" for symbol in symbols]

    def numbers(count: int) -> list[float]:
        return torch.rand(count, generator=generator, dtype=torch.float64).tolist()

    def lines(ngrams: list[tuple[str, ...]]) -> list[str]:
        rows = zip(ngrams, numbers(len(ngrams)), numbers(len(ngrams)), strict=True)
        return [f"{-3 * p:.4f}\t{' '.join(ngram)}" + (f"\t{b - 0.5:.4f}" if b < 0.7 else "") for ngram, p, b in rows]

    sections = [[("<s>",), ("</s>",), ("<unk>",), *((name,) for name in names)]]
    for length in range(2, config.order + 1):
        columns = torch.randint(0, len(names), (2 * len(names), length), generator=generator).tolist()
        ngrams = {tuple(names[place] for place in row) for row in columns}
        first = min(ngrams)
        ngrams |= {("<s>", *first[1:]), (*first[:-1], "</s>")}
        sections.append(sorted(ngrams))
    text = "\\data\\\n" + "".join(f"ngram {i}={len(ngrams)}\n" for i, ngrams in enumerate(sections, start=1))
    for length, ngrams in enumerate(sections, start=1):
        text += "\n".join(["", f"\\{length}-grams:", *lines(ngrams), ""])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.arpa")
        path.write_text(f"{text}\n\\end\\\n")
        return NgramBias(
            path, dict(zip(names, symbols, strict=True)), config.model["vocab_size"], config.model["blank"]
        )


def whole(config: Config, model: Transducer, features: Tensor, lengths: Tensor | None) -> list[list[Hypothesis]]:
    limit: dict[str, Any] = {"bias": bias(config)}
    limit |= {} if config.max_symbols is None else {"max_symbols": config.max_symbols}
    if config.method == "greedy":
        return [[best] for best in model.greedy_search(features, lengths, **limit)]
    return model.beam_search(features, lengths, beam=config.beam, mode=config.method, nbest=config.beam, **limit)


def chunked(config: Config, model: Transducer, features: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
    limit: dict[str, Any] = {"bias": bias(config)}
    limit |= {} if config.max_symbols is None else {"max_symbols": config.max_symbols}
    state = model.stream_init(len(lengths), config.method, config.beam, **limit)
    tokens: list[list[int]] = [[] for _ in lengths]
    start = step = 0
    while start < features.shape[1]:
        chunk = features[:, start : start + config.chunks[step % len(config.chunks)]]
        new, state = model.stream_step(chunk, state, (lengths - start).clamp(0, chunk.shape[1]))
        for row, more in zip(tokens, new, strict=True):
            row += more
        start, step = start + chunk.shape[1], step + 1
    new, state = model.stream_finish(state)
    lists = state.nbest(1 if config.method == "greedy" else config.beam)
    for row, more, found in zip(tokens, new, lists, strict=True):
        if row + more != found[0].tokens:
            raise Finding(
                f"the steps of the stream returned {row + more}, and its best hypothesis is {found[0].tokens}"
            )
    return lists


def pooled(config: Config, model: Transducer, features: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
    """Greedy search in the slots of a pool, which streams take and leave when they begin and end."""
    limit: dict[str, Any] = {"bias": bias(config)}
    limit |= {} if config.max_symbols is None else {"max_symbols": config.max_symbols}
    pool = StreamPool(model, config.beam, **limit)
    waiting, step = list(range(len(lengths))), 0
    open_: dict[int, tuple[int, int]] = {}  # slots: the utterance, and how many of its frames were taken
    results = [Hypothesis([], 0.0, [], []) for _ in lengths]

    def add(row: int, found: Hypothesis) -> None:
        before = results[row]
        results[row] = Hypothesis(before.tokens + found.tokens, found.score, before.timestamps + found.timestamps, [])

    while waiting or open_:
        if waiting and len(open_) < config.beam:
            open_[pool.open()] = (waiting.pop(), 0)
        slots = list(open_)
        sizes = [config.chunks[(step + slot) % len(config.chunks)] for slot in slots]
        step += 1
        chunk = torch.full((len(slots), max(sizes), FEATURES), math.nan, dtype=torch.float64)
        counts = []
        for place, (slot, size) in enumerate(zip(slots, sizes, strict=True)):
            row, at = open_[slot]
            count = min(size, int(lengths[row]) - at)
            chunk[place, :count] = features[row, at : at + count]
            open_[slot] = row, at + count
            counts.append(count)
        for slot, found in zip(slots, pool.step(slots, chunk, torch.tensor(counts)), strict=True):
            add(open_[slot][0], found)
        ended = [slot for slot in slots if open_[slot][1] == int(lengths[open_[slot][0]])]
        for slot, found in zip(ended, pool.finish(ended) if ended else [], strict=True):
            add(open_.pop(slot)[0], found)
            pool.close(slot)
    return [[found] for found in results]


def require_same(what: str, found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    texts = [[(h.tokens, h.timestamps) for h in lists] for lists in (found, expected)]
    scores = [[h.score for h in lists] for lists in (found, expected)]
    near = len(found) == len(expected) and all(
        math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-6) for one, other in zip(*scores, strict=True)
    )
    if texts[0] != texts[1] or not near:
        raise Finding(f"{what}: {found} in place of {expected}")


def check(config: Config) -> None:
    model = slow.tiny_model(config.seed, **config.model)
    longest = max(1, *config.lengths)
    features = torch.randn(len(config.lengths), longest, FEATURES, dtype=torch.float64)
    for row, length in enumerate(config.lengths):
        features[row, length:] = math.nan
    lengths = torch.tensor(config.lengths)
    model.train(config.training)
    batch = whole(config, model, features, lengths)
    if model.training != config.training or model.encoder.training != config.training:
        raise Finding("a search changed the mode of the model")
    for row, found in enumerate(chunked(config, model, features, lengths)):
        require_same(f"the stream of utterance {row}", found, batch[row])
    for row, found in enumerate(pooled(config, model, features, lengths) if config.method == "greedy" else []):
        require_same(f"utterance {row} in a pool", found, batch[row])
    for row, length in enumerate(config.lengths):
        (alone,) = whole(config, model, features[row : row + 1, :length], None)
        require_same(f"utterance {row} alone", alone, batch[row])
    is_biased = config.phrases or config.order
    if not config.slowly or is_biased or config.model.get("loss") == "tdt" or config.max_symbols is None:
        return
    model.eval()
    for row, length in enumerate(config.lengths):
        frames = (
            slow.encode(model, features[row, :length]) if length else features.new_zeros(0, model.encoder.output_dim)
        )
        if config.method == "greedy":
            expected = [slow.greedy(model, frames, config.max_symbols)]
        elif len(frames) * config.beam > 20 or config.model["blank_bias"] < -100:
            continue  # the slow search takes long; symbols of probability 1 tie with one another
        else:
            modified = config.method == "modified"
            expected = slow.beam_search(model, frames, config.beam, config.max_symbols, modified)
            expected.sort(key=lambda h: -h.score)
        require_same(f"utterance {row} against the slow search", batch[row], expected)


def run(case: Case) -> None:
    explore(case, configs(), check)
