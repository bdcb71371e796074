"""A pool's steps as CUDA graphs: what is read and written in place, here with a stand-in for the graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import test_stream_samples
import torch
from reference import transducer as slow
from test_transducer_search import WAITS
from torch.utils._python_dispatch import TorchDispatchMode

from prnn._ops._capture import capture_into
from prnn.asr.fbank import Fbank
from prnn.transducer import Hypothesis, StepResult, StreamPool, SymbolBias, Transducer, capture
from prnn.transducer.capture import CapturedSteps, padded_table, rounded


class CallAgain:
    """In the place of a CUDA graph: a replay calls again, and writes the results where the first ones were."""

    replays = 0

    def __init__(self, call: Callable[[], Any], result: Any) -> None:
        self.call, self.packed = call, result[1]

    def replay(self) -> None:
        CallAgain.replays += 1
        self.packed.copy_(self.call()[1])


class NoWaits(TorchDispatchMode):
    """Refuses what waits for a GPU."""

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in WAITS
        return func(*args, **(kwargs or {}))


def stand_in(call: Callable[[], Any], *_: Any) -> tuple[CallAgain, Any]:
    """The results of a call have no values before a replay, and the states stay as they were."""
    pool = POOLS[-1]
    samples = None if pool._samples is None else pool._samples._rows
    states = (*pool._encoder_rows[:2], *pool._encoder_rows.hidden, *pool._search, samples)
    before = [None if state is None else state.clone() for state in states]
    with NoWaits():
        columns, packed = call()
    for state, old in zip(states, before, strict=True):
        if state is not None:
            state.copy_(old)
    packed = torch.full_like(packed, -1)
    return CallAgain(call, (columns, packed)), (columns, packed)


POOLS: list[StreamPool] = []


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    CallAgain.replays = 0
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(capture, "captured", stand_in)
    monkeypatch.setattr(capture, "host_copy", lambda tensor: tensor.numpy().copy())


def capturing(model: Transducer, slots: int, fbank: Fbank | None = None) -> StreamPool:
    pool = StreamPool(model, slots, max_symbols=3, fbank=fbank)
    pool._layers = None
    pool._captured = CapturedSteps(pool._step_alike, [pool._model], slots, torch.device("cpu"))
    POOLS.append(pool)
    return pool


OPTIONS: list[dict[str, Any]] = [{}, {"frame_stack": 3, "frame_stride": 2}, {"loss": "tdt", "durations": (0, 1, 3)}]


def talking(**options: Any) -> Transducer:
    """A small model that finds symbols."""
    model = slow.tiny_model(3, dtype=torch.float32, **options)
    with torch.no_grad():
        model.joiner.output.bias[0] -= 3.0
    return model


def come_and_go(model: Transducer, pool: StreamPool, bias: SymbolBias | None = None) -> None:
    """At random, the pool's seven slots for twenty streams, chunks of three sizes: as whole utterances."""
    device = model.joiner.output.weight.device
    random, draw = np.random.default_rng(1), torch.Generator().manual_seed(1)
    recordings = [torch.randn(int(size), 4, generator=draw).to(device) for size in random.integers(12, 60, 20)]
    waiting: list[int] = list(range(20))
    heard: dict[int, tuple[int, int]] = {}  # of a slot the recording, and frames of it
    parts: list[list[Hypothesis]] = [[] for _ in recordings]

    def take(slots: list[int], found: StepResult) -> None:
        for slot, row in zip(slots, found, strict=True):
            parts[heard[slot][0]].append(row)

    while waiting or heard:
        while waiting and len(heard) < 7 and random.integers(3):
            heard[pool.open()] = (waiting.pop(), 0)
        size = int(random.choice([4, 6, 12]))
        groups: dict[int, list[int]] = {}
        for slot in random.permutation(list(heard)).astype(int).tolist():
            number, at = heard[slot]
            if len(recordings[number]) - at < size:
                if size == 4:
                    rest = recordings[number][at:]
                    if len(rest):
                        take([slot], pool.step([slot], rest[None]))
                    take([slot], pool.finish([slot]))
                    pool.close(slot)
                    del heard[slot]
            elif random.integers(4):
                groups.setdefault(int(pool._waiting[slot]), []).append(slot)
        for slots in groups.values():
            chunk = torch.stack([recordings[heard[slot][0]][heard[slot][1] :][:size] for slot in slots])
            take(slots, pool.step(slots, chunk))
            heard.update({slot: (heard[slot][0], heard[slot][1] + size) for slot in slots})
    symbols = 0
    for features, found in zip(recordings, parts, strict=True):
        (expected,) = model.greedy_search(features[None], max_symbols=3, bias=bias)
        assert [token for part in found for token in part.tokens] == expected.tokens
        assert [stamp for part in found for stamp in part.timestamps] == expected.timestamps
        assert found[-1].score == pytest.approx(expected.score, abs=1e-3)
        symbols += len(expected.tokens)
    assert symbols > 20


