"""Eager calls of small layers that torch's operator runs on cuDNN: which they are, and that they are as others."""

import copy
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from eager_case import run_first_calls_by_the_operator
from nn_pairs import CELLS, make, make_states, train_step
from test_nn_cuda import CUDA_CELLS, assert_near, graph_of, moved, on_gpu, results_of, why_not
from torch.multiprocessing.reductions import reduce_tensor

import prnn
from prnn import _torch_on_cuda

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The modes of calls that are torch's, in float32 without tf32."""
    found: list[int] = []
    operator = _torch_on_cuda._cudnn_rnn

    def spy(*arguments: Any) -> Any:
        found.append(arguments[6])
        return operator(*arguments)

    monkeypatch.setattr(_torch_on_cuda, "_cudnn_rnn", spy)
    run_first_calls_by_the_operator(monkeypatch)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    return found


def layers(cell: str, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[torch.nn.Module, torch.nn.Module]:
    """In float64 on the CPU, and on the GPU."""
    torch.manual_seed(3)
    theirs = make(prnn.nn, cell, 20, 32, dtype=torch.float64, **options)
    ours = on_gpu(theirs, dtype)
    ours.backend = "cudnn"
    return theirs, ours


@pytest.mark.parametrize("cell", CUDA_CELLS)
@pytest.mark.parametrize("options", [{}, {"bias": False, "batch_first": True}], ids=str)
@pytest.mark.parametrize("has_states", [False, True])
def test_training_steps(cell: str, options: dict[str, Any], has_states: bool, calls: list[int]) -> None:
    theirs, ours = layers(cell, **options)
    x = torch.randn(9, 9, 20, dtype=torch.float64, requires_grad=True)
    states = make_states(theirs, 9) if has_states else None
    expected = train_step(theirs, dict(theirs.named_parameters()), x, states)
    for _ in range(3):
        inputs = moved(x, torch.float32), moved(states, torch.float32)
        assert_near(train_step(ours, dict(ours.named_parameters()), *inputs), expected, torch.float32)
    assert len(calls) == (0 if cell == "LSTM" else 2)  # the first one is the library's


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"num_layers": 3, "bidirectional": True}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_inference(cell: str, options: dict[str, Any], dtype: torch.dtype, calls: list[int]) -> None:
    theirs, ours = layers(cell, dtype, **options)
    x, states = torch.randn(11, 5, 20, dtype=torch.float64), make_states(theirs, 5, False)
    tolerance = 1e-5 if dtype is torch.float32 else 1e-12
    with torch.no_grad():
        for given in (None, states):
            expected = theirs(x, given)
            on_the_gpu = None if given is None else moved(given, dtype)
            for _ in range(2):
                found = ours(x.to("cuda", dtype), on_the_gpu)
                for ours_, wanted in zip(_flat(found), _flat(expected), strict=True):
                    torch.testing.assert_close(ours_.double().cpu(), wanted, rtol=tolerance, atol=tolerance)
    assert len(calls) == 3


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
def test_gradients_of_no_weight(cell: str, options: dict[str, Any], calls: list[int]) -> None:
    theirs, ours = (module.requires_grad_(False) for module in layers(cell, **options))
    ours.backend = "best"
    x = torch.randn(9, 5, 20, dtype=torch.float64, requires_grad=True)
    states = make_states(theirs, 5)
    expected = train_step(theirs, {}, x, states)
    for _ in range(3):
        assert_near(
            train_step(ours, {}, moved(x, torch.float32), moved(states, torch.float32)), expected, torch.float32
        )
    assert len(calls) == 2  # the first one is the library's


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_one_sequence(cell: str, batch_first: bool, calls: list[int]) -> None:
    theirs, ours = layers(cell, batch_first=batch_first)
    x = torch.randn(11, 20, dtype=torch.float64)
    expected = theirs(x)
    with torch.no_grad():
        for _ in range(3):
            for found, wanted in zip(_flat(ours(x.to("cuda", torch.float32))), _flat(expected), strict=True):
                torch.testing.assert_close(found.double().cpu(), wanted, rtol=1e-5, atol=1e-5)
    assert len(calls) == 2


def _flat(results: Any) -> Iterator[torch.Tensor]:
    output, states = results
    yield output
    yield from states if isinstance(states, tuple) else (states,)


def test_whose_calls_are_the_librarys(calls: list[int]) -> None:
    x = torch.randn(12, 4, 20, device="cuda", requires_grad=True)
    many = torch.randn(12, 65, 20, device="cuda")
    like = {"device": "cuda", "backend": "cudnn"}
    gru = prnn.nn.GRU(20, 32, **like)
    for module, given, options in (
        (prnn.nn.LSTM(20, 32, **like), x, {}),
        (prnn.nn.GRU(20, 32, 2, **like), x, {}),
        (prnn.nn.GRU(20, 300, **like), x, {}),
        (prnn.nn.GRU(20, 32, 2, dropout=0.5, **like), x, {}),
        (gru, many, {}),
        (gru, x, {"lengths": [12, 3, 4, 12]}),
        (gru, x[:, :0], {}),
        (prnn.nn.GRU(20, 32, dtype=torch.float16, **like), x.half(), {}),
        (prnn.nn.GRU(20, 32, device="cuda", backend="persistent"), x, {}),
    ):
        module(given, **options)
    with torch.backends.cudnn.flags(enabled=False):
        gru(x)
    with torch.autocast("cuda"):
        gru(x)
    assert not calls
    gru(x)
    assert calls


