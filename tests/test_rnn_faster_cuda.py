"""The choice between cuDNN and the resident kernels, and memory, on a GPU."""

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from nn_pairs import make
from test_rnn_cuda import why_not

import prnn
from prnn import _C
from prnn._ops._handles import DTYPES
from prnn._ops._layer import MODES

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")


def batches_around_the_choice(cell: str, hidden: int, dtype: torch.dtype, tf32: bool) -> tuple[int, int]:
    """A batch whose training step is resident, and a larger one whose step goes to cuDNN."""
    rnn = _C.Rnn(MODES["RNN_TANH" if cell == "RNN" else cell], DTYPES[dtype], hidden, 1, hidden, False)
    if tf32:
        rnn.set_math(_C.TF32_MATH)
    backends = [(n, rnn.query(_C.Handle.cuda(), n)["backend"]) for n in (8, 64, 128, 192, 256, 384, 512, 1024, 2048)]
    for (low, before), (high, after) in itertools.pairwise(backends):
        if (before, after) == (_C.PERSISTENT_BACKEND, _C.CUDNN_BACKEND):
            return low, high
    pytest.skip("on this GPU no batch goes to cuDNN, or there is none")


def results_of(
    module: torch.nn.Module, x: torch.Tensor, between: Callable[[], None] = lambda: None, times: int = 1
) -> list[torch.Tensor]:
    """The output, and the gradients of `times` backward passes through one graph."""
    x = x.clone().requires_grad_()
    parameters = [x, *module.parameters()]
    output = module(x)[0]
    between()
    weights = torch.linspace(-1, 1, output.numel(), device="cuda").view_as(output).to(output.dtype)
    for left in reversed(range(times)):
        gradients = torch.autograd.grad(output, parameters, weights, retain_graph=left > 0)
    return [output.detach(), *gradients]


def assert_close_in_norm(found: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float) -> None:
    for a, b in zip(found, expected, strict=True):
        assert (a - b).float().norm() <= tolerance * b.float().norm()


@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])  # at a ReLU's kink, rounding decides about a gradient
@pytest.mark.parametrize(
    ("dtype", "tf32", "tolerance"),
    [(torch.float32, False, 1e-5), (torch.float32, True, 3e-3), (torch.float16, False, 3e-3)],
    ids=["float32", "tf32", "float16"],
)
def test_results_do_not_depend_on_who_is_faster(
    cell: str, dtype: torch.dtype, tf32: bool, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches on both sides of the choice, without a warning; passes that are repeated on one graph."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    ours = make(prnn.nn, cell, 768, 768, device="cuda", dtype=dtype)
    resident = make(prnn.nn, cell, 768, 768, device="cuda", dtype=dtype, backend="persistent")
    resident.load_state_dict(ours.state_dict())
    for batch in batches_around_the_choice(cell, 768, dtype, tf32):
        x = torch.randn(4, batch, 768, device="cuda", dtype=dtype)
        expected = results_of(resident, x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for times in (1, 2):
                assert_close_in_norm(results_of(ours, x, times=times), expected, tolerance)
            with torch.no_grad():
                assert_close_in_norm([ours(x)[0]], expected[:1], tolerance)
        compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
        assert_close_in_norm(results_of(compiled, x), expected, tolerance)


def backend_of(output: torch.Tensor) -> int:
    """The backend of the eager call that the output is of."""
    call: Any = output.grad_fn
    backend: int = call.call.call.stack.config.backend
    return backend


@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
def test_a_small_layer_is_resident_unless_it_is_captured(cell: str) -> None:
    """With one graph captured for training and one for inference, right after the first calls of that size."""
    module = make(prnn.nn, cell, 32, 32, device="cuda")
    x = torch.randn(2, 16, 32, device="cuda")
    eager = results_of(module, x)
    if cell != "RNN":  # in training cuDNN may have these
        assert backend_of(module(x)[0]) == _C.PERSISTENT_BACKEND
    rnn = _C.Rnn(MODES["RNN_TANH" if cell == "RNN" else cell], _C.FLOAT, 32, 1, 32, False)
    rnn.set_math(_C.TF32_MATH)
    chosen = rnn.query(_C.Handle.cuda(), [16, 16])["backend"]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = results_of(module, x)
        assert backend_of(module(x)[0]) == chosen
    graph.replay()
    assert_close_in_norm(captured, eager, 3e-3)
    with torch.no_grad():
        eager = [module(x)[0]]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = [module(x)[0]]
        graph.replay()
    assert_close_in_norm(captured, eager, 3e-3)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("first", [True, False])
def test_the_switch_for_tf32_may_change_before_the_backward_pass(
    first: bool, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a batch that goes to cuDNN in tf32 alone: the reserve space is that of the forward pass's backend."""
    _, batch = batches_around_the_choice("LSTM", 768, torch.float32, True)
    assert batch <= batches_around_the_choice("LSTM", 768, torch.float32, False)[0]
    module = prnn.nn.LSTM(768, 768, device="cuda")
    x = torch.randn(4, batch, 768, device="cuda")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    expected = results_of(module, x)
    run = torch.compile(module, fullgraph=True, backend="aot_eager") if is_compiled else module
    torch.backends.cudnn.allow_tf32 = first
    found = results_of(run, x, between=lambda: setattr(torch.backends.cudnn, "allow_tf32", not first))
    assert_close_in_norm(found, expected, 3e-3)


def test_peak_memory_of_a_training_step_is_not_above_torchs() -> None:
    for cell, dtype, batch in (("LSTM", torch.bfloat16, 64), ("GRU", torch.float32, 32), ("RNN", torch.float16, 64)):
        peaks = []
        for library in (torch.nn, prnn.nn):
            module = make(library, cell, 512, 512, device="cuda", dtype=dtype)
            x = torch.randn(64, batch, 512, device="cuda", dtype=dtype, requires_grad=True)
            dy = torch.randn_like(x)
            for _ in range(2):
                module.zero_grad()
                x.grad = None
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                module(x)[0].backward(dy)
            peaks.append(torch.cuda.max_memory_allocated() - before)
            del module, x, dy
        assert peaks[1] <= peaks[0], (cell, dtype)