@pytest.mark.parametrize("options", OPTIONS)
def test_streams_come_and_go(options: dict[str, Any], on_cpu: None) -> None:
    model = talking(predictor="lstm", **options)
    come_and_go(model, capturing(model, 7))
    assert CallAgain.replays > 20


def test_samples(on_cpu: None) -> None:
    """Features, encoder and search are one graph."""
    model, fbank = test_stream_samples.hearing()
    test_stream_samples.come_and_go(model, capturing(model, 5, fbank), fbank, (640, 640, 1280))
    assert CallAgain.replays > 10


def test_all_slots_in_order(on_cpu: None) -> None:
    """Without a table; the first step of a kind is no graph, and a number of graphs is kept."""
    model = talking(predictor="gru")
    pool = capturing(model, 3)
    slots = sorted(pool.open() for _ in range(3))
    features = torch.randn(3, 40, 4)
    parts = [pool.step(slots, chunk) for chunk in features.split(8, dim=1)]
    assert CallAgain.replays == 4
    parts.append(pool.finish(slots))
    for row, expected in enumerate(model.greedy_search(features, max_symbols=3)):
        assert [symbol for part in parts for symbol in part[row].tokens] == expected.tokens
        assert parts[-1][row].score == pytest.approx(expected.score, abs=1e-4)
    assert pool._captured is not None
    for size in range(2, 150, 2):
        pool.step(slots[:1], torch.randn(1, size, 4))
    assert len(pool._captured._graphs) == 64
    replays = CallAgain.replays
    pool.step(slots[:1], torch.randn(1, 148, 4))
    assert CallAgain.replays == replays + 1


def test_numbers_of_rows() -> None:
    assert [rounded(count) for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 25)] == [
        1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 16, 16, 24, 24, 32,
    ]  # fmt: skip
    table = padded_table(np.array([4, 1]), np.array([2, 2]), 4, 5)
    assert table.tolist() == [[4, 1, 5, 5], [4, 1, 0, 2], [2, 2, 0, 0]]
    assert table.dtype == np.int32


class Recorder:
    """In the place of a CUDA graph: whether Python's garbage collection runs when the capture begins and ends."""

    def __init__(self) -> None:
        self.collected: list[bool] = []

    def capture_begin(self, memory: Any, capture_error_mode: str) -> None:
        self.collected.append(gc.isenabled())

    def capture_end(self) -> None:
        self.collected.append(gc.isenabled())


def test_no_collection_while_a_graph_is_captured() -> None:
    """A graph in a cycle of references, freed by a collection meanwhile, would end the capture."""
    graph = Recorder()
    with pytest.raises(KeyError), capture_into(graph):  # type: ignore[arg-type]
        raise KeyError
    assert graph.collected == [False, False]
    assert gc.isenabled()
    gc.disable()
    try:
        with capture_into(graph):  # type: ignore[arg-type]
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
