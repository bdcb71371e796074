"""StreamPool on a GPU, whose steps are CUDA graphs."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import test_stream_samples
import torch
from test_captured_steps import come_and_go, talking

from prnn._ops._capture import capture_into
from prnn.transducer import Encoder, PhraseBias, StreamPool, Transducer

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.xdist_group("gpu"),
]

OPTIONS: dict[str, dict[str, Any]] = {
    "lstm": {"predictor": "lstm"},
    "gru": {"predictor": "gru", "frame_stack": 3, "frame_stride": 2},
    "stateless": {"predictor": "stateless", "encoder_cell": "gru"},
    "tdt": {"predictor": "lstm", "loss": "tdt", "durations": (0, 1, 3)},
    "blocks": {"predictor": "lstm", "encoder_residual": True, "encoder_norm": "before"},
}


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def made(kind: str) -> Transducer:
    return talking(**OPTIONS[kind]).cuda()


def graphs(streams: StreamPool) -> list[Any]:
    assert streams._captured is not None
    return [graph for graph in streams._captured._graphs.values() if graph is not None]


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "phrases"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_streams_come_and_go(kind: str, biased: bool) -> None:
    model = made(kind)
    bias = PhraseBias([[1, 2], [2, 1, 3]], 2.0, model.joiner.vocab_size) if biased else None
    streams = StreamPool(model, 7, max_symbols=3, bias=bias)
    come_and_go(model, streams, bias)
    assert len(graphs(streams)) > 5


@pytest.mark.parametrize("kind", ["plain", "stack", "blocks"])
def test_samples(kind: str) -> None:
    """Features, encoder and search are one graph."""
    model, fbank = test_stream_samples.hearing("cuda", **test_stream_samples.OPTIONS[kind])
    streams = StreamPool(model, 5, 3, fbank=fbank)
    test_stream_samples.come_and_go(model, streams, fbank, (640, 640, 1280))
    assert len(graphs(streams)) > 4


def test_another_stream_of_the_gpu() -> None:
    model = made("lstm")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        streams = StreamPool(model, 7, max_symbols=3)
        come_and_go(model, streams)
    assert len(graphs(streams)) > 5


def test_other_slots_stay() -> None:
    """Three of nine streams are the rows of a graph, five are rows of one of six: its last row changes no state."""
    streams = StreamPool(made("tdt"), 9)
    slots = [streams.open() for _ in range(9)]
    for _ in range(2):
        streams.step(slots, torch.randn(9, 8, 4, device="cuda"))

    def states() -> list[torch.Tensor]:
        tensors = (*streams._encoder[:2], *streams._encoder.hidden, *streams._search)
        return [tensor.clone() for tensor in tensors if tensor is not None]

    for some in (slots[2:5], slots[:5]):
        others = torch.tensor([slot for slot in slots if slot not in some], device="cuda")
        for _ in range(3):
            before = states()
            streams.step(some, torch.randn(len(some), 8, 4, device="cuda"))
            for new, old in zip(states(), before, strict=True):
                assert torch.equal(new[others], old[others])
            assert not torch.equal(streams._encoder.hidden[0], before[2])
    assert [len(graph.chunk) for graph in graphs(streams)] == [9, 3, 6]


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_types(weights: torch.dtype) -> None:
    """Weights in float32 under autocast, whose copies do not outlive a step, and in 16 bits. Replays find the same
    bits, whatever has become of free memory."""
    model = made("lstm").to(weights)
    draw = torch.Generator().manual_seed(0)
    chunks = [torch.randn(5, 8, 4, generator=draw).cuda().to(weights) for _ in range(8)]
    runs: list[Any] = []
    for slots in (5, 6, 5):
        with torch.autocast("cuda", torch.bfloat16, enabled=weights == torch.float32):
            streams = StreamPool(model, slots)
            rows = sorted(streams.open() for _ in range(slots))[:5]
        found = []
        for chunk in chunks:
            with torch.autocast("cuda", torch.bfloat16, enabled=weights == torch.float32):
                found.append(list(streams.step(rows, chunk)))
            torch.full((2**22,), torch.nan, device="cuda")
        assert len(graphs(streams)) == 1
        runs.append(found)
    assert runs[0] == runs[2]
    scores = [[row.score for found in run for row in found] for run in runs]
    assert scores[1] == pytest.approx(scores[0], rel=0.05, abs=0.5)
    assert sum(len(row.tokens) for found in runs[0] for row in found) > 5


def test_hooks_are_called() -> None:
    """Each time: such an encoder is in no graph, nor is one of another class."""
    model = made("lstm")
    calls = []
    model.encoder.rnn.register_forward_hook(lambda *_: calls.append(1))
    streams = StreamPool(model, 1)
    slot = streams.open()
    for _ in range(4):
        streams.step([slot], torch.randn(1, 8, 4, device="cuda"))
    assert len(calls) == 4

    class Own(Encoder):
        pass

    other = made("lstm")
    other.encoder.__class__ = Own
    assert StreamPool(other, 1)._captured is None


def test_what_cannot_be_captured_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later calls find the GPU as it was."""
    model = made("lstm")
    streams = StreamPool(model, 1)
    slot = streams.open()
    streams.step([slot], torch.randn(1, 8, 4, device="cuda"))
    layers = Encoder.layers

    def waits(self: Encoder, x: torch.Tensor, *rest: Any) -> Any:
        float(x.sum())
        return layers(self, x, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "layers", waits)
        with pytest.raises(RuntimeError):
            streams.step([slot], torch.randn(1, 8, 4, device="cuda"))
    come_and_go(model, StreamPool(model, 7, max_symbols=3))


def test_a_graph_in_a_cycle_does_not_end_a_capture() -> None:
    x, old, graph = torch.zeros(3, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    thresholds = gc.get_threshold()
    try:
        with torch.cuda.stream(stream):
            with capture_into(old):
                x.add_(1)
            gc.set_threshold(0)  # no collection before the capture
            cycle: list[Any] = [old]
            cycle.append(cycle)
            del old, cycle
            with capture_into(graph):
                gc.set_threshold(1)  # and one with almost each object during it
                _ = [[] for _ in range(1000)]
                x.add_(1)
        graph.replay()
        assert x.tolist() == [1, 1, 1]
    finally:
        gc.set_threshold(*thresholds)
