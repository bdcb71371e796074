"""Eager calls of the library on a GPU: the same bits as by the operator, in whatever thread, stream and precision, and
ready to be captured. test_eager_calls.py has what needs no GPU."""

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from eager_case import assert_equal, forget, run_first_calls_by_the_operator, run_in_thread, training_step
from nn_pairs import flat, make, make_states
from test_nn_cuda import graph_of, moved, results_of, why_not
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor
from torch.nn.utils.rnn import pack_padded_sequence

import prnn
from prnn import _C
from prnn._calls import ModuleCalls
from prnn._ops import _layer
from prnn._ops._call import Call

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

BIG = "ignore:prnn. not the persistent kernels"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Returns the calls that were not the operator's."""
    found: list[Call] = []
    seen = threading.local()
    forward, run = Call.forward, ModuleCalls.run

    def spy_forward(call: Call, *rest: Any) -> Any:
        seen.last = call
        return forward(call, *rest)

    def spy_run(self: ModuleCalls, *rest: Any) -> Any:
        results = run(self, *rest)
        found.append(seen.last)  # before it, the first of a size may have run others
        return results

    monkeypatch.setattr(Call, "forward", spy_forward)
    monkeypatch.setattr(ModuleCalls, "run", spy_run)
    run_first_calls_by_the_operator(monkeypatch)
    return found


def layer_and_data(
    cell: str = "LSTM", steps: int = 6, batch: int | None = 5, has_states: bool = True, **options: Any
) -> tuple[Any, Tensor, Any]:
    torch.manual_seed(2)
    module: Any = make(prnn.nn, cell, 24, 40, **options)
    shape = (steps, 24) if batch is None else (batch, steps, 24) if module.batch_first else (steps, batch, 24)
    dtype = module.weight_hh_l0.dtype
    x = torch.randn(shape, dtype=dtype, device="cuda", requires_grad=True)
    states = moved(make_states(module, batch), dtype) if has_states else None
    return module.cuda(), x, states


# With backend="best" the operator, which traces call, and a small eager call may be served by different kernels.
OPTIONS: dict[str, dict[str, Any]] = {
    "persistent": {"backend": "persistent"},
    "cudnn": {"backend": "cudnn", "bias": False, "batch_first": True},
    "stack": {"num_layers": 2, "bidirectional": True, "backend": "persistent"},
    "half": {"dtype": torch.float16, "batch_first": True},
    "bfloat16": {"dtype": torch.bfloat16, "num_layers": 2},
    "double": {"dtype": torch.float64},
}


@pytest.mark.filterwarnings(BIG)  # of double
@pytest.mark.parametrize("has_states", [False, True], ids=["zeros", "states"])
@pytest.mark.parametrize("batch", [None, 5])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
def test_the_same_bits(
    cell: str, options: dict[str, Any], batch: int | None, has_states: bool, calls: list[Call]
) -> None:
    for steps in (6, 20):
        module, x, states = layer_and_data(cell, steps, batch, has_states, **options)
        with torch.no_grad():
            assert_equal(*(flat(module(x, states)) for _ in range(2)))
        forget(module)
        assert_equal(*(training_step(module, x, states) for _ in range(2)))
    assert len(calls) == 4


