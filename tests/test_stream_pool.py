"""StreamPool: streams that come and go find what whole utterances give, whatever shares their batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from reference import transducer as slow
from tones_model import RATE, tone_recogniser, tones

from prnn.transducer import Encoder, Hypothesis, PhraseBias, RecurrentPredictor, StreamPool, Transducer, step_result


class OwnPredictor(RecurrentPredictor):
    """A class that libprnn does not know."""


OPTIONS: dict[str, dict[str, Any]] = {
    "lstm": {"predictor": "lstm", "dtype": torch.float32},
    "gru": {"predictor": "gru", "dtype": torch.float32, "frame_stack": 3, "frame_stride": 2},
    "stateless": {"predictor": "stateless", "dtype": torch.float32, "encoder_cell": "gru", "frame_stack": 2},
    "float64": {"predictor": "lstm"},
    "projected": {"dtype": torch.float32, "encoder_hidden": 37, "encoder_projection": 11, "encoder_layers": 3},
    "blocks": {"dtype": torch.float32, "encoder_residual": True},
    "tdt": {"predictor": "lstm", "loss": "tdt", "durations": (0, 1, 3)},
    "own": {"predictor": "lstm"},
}


def made(kind: str) -> Transducer:
    model = slow.tiny_model(3, **OPTIONS[kind])
    if kind == "own":
        model.predictor.__class__ = OwnPredictor
    return model


def joined(parts: list[Hypothesis]) -> Hypothesis:
    sums: list[list[Any]] = [[], [], []]
    for part in parts:
        for total, more in zip(sums, (part.tokens, part.timestamps, part.log_probs), strict=True):
            total += more
    return Hypothesis(sums[0], parts[-1].score, sums[1], sums[2])


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "phrases"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_streams_come_and_go(kind: str, biased: bool) -> None:
    """At random, five slots for twelve streams of random lengths, chunks of random sizes, some of no frames."""
    model = made(kind)
    bias = PhraseBias([[1, 2], [2, 1, 3]], 2.0, model.joiner.vocab_size) if biased else None
    random = torch.Generator().manual_seed(5)

    def below(limit: int) -> int:
        return int(torch.randint(limit, (), generator=random))

    dtype = model.joiner.output.weight.dtype
    recordings = [torch.randn(below(40), 4, generator=random).to(dtype) for _ in range(12)]
    pool = StreamPool(model, 5, max_symbols=3, bias=bias)
    assert (pool._layers is None) is (kind == "blocks")
    assert (pool._resident is None) is (kind == "own")
    waiting, heard, parts, results = list(range(12)), {}, {}, {}
    while waiting or heard:
        while waiting and len(heard) < 5 and below(3):
            heard[slot := pool.open()] = (waiting.pop(), 0)
            parts[slot] = []
        slots = [slot for slot in heard if below(3)]
        if not slots:
            continue
        size = below(9)
        chunk, lengths = torch.full((len(slots), size, 4), torch.nan, dtype=dtype), []
        for row, slot in enumerate(slots):
            number, at = heard[slot]
            count = min(below(size + 1) if below(2) else size, len(recordings[number]) - at)
            chunk[row, :count] = recordings[number][at : at + count]
            heard[slot] = (number, at + count)
            lengths.append(count)
        for slot, found in zip(slots, pool.step(slots, chunk, torch.tensor(lengths)), strict=True):
            parts[slot].append(found)
        ended = [slot for slot in slots if heard[slot][1] == len(recordings[heard[slot][0]])]
        for slot, found in zip(ended, pool.finish(ended) if ended else [], strict=True):
            results[heard.pop(slot)[0]] = joined([*parts[slot], found])
            pool.close(slot)
    symbols = 0
    for number, features in enumerate(recordings):
        (expected,) = model.greedy_search(features[None], max_symbols=3, bias=bias)
        found = results[number]
        assert (found.tokens, found.timestamps) == (expected.tokens, expected.timestamps)
        if dtype == torch.float32:  # docs/transducer.md: the same bits
            assert (found.score, found.log_probs) == (expected.score, expected.log_probs)
        assert found.score == pytest.approx(expected.score, abs=1e-9)
        assert found.log_probs == pytest.approx(expected.log_probs, abs=1e-9)
        symbols += len(found.tokens)
    assert symbols > 5


@pytest.mark.parametrize("kind", ["lstm", "stateless", "own"])
def test_a_stream_without_frames(kind: str) -> None:
    """In a slot whose last stream has ended within a phrase."""
    model = made(kind)
    vocabulary = model.joiner.vocab_size
    bias = PhraseBias([[i, j, k] for i in range(1, 5) for j in range(1, 5) for k in range(1, 5)], 3.0, vocabulary)
    pool = StreamPool(model, 1, bias=bias)
    features = torch.randn(1, 9, 4, generator=torch.Generator().manual_seed(1)).to(model.joiner.output.weight.dtype)
    (expected,) = model.greedy_search(features[:, :0], torch.tensor([0]), bias=bias)
    slot = pool.open()
    symbols = len(pool.step([slot], features).tokens)
    assert symbols % 3 != 0  # phrases are of three
    pool.close(slot)
    (found,) = pool.finish([pool.open()])
    assert found.score == expected.score == 0.0


def test_all_slots_in_order_are_a_batch() -> None:
    model = made("lstm")
    features = torch.randn(3, 20, 4)
    pool = StreamPool(model, 3)
    slots = sorted(pool.open() for _ in range(3))
    parts = [pool.step(slots, chunk) for chunk in features.split(6, dim=1)]
    parts.append(pool.finish(slots))
    assert [joined(list(row)) for row in zip(*parts, strict=True)] == model.greedy_search(features)
    assert [pool.frames(slot) for slot in slots] == [10] * 3


def test_a_result_is_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hypothesis is made when it is asked for: those of thousands of streams would cost more than the search."""
    model = made("stateless")
    pool = StreamPool(model, 4)
    slots = np.array([pool.open() for _ in range(4)])[[2, 0, 3]]
    chunk, lengths = torch.randn(3, 20, 4), torch.tensor([20, 0, 13])
    monkeypatch.setattr(step_result, "Hypothesis", None)
    found = pool.step(slots, chunk, lengths)
    monkeypatch.undo()
    assert found.counts.tolist() == [len(row.tokens) for row in found]
    assert found.counts[0] > 0
    assert found.counts[1] == 0
    assert [found[0], found[1], found[-1]] == list(found) == found[:]
    assert found[1:] == [found[1], found[2]]
    with pytest.raises(IndexError):
        found[3]
    ends = found.ends
    assert found[2].tokens == found.tokens[ends[2] - found.counts[2] : ends[2]].tolist()
    assert found.scores.tolist() == [row.score for row in found]
    rest = pool.finish(torch.from_numpy(slots))
    expected = model.greedy_search(chunk, lengths)
    assert [joined(list(parts)) for parts in zip(found, rest, strict=True)] == expected
    assert len(pool.finish([])) == 0


