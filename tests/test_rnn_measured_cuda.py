"""torch.backends.cudnn.benchmark: backend="best" by measurement, on a GPU."""

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from nn_pairs import make
from test_rnn_cuda import why_not

import prnn
from prnn._ops import _measured
from prnn._ops._handles import DTYPES, handle
from prnn._ops._layer import BACKENDS

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

hidden_sizes = itertools.count(48, 8)  # a choice stays: each test has layers of its own


@pytest.fixture(autouse=True)
def benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)


@pytest.fixture(params=["persistent", "cudnn"])
def winner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend that takes the least time, so the measurement says; its calls are made all the same."""
    order: Iterator[float] = itertools.cycle((1.0, 2.0) if request.param == "persistent" else (2.0, 1.0))
    real = _measured.replay_time

    def replay_time(call: Callable[[], object]) -> float:
        assert real(call) > 0
        return next(order)

    monkeypatch.setattr(_measured, "replay_time", replay_time)
    return request.param


def results_of(module: torch.nn.Module, *arguments: object, **options: object) -> list[torch.Tensor]:
    x, *rest = arguments
    assert isinstance(x, torch.Tensor)
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    output = module(x, *rest, **options)[0]
    torch.backends.cudnn.benchmark = False  # which the backward pass does not look at
    weights = torch.linspace(-1, 1, output.numel(), device="cuda").view_as(output).to(output.dtype)
    gradients = torch.autograd.grad(output, [x, *module.parameters()], weights)
    torch.backends.cudnn.benchmark = True
    return [output.detach(), *gradients]


def all_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def trio(cell: str, dtype: torch.dtype, **options: object) -> tuple[torch.nn.Module, dict[str, torch.nn.Module]]:
    """A layer with "best", and those of each backend, with the same weights."""
    hidden = next(hidden_sizes)
    best, *others = (
        make(prnn.nn, cell, hidden, hidden, device="cuda", dtype=dtype, backend=backend, **options)
        for backend in ("best", "persistent", "cudnn")
    )
    for other in others:
        other.load_state_dict(best.state_dict())
    return best, dict(zip(("persistent", "cudnn"), others, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cell", ["GRU", "LSTM"])
def test_calls_go_where_they_were_measured_to_be_faster(cell: str, dtype: torch.dtype, winner: str) -> None:
    """Bit for bit those of the backend, which the other's are not: training, repeated, and inference."""
    best, others = trio(cell, dtype)
    loser = others["cudnn" if winner == "persistent" else "persistent"]
    x = torch.randn(7, 5, best.input_size, device="cuda", dtype=dtype)
    for _ in range(2):
        found = results_of(best, x)
        assert all_equal(found, results_of(others[winner], x))
        assert not all_equal(found, results_of(loser, x))
        with torch.no_grad():
            assert torch.equal(best(x)[0], others[winner](x)[0])
            assert not torch.equal(best(x)[0], loser(x)[0])


def test_compiled_functions_take_the_estimate(winner: str) -> None:
    best, others = trio("LSTM", torch.bfloat16)
    x, count = torch.randn(7, 5, best.input_size, device="cuda", dtype=torch.bfloat16), len(_measured._choices)
    run = torch.compile(best, fullgraph=True, backend="aot_eager")
    found = results_of(run, x)
    assert len(_measured._choices) == count
    best(x)
    assert len(_measured._choices) == count + 1
    assert all_equal(results_of(run, x), found)
    estimate = next(name for name, number in BACKENDS.items() if number == _plan(best, x)["backend"])
    assert all_equal(found, results_of(others[estimate], x))


def _plan(module: prnn.nn.LSTM, x: torch.Tensor) -> dict[str, object]:
    rnn = prnn._C.Rnn(prnn._C.LSTM, DTYPES[x.dtype], module.hidden_size, 1, x.size(2), False)
    return rnn.query(handle(x.device), [x.size(1)] * x.size(0))


@pytest.mark.parametrize("place", ["cuda", "cpu"])
def test_sequences_of_different_lengths(winner: str, place: str) -> None:
    best, others = trio("LSTM", torch.float16)
    x = torch.randn(9, 4, best.input_size, device="cuda", dtype=torch.float16)
    lengths = torch.tensor([3, 9, 1, 7], device=place)
    expected = results_of(others[winner], x, lengths=lengths)
    assert all_equal(results_of(best, x, lengths=lengths), expected)


def test_the_first_call_is_on_the_callers_stream(winner: str) -> None:
    """Long enough for a copy on another stream to come too early."""
    best, others = trio("LSTM", torch.bfloat16)
    x = torch.randn(4000, 3, best.input_size, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        expected = others[winner](x)[0].clone()
        found = best(x)[0].clone()
    assert torch.equal(found, expected)


def test_masks_are_drawn_as_without_a_measurement(winner: str) -> None:
    best, others = trio("GRU", torch.float32, num_layers=2, dropout=0.4)
    x = torch.randn(6, 3, best.input_size, device="cuda")
    found = results_of(best, x)
    assert all_equal(found, results_of(best, x))
    assert all_equal(found, results_of(others[winner], x))


def test_a_measurement_takes_no_memory_and_leaves_no_trace(winner: str) -> None:
    best, _ = trio("LSTM", torch.float32)
    x = torch.randn(80, 6, best.input_size, device="cuda")
    state = torch.cuda.get_rng_state()
    held = []
    for _ in range(3):
        held.append((best(x), torch.cuda.memory_allocated())[1])
    assert held[0] == held[1] == held[2]
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_while_a_graph_is_captured_the_estimate_serves() -> None:
    best, _ = trio("LSTM", torch.bfloat16)
    x = torch.randn(5, 3, best.input_size, device="cuda", dtype=torch.bfloat16)
    graph, count = torch.cuda.CUDAGraph(), len(_measured._choices)
    with torch.no_grad():
        with torch.cuda.graph(graph):
            output = best(x)[0]
        graph.replay()
        assert len(_measured._choices) == count
        torch.testing.assert_close(output, best(x)[0], rtol=0.02, atol=0.02)
    assert len(_measured._choices) == count + 1


def test_the_faster_one_is_found() -> None:
    """One layer has cuDNN well ahead, the other the resident kernels."""
    for hidden, batch, steps, expected in ((1664, 1024, 1, "cudnn"), (512, 4, 12, "persistent")):
        before = set(_measured._choices)
        module = prnn.nn.LSTM(hidden, hidden, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(steps, batch, hidden, device="cuda", dtype=torch.bfloat16)
        for training in (True, False):
            with torch.set_grad_enabled(training):
                module(x)
        keys = set(_measured._choices) - before
        assert {_measured._choices[key] for key in keys} == {BACKENDS[expected]}
        assert len(keys) == 2