@pytest.mark.filterwarnings(BIG)  # of double
@pytest.mark.parametrize("lengths", [[6, 6, 5, 2, 1], [3, 6, 1, 6, 4], [20, 1, 7, 7, 2]], ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
def test_packed_the_same_bits(cell: str, options: dict[str, Any], lengths: list[int], calls: list[Call]) -> None:
    module, x, states = layer_and_data(cell, max(lengths), **options)
    packed = pack_padded_sequence(x.detach(), torch.tensor(lengths), module.batch_first, enforce_sorted=False)
    packed = packed._replace(data=packed.data.requires_grad_())
    leaves = [packed.data, *flat(states), *module.parameters()]

    def step() -> list[Tensor]:
        results = flat(module(packed, states))
        loss = sum((i + 1) * value.double().square().sum() for i, value in enumerate(results))
        first, second = (torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(2))
        assert_equal(list(first), list(second))
        return [value.detach() for value in results] + list(first)

    with torch.no_grad():
        assert_equal(*(flat(module(packed, states)) for _ in range(2)))
    forget(module)
    expected = step()
    assert_equal(step(), expected)
    found: list[Tensor] = []
    run_in_thread(lambda: found.extend(step()))
    assert_equal(found, expected)
    assert len(calls) == 3


@pytest.mark.parametrize(("layers", "steps"), [(1, 70), (2, 6), (1, 300)])
@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
def test_first_calls_have_the_bits_of_others(cell: str, layers: int, steps: int) -> None:
    module = make(prnn.nn, cell, 256, 256, num_layers=layers).cuda()
    x = torch.randn(steps, 3, 256, device="cuda", requires_grad=True)
    first = training_step(module, x, None)
    for _ in range(2):
        assert_equal(training_step(module, x, None), first)


def test_a_projection(calls: list[Call]) -> None:
    module, x, states = layer_and_data(num_layers=2, proj_size=16)
    assert_equal(*(training_step(module, x, states) for _ in range(2)))
    assert len(calls) == 1


@pytest.mark.parametrize("backend", ["persistent", "cudnn"])
def test_states_that_are_not_given_and_many(backend: str, calls: list[Call]) -> None:
    """cuDNN's gradients of weights then begin with zeros."""
    module, x, _ = layer_and_data("GRU", 3, 300, False, backend=backend)
    assert_equal(*(training_step(module, x, None) for _ in range(2)))
    assert len(calls) == 1


@pytest.mark.parametrize("backend", ["persistent", "cudnn"])
def test_gradients_of_some_and_retained_graphs(backend: str, calls: list[Call]) -> None:
    module, x, states = layer_and_data(num_layers=2, backend=backend)
    everything = [x, *states, *module.parameters()]
    for places in ([0], [1], [3, 5], [2, len(everything) - 1]):
        for place, leaf in enumerate(everything):
            leaf.requires_grad_(place in places)
        forget(module)
        assert_equal(*(training_step(module, x, states) for _ in range(2)))
    for leaf in everything:
        leaf.requires_grad_()
    expected = training_step(module, x, states)
    results = flat(module(x, states))
    loss = sum((i + 1) * value.double().square().sum() for i, value in enumerate(results))
    for _ in range(3):
        assert_equal(list(torch.autograd.grad(loss, everything, retain_graph=True)), expected[3:])
    with torch.autograd.graph.save_on_cpu():
        assert_equal(training_step(module, x, states), expected)
    assert len(calls) == 7
    with torch.no_grad():
        module.weight_hh_l0.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("saved", ["x", "cpu"])
def test_a_gradient_that_somebody_else_asks_for(saved: str, calls: list[Call]) -> None:
    module, x, states = layer_and_data()
    module(x, states)
    if saved == "cpu":  # data there, weights where they were
        unpack = lambda tensor: tensor.cpu() if tensor.dim() == 3 else tensor  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
            output = module(x, states)[0]
        with pytest.raises(ValueError, match="a weight has dtype"):
            output.sum().backward()
    else:
        gradient = torch.autograd.grad(module(x, states)[0].square().sum(), [x], create_graph=True)[0]
        with pytest.raises(prnn.NotSupportedError, match="differentiated once more"):
            gradient.sum().backward()
    assert len(calls) == 1


def test_other_streams_and_threads(calls: list[Call]) -> None:
    """Long enough for a call on another stream to come too early."""
    module, x, states = layer_and_data(steps=500)
    expected = training_step(module, x, states)
    found: list[list[Tensor]] = []

    def run_late() -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                late = torch.full_like(x, torch.nan)
                torch.cuda._sleep(20_000_000)
                late.copy_(x.detach())
                found.append(training_step(module, late.requires_grad_(), states))
        stream.synchronize()

    run_late()
    run_in_thread(run_late)
    for results in found:
        assert_equal(results, expected)
    assert len(calls) == 4
    assert len(set(map(id, calls))) == 2  # one of each thread


@pytest.mark.parametrize("backend", ["persistent", "cudnn", "best"])
def test_torchs_switch_for_tf32(backend: str, calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    module, x, states = layer_and_data("GRU", 20, backend=backend)
    for allowed in (False, True, False, True):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
        for _ in range(2):  # which finds the size of each switch, too
            results = training_step(module, x, states)
            with monkeypatch.context() as there:
                there.setattr(ModuleCalls, "of_plain", lambda *_: None)
                assert_equal(training_step(module, x, states), results)
        assert calls[-1].stack.math == (_C.TF32_MATH if allowed else _C.DEFAULT_MATH)
    assert len(calls) == 7
    # A backward pass follows the switch at its time.
    output = module(x, states)[0]
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    late = torch.autograd.grad(output.sum(), x)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    forget(module)
    output = module(x, states)[0]
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert torch.equal(late[0], torch.autograd.grad(output.sum(), x)[0])


def test_a_measured_backend(calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured once, whether the first call of a size is looked at in full or not."""
    measured: list[object] = []
    monkeypatch.setattr(_layer._measured, "faster_of", lambda key, both, _: measured.append(key) or max(both))
    module, x, states = layer_and_data("GRU", 7, 3)
    module(x, states)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    for steps in (9, 11, 9, 11):
        given = torch.randn(steps, 3, 24, device="cuda")
        module(given)[0].sum().backward()
        with torch.no_grad():
            module(given)
    assert len(measured) == 4
    assert [call.stack.config.backend for call in calls] == [
        max(_layer.BACKENDS["persistent"], _layer.BACKENDS["cudnn"])
    ] * 8


@pytest.mark.parametrize("backend", ["best", "persistent", "cudnn"])
@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("steps", [4, 40])
def test_a_step_is_captured_after_one_call(cell: str, backend: str, steps: int, calls: list[Call]) -> None:
    module, x, _ = layer_and_data(cell, 3, backend=backend)
    module(x)
    x = torch.randn(steps, 7, 24, device="cuda", requires_grad=True)
    found: list[list[Tensor]] = []

    def capture() -> None:
        graph, captured = graph_of(lambda: results_of(module, x))
        for _ in range(2):
            with torch.no_grad():
                x.normal_()
            graph.replay()
            torch.cuda.synchronize()
            found.append([tensor.clone() for tensor in captured])
            found.append([tensor.detach() for tensor in results_of(module, x)])

    capture()
    assert len(calls) >= 3
    for ours, wanted in zip(found[::2], found[1::2], strict=True):
        for a, b in zip(ours, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_a_warning_is_told_once(calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_layer, "_told", set())
    module, x, _ = layer_and_data("GRU", dtype=torch.float64)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        module(x[:2])  # looked at in full
        assert len(told) == 1
        _layer._told.clear()
        for _ in range(2):
            module(x)
            with torch.no_grad():
                module(x)
    assert len(told) == 2
    assert all("not the persistent kernels" in str(warning.message) for warning in told)
    assert len(calls) == 4


def change_data(module: Any) -> None:
    module.weight_hh_l0.data = module.weight_hh_l0.data * 2


def move(module: Any) -> None:
    module.cpu()
    module.place = torch.full((8000,), torch.nan, device="cuda")
    module.cuda()


def replace(module: Any) -> None:
    module.weight_hh_l0 = torch.nn.Parameter(module.weight_hh_l0.detach() * 2)


@pytest.mark.parametrize("change", [change_data, move, replace])
def test_parameters_that_are_others(change: Callable[[Any], None], calls: list[Call]) -> None:
    module, x, states = layer_and_data(backend="persistent")
    module(x, states)
    change(module)
    other = prnn.nn.LSTM(24, 40, backend="persistent", device="cuda")
    other.load_state_dict(module.state_dict())
    found = training_step(module, x, states)
    assert_equal(training_step(other, x, states), found)
    with torch.no_grad():
        module.flatten_parameters()
    assert_equal(training_step(module, x, states), found)
    assert_equal(training_step(module, x, states), found)
    assert calls


def test_many_threads_at_once(calls: list[Call]) -> None:
    module, x, states = layer_and_data(backend="persistent")
    x, states = x.detach(), tuple(state.detach() for state in states)
    with torch.no_grad():
        expected, again = (module(x, states)[0] for _ in range(2))
    assert torch.equal(expected, again)
    wrong: list[int] = []

    def run() -> None:
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
            for turn in range(50):
                if not torch.equal(module(x, states)[0], expected):
                    wrong.append(turn)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(calls) == 201


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


def test_parameters_reach_another_process_as_copies_and_torchs() -> None:
    module = prnn.nn.LSTM(8, 16, 2, device="cuda")
    reduced = [reduce_tensor(value.clone()) for value in module.state_dict().values()]
    reduced += [reduce_tensor(parameter.data) for parameter in prnn.convert_back(module).parameters()]
    assert len(reduced) == 16