@pytest.mark.parametrize("cell", CUDA_CELLS)
@pytest.mark.parametrize("backend", ["best", "cudnn"])
def test_a_step_is_captured_after_one_call(cell: str, backend: str, calls: list[int]) -> None:
    module = make(prnn.nn, cell, 24, 48, device="cuda", backend=backend)
    x = torch.randn(40, 6, 24, device="cuda", requires_grad=True)
    graph, captured = graph_of(lambda: results_of(module, x))
    taken = len(calls)
    for _ in range(3):
        with torch.no_grad():
            x.normal_()
        graph.replay()
        torch.cuda.synchronize()
        assert len(calls) == taken
        for a, b in zip(captured, results_of(module, x), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        taken = len(calls)


def test_captured_in_another_thread() -> None:
    """Whose handle and layers are its own."""
    module = prnn.nn.GRU(24, 48, device="cuda", backend="cudnn")
    x = torch.randn(40, 6, 24, device="cuda")
    expected = results_of(module, x.clone().requires_grad_())
    found: list[torch.Tensor] = []

    def run() -> None:
        # Parameters that no graph of the main thread's stream has.
        again, y = copy.deepcopy(module), x.clone().requires_grad_()
        graph, captured = graph_of(lambda: results_of(again, y))
        graph.replay()
        torch.cuda.synchronize()
        found.extend(tensor.clone() for tensor in captured)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_a_retained_graph_and_some_gradients(calls: list[int]) -> None:
    module = prnn.nn.GRU(24, 48, device="cuda", backend="cudnn")
    module.weight_hh_l0.requires_grad_(False)
    x = torch.randn(40, 6, 24, device="cuda")
    module(x)
    output = module(x)[0]
    wanted = [module.weight_ih_l0, module.bias_hh_l0]
    first, second = (torch.autograd.grad(output.sum(), wanted, retain_graph=True) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        module.weight_ih_l0.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
    assert calls


def test_parameters_that_moved(calls: list[int]) -> None:
    """The packed weights of a layer are found where they are now."""
    module = prnn.nn.RNN(24, 48, device="cuda", backend="cudnn")
    x = torch.randn(40, 6, 24, device="cuda")
    expected = module(x)[0]
    for _ in range(3):
        module.cpu()
        keeps_its_place = torch.full((8000,), torch.nan, device="cuda")
        module.cuda()
        for _ in range(2):
            torch.testing.assert_close(module(x)[0], expected)
        del keeps_its_place
    module.weight_hh_l0 = torch.nn.Parameter(module.weight_hh_l0.detach().clone())  # not packed any more
    taken = len(calls)
    for _ in range(2):
        torch.testing.assert_close(module(x)[0], expected)
    assert len(calls) == taken == 4


def test_weights_live_as_long_as_a_graph_needs_them(calls: list[int]) -> None:
    module = prnn.nn.GRU(24, 48, device="cuda", backend="cudnn")
    x = torch.randn(40, 6, 24, device="cuda", requires_grad=True)
    outputs = [module(x)[0] for _ in range(2)]
    expected, found = outputs
    expected = torch.autograd.grad(expected.sum(), x)
    for parameter in module.parameters():
        parameter.data = torch.full_like(parameter, torch.nan)
    others = [torch.full((size,), torch.nan, device="cuda") for size in range(100, 12000, 100)]
    torch.testing.assert_close(torch.autograd.grad(found.sum(), x), expected, rtol=1e-4, atol=1e-4)
    assert calls
    del others


def test_inference_mode_before_training(calls: list[int]) -> None:
    module, x = prnn.nn.GRU(24, 48, device="cuda", backend="cudnn"), torch.randn(40, 6, 24, device="cuda")
    with torch.inference_mode():
        for _ in range(3):
            module(x)
    module(x)[0].sum().backward()
    assert calls == [3] * 3


def test_a_second_derivative_raises(calls: list[int]) -> None:
    module = prnn.nn.GRU(24, 48, device="cuda", backend="cudnn")
    x = torch.randn(40, 6, 24, device="cuda", requires_grad=True)
    module(x)
    (gradient,) = torch.autograd.grad(module(x)[0].sum(), x, create_graph=True)
    assert calls
    with pytest.raises(RuntimeError, match="cudnn_rnn_backward"):
        gradient.sum().backward()


def test_parameters_reach_another_process_as_torchs() -> None:
    module = prnn.nn.LSTM(8, 16, 2, device="cuda")
    reduced = [reduce_tensor(value.clone()) for value in module.state_dict().values()]
    reduced += [reduce_tensor(parameter.data) for parameter in prnn.convert_back(module).parameters()]
    assert len(reduced) == 16
