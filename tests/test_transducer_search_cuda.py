"""prnn.transducer_search on a GPU: as the slow search, whole and as streams."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_transducer_search import DURATIONS, PREDICTORS, V, assert_close, frames, modules, rows, slow
from torch import Tensor

import prnn
from prnn.transducer import PhraseBias
from prnn.transducer.hypothesis import Decoder
from prnn.transducer.steps import search_by_steps

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.xdist_group("gpu"),
]


def on_gpu(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: part.cuda() if isinstance(part, torch.nn.Module) else part for name, part in parts.items()}


@pytest.mark.filterwarnings("ignore:prnn. not the persistent kernels")  # of double
@pytest.mark.parametrize("durations", DURATIONS)
@pytest.mark.parametrize("predictor", PREDICTORS)
def test_as_the_slow_search(predictor: str, durations: str) -> None:
    """In float64, which libprnn leaves to the steps."""
    x, lengths = frames(4, 15), torch.tensor([15, 0, 1, 9])
    expected = [slow(x[n, :length], modules(predictor, DURATIONS[durations])) for n, length in enumerate(lengths)]
    parts = on_gpu(modules(predictor, DURATIONS[durations]))
    for count in (4, 3):
        found = rows(prnn.transducer_search(x[:count].cuda(), lengths[:count], **parts))
        for n in range(count):
            assert_close(found[n], expected[n])
    state, symbols = None, [[] for _ in range(4)]
    for begin, end in ((0, 4), (4, 5), (5, 15)):
        result = prnn.transducer_search(
            x[:, begin:end].cuda(), (lengths - begin).clamp(0, end - begin), state=state, **parts
        )
        state = result.state
        for n, hypothesis in enumerate(result.hypotheses()):
            symbols[n] += hypothesis.tokens
    assert symbols == [f.symbols for f in expected]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("durations", DURATIONS)
@pytest.mark.parametrize("predictor", PREDICTORS)
def test_float32(predictor: str, durations: str, known: bool) -> None:
    """Modules that libprnn knows and others."""
    x = frames(5, 20, torch.float32)
    parts = modules(predictor, DURATIONS[durations], known, torch.float32)
    expected = [slow(x[n], parts) for n in range(5)]
    bias = PhraseBias([[1, 2], [3, 3]], 3.0, 13)
    biased = [slow(x[n], parts, bias=bias) for n in range(5)]
    parts = on_gpu(parts)
    for found, wanted in zip(rows(prnn.transducer_search(x.cuda(), **parts)), expected, strict=True):
        assert_close(found, wanted, 1e-4)
    for found, wanted in zip(rows(prnn.transducer_search(x.cuda(), bias=bias, **parts)), biased, strict=True):
        assert_close(found, wanted, 1e-4)


def test_autocast() -> None:
    x, parts = frames(3, 9, torch.float32).cuda(), on_gpu(modules("lstm", dtype=torch.float32, known=False))
    with torch.autocast("cuda", torch.bfloat16):
        first, second = (prnn.transducer_search(x, **parts).hypotheses() for _ in range(2))
    assert first == second
    assert prnn.transducer_search(x, **parts).symbols.shape == (3, 72)


def test_modules_that_wait_for_the_gpu() -> None:
    """They are called step by step, and what comes after finds the GPU as it was."""
    parts = on_gpu(modules("lstm", (), False, torch.float32))
    x = frames(5, 60, torch.float32).cuda()
    wanted = prnn.transducer_search(x, **parts)

    class Waiting(type(parts["joiner"])):  # type: ignore[misc]
        def all_log_probs(self, *arguments: Any) -> Any:
            found = super().all_log_probs(*arguments)
            assert bool(found[0].isfinite().all())  # looks at numbers, which no graph can hold
            return found

    parts["joiner"].__class__ = Waiting
    for _ in range(2):
        for found, row in zip(rows(prnn.transducer_search(x, **parts)), rows(wanted), strict=True):
            assert_close(found, row, 1e-4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
    graph.replay()
    assert torch.equal(y, x + 1)
    assert torch.rand(3, device="cuda").isfinite().all()


@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize("biased", [False, True], ids=["", "biased"])
@pytest.mark.parametrize("durations", DURATIONS)
@pytest.mark.parametrize("predictor", PREDICTORS)
def test_captured_steps(predictor: str, durations: str, biased: bool, autocast: bool) -> None:
    """Steps replayed from a graph find what the modules' calls find, on any stream, and the same bits each time."""
    parts = on_gpu(modules(predictor, DURATIONS[durations], False, torch.float32))
    bias = PhraseBias([[1, 2], [3, 3]], 3.0, V) if biased else None
    decoder = Decoder.of(parts["predictor"].eval(), parts["joiner"], 0, parts["durations"], bias)
    x, lengths = frames(5, 60, torch.float32).cuda(), torch.tensor([60, 0, 33, 1, 60]).cuda()
    stream = torch.cuda.Stream()

    def search(captures: bool) -> tuple[Any, Any]:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            begun = prnn.transducer_search(x[:, :0], bias=bias, **parts).state.search
            encoder = parts["joiner"].project_encoder(x)
            return search_by_steps(decoder, encoder, lengths, 3, begun, captures)

    eager, first, second = search(False), search(True), search(True)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        third = search(True)
    torch.cuda.synchronize()
    assert all(len(row.symbols) > 8 for row in rows(first[0])[::4])
    if not autocast:  # in bfloat16 the kernels of eager calls and those of captured ones may find other symbols
        for found, wanted in zip(rows(first[0]), rows(eager[0]), strict=True):
            assert_close(found, wanted, 1e-4)
    for other in (second, third):
        for one, two in zip((*other[0], *other[1].predictor), (*first[0], *first[1].predictor), strict=True):
            assert one is two is None or (isinstance(one, Tensor) and torch.equal(one, two))