def test_threads_share_a_long_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results have the same bits, whichever chunks prnn.nn's layers take."""
    model = made("lstm")
    features = torch.randn(1, 300, 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    calls: list[int] = []
    layers = Encoder.layers
    monkeypatch.setattr(Encoder, "layers", lambda self, x, *rest: calls.append(x.shape[1]) or layers(self, x, *rest))
    pool = StreamPool(model, 2)
    slot = pool.open()
    parts = [pool.step([slot], chunk)[0] for chunk in features.split([5, 100, 3, 90, 32, 33, 37], dim=1)]
    parts += pool.finish([slot])
    assert calls == [50, 45, 16, 19]  # encoder frames of the chunks of 100, 90, 33 and 37
    assert [joined(parts)] == model.greedy_search(features)


def test_training_goes_on_beside_a_pool() -> None:
    model = made("lstm").train()
    pool = StreamPool(model, 1)
    found = pool.step([pool.open()], torch.randn(1, 20, 4))
    assert model.training
    assert found[0].tokens


@pytest.mark.parametrize("kind", ["lstm", "own"])
def test_another_utterance_begins(kind: str) -> None:
    """As `StreamState.take_best` has it, the share of a phrase that was begun included."""
    model = made(kind)
    bias = PhraseBias([[k, j, i] for i in range(1, 4) for j in range(1, 4) for k in range(1, 4)], 1.5, 5)
    features = torch.randn(1, 30, 4, dtype=model.joiner.output.weight.dtype)
    pool = StreamPool(model, 1, bias=bias)
    slot = pool.open()
    state = model.stream_init(1, bias=bias)
    for chunk in features.split(10, dim=1):
        (found,) = pool.step([slot], chunk)
        _, state = model.stream_step(chunk, state)
        assert found.score == pytest.approx(state.best()[0].score, abs=1e-6)
        _, state = state.take_best()
        assert pool.begin_utterance(slot) == pytest.approx(state.best()[0].score, abs=1e-6)


@pytest.mark.parametrize(("stack", "stride"), [(1, 1), (3, 1), (3, 2), (4, 4)])
def test_chunks_of_one_length_take_the_short_way(stack: int, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    encoder = Encoder(5, 24, 2, "lstm", stack, stride).eval()
    encoder.set_normalization(torch.randn(5), torch.rand(5) + 0.5)
    features = torch.randn(2, 37, 5)

    def run() -> list[Any]:
        results, state = [], encoder.initial_state(2)
        for chunk in features.split([5, 0, 1, 2, 11, 18], dim=1):
            out, counts, state = encoder.step(chunk, torch.full((2,), chunk.shape[1]), state)
            results += [out, counts, state.frames, state.counts, *state.hidden]
        return results

    with torch.no_grad():
        short = run()
        monkeypatch.setattr(Encoder, "_stacked_together", lambda *_: None)
        for one, other in zip(short, run(), strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["lstm", "own"])
def test_pools_share_prepared_weights(kind: str) -> None:
    model = made(kind)
    bias = PhraseBias([[1, 2], [2, 1, 3]], 2.0, model.joiner.vocab_size)
    features = torch.randn(1, 20, 4, dtype=model.joiner.output.weight.dtype)
    pool = StreamPool(model, 2, bias=bias, like=StreamPool(model, 1))
    slot = pool.open()
    found = joined([*pool.step([slot], features), *pool.finish([slot])])
    (expected,) = model.greedy_search(features, bias=bias)
    assert (found.tokens, found.timestamps) == (expected.tokens, expected.timestamps)
    with pytest.raises(ValueError, match="like is a pool of another model"):
        StreamPool(made(kind), 1, like=pool)


def test_streams_of_a_recogniser_follow_its_weights() -> None:
    recogniser = tone_recogniser()
    first = recogniser.stream(RATE)
    assert first._search._pool._layers is recogniser.stream(RATE)._search._pool._layers  # type: ignore[union-attr]
    with torch.no_grad():
        recogniser.model.joiner.output.bias[0] += 1000.0
    stream = recogniser.stream(RATE)
    stream.feed(tones("..ab c."))
    assert stream.finish() == ""
    first.feed(tones("..ab c."))
    assert first.finish() == "ab c"


def test_bad_arguments() -> None:
    model = made("lstm")
    with pytest.raises(ValueError, match="slots is 0; it must be at least 1"):
        StreamPool(model, 0)
    with pytest.raises(TypeError, match="bias is a int; it must be"):
        StreamPool(model, 1, bias=3)  # type: ignore[arg-type]
    pool = StreamPool(model, 2)
    first, second = pool.open(), pool.open()
    with pytest.raises(ValueError, match="all slots are taken, 2; close a stream"):
        pool.open()
    chunk = torch.randn(2, 3, 4)
    with pytest.raises(ValueError, match="must name different streams"):
        pool.step([first, first], chunk)
    with pytest.raises(ValueError, match="slots has 1 streams; chunk has 2 rows"):
        pool.step([first], chunk)
    with pytest.raises(ValueError, match=r"chunk has shape \(2, 3, 5\)"):
        pool.step([first, second], torch.randn(2, 3, 5))
    for slots in ([0.0, 1.0], [[first, second]], ["a", "b"]):
        with pytest.raises(TypeError, match="it must be a sequence of ints"):
            pool.step(slots, chunk)  # type: ignore[arg-type]
    pool.close(second)
    for call in (lambda: pool.step([first, second], chunk), lambda: pool.finish([7]), lambda: pool.close(second)):
        with pytest.raises(ValueError, match="it must be that of an open stream"):
            call()
    assert pool.open() == second
