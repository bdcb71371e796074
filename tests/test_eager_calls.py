"""Eager calls of modules: the same bits as by the operator, and a module whose parameters, attributes or arguments are
not what they were is looked at again. A GPU's calls are here with the CPU in its place, and in
test_eager_calls_cuda.py."""

import contextlib
import copy
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from module_changes import CHANGES, change_flat_weights, parametrize
from nn_pairs import CELLS, flat, make, make_states
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils._python_dispatch import TorchDispatchMode

import prnn
from prnn import _calls, _torch_on_cpu
from prnn._calls import ModuleCalls
from prnn._ops import _call
from prnn._ops._call import Call
from prnn._ops._handles import handle, this_thread
from prnn._ops._layer import BACKENDS, Config, Layer

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stack": {"num_layers": 3, "bidirectional": True},
    "no bias": {"bias": False, "batch_first": True},
    "double": {"dtype": torch.float64, "num_layers": 2},
    "half": {"dtype": torch.float16, "bidirectional": True},
    "bfloat16": {"dtype": torch.bfloat16, "batch_first": True},
    "eval": {"num_layers": 2, "dropout": 0.5},
    "heads": {"num_layers": 2, "heads": 2},
}


@pytest.fixture(params=["cpu", "cuda"])
def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call that may be one of these, whether it was."""
    calls: list[bool] = []
    run = ModuleCalls.run

    def spy(self: ModuleCalls, module: Any, *arguments: Any) -> Any:
        results = run(self, module, *arguments)
        if module._calls in (self, None):  # else it has made others, and counted
            calls.append(results is not None)
        return results

    monkeypatch.setattr(ModuleCalls, "run", spy)
    if request.param == "cuda":
        as_on_a_gpu(monkeypatch)
    return calls


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    make = ModuleCalls.__init__

    def init(self: ModuleCalls, *arguments: Any) -> None:
        make(self, *arguments)
        self.is_gpu = True

    monkeypatch.setattr(ModuleCalls, "__init__", init)
    monkeypatch.setattr(_calls, "_current_gpu", lambda: -1)
    monkeypatch.setattr(_calls, "_is_capturing", lambda: False)


def small(cell: str = "LSTM", **options: Any) -> Any:
    torch.manual_seed(1)
    module = make(prnn.nn, cell, 6, 8, **options)
    return module.eval() if options.get("dropout") else module


def data_of(module: Any, steps: int = 4, batch: int | None = 3, has_states: bool = True) -> tuple[Tensor, Any]:
    shape = (steps, 6) if batch is None else (batch, steps, 6) if module.batch_first else (steps, batch, 6)
    x = torch.randn(shape, dtype=module.weight_hh_l0.dtype, requires_grad=True)
    return x, make_states(module, batch) if has_states else None


def training_step(module: Any, x: Tensor, states: Any, **options: Any) -> list[Tensor]:
    """Results, and the gradients of what wants one."""
    results = flat(module(x, states))
    leaves = [leaf for leaf in (x, *flat(() if states is None else states), *module.parameters()) if leaf.requires_grad]
    loss = sum((i + 1) * value.double().square().sum() for i, value in enumerate(results))
    return [value.detach() for value in results] + list(torch.autograd.grad(loss, leaves, **options))


_by_the_operator: weakref.WeakSet[Any] = weakref.WeakSet()  # modules whose last call was


class ByTheOperator:
    """In the place of a module's calls, for the next one alone."""

    def run(self, module: Any, *arguments: Any) -> None:
        vars(module).pop("_calls", None)
        _by_the_operator.add(module)


def forget(module: Any) -> None:
    """The next call is the operator's, and the one after is not."""
    vars(module)["_calls"] = ByTheOperator()


def run_first_calls_by_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each module's first call, and the first after a change of it: the next one makes its calls."""
    make_calls = ModuleCalls.of

    def make(module: Any) -> Any:
        if module in _by_the_operator:
            _by_the_operator.discard(module)
            return make_calls(module)
        return ByTheOperator()

    monkeypatch.setattr(ModuleCalls, "of", make)


def assert_equal(a: list[Tensor], b: list[Tensor]) -> None:
    for one, other in zip(a, b, strict=True):
        assert torch.equal(one, other)
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())


@pytest.mark.parametrize("has_states", [False, True], ids=["zeros", "states"])
@pytest.mark.parametrize("batch", [None, 1, 3])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("cell", CELLS)
def test_the_same_bits(
    cell: str, options: dict[str, Any], batch: int | None, has_states: bool, served: list[bool]
) -> None:
    module = small(cell, **options)
    for steps in (4, 1):
        x, states = data_of(module, steps, batch, has_states)
        forget(module)
        with torch.no_grad():
            assert_equal(*(flat(module(x, states)) for _ in range(2)))
        forget(module)
        assert_equal(*(training_step(module, x, states) for _ in range(2)))
    assert served == [True] * 4


@pytest.mark.parametrize("has_states", [False, True], ids=["zeros", "states"])
@pytest.mark.parametrize("lengths", [[4, 3, 1], [2, 4, 3], [1, 1, 1]], ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("cell", CELLS)
def test_packed_the_same_bits(
    cell: str, options: dict[str, Any], lengths: list[int], has_states: bool, served: list[bool]
) -> None:
    module = small(cell, **options)
    x, states = data_of(module, has_states=has_states)

    def step(**options: Any) -> list[Tensor]:
        packed = pack_padded_sequence(x, torch.tensor(lengths), module.batch_first, enforce_sorted=False)
        results = module(packed, states)
        assert type(results[0]) is PackedSequence
        for ours, given in zip(results[0][1:], packed[1:], strict=True):
            assert ours is given or torch.equal(ours, given)
        leaves = [x, *flat(() if states is None else states), *module.parameters()]
        loss = sum((i + 1) * value.double().square().sum() for i, value in enumerate(flat(results)))
        gradients = torch.autograd.grad(loss, leaves, retain_graph=True)
        if options:  # over the retained graph, which the short way does not serve
            gradients = torch.autograd.grad(loss, leaves)
        return [value.detach() for value in flat(results)] + list(gradients)

    forget(module)
    expected = step()
    for again in ({}, {"twice": True}):
        for found, wanted in zip(step(**again), expected, strict=True):
            assert torch.equal(found, wanted)
    assert served == [True, True]


def test_packed_arguments_that_are_wrong(served: list[bool]) -> None:
    module = small()
    forget(module)
    good = pack_padded_sequence(torch.randn(4, 3, 6), torch.tensor([4, 3, 1]))
    module(good)
    states = torch.zeros(1, 3, 8), torch.zeros(1, 3, 8)
    assert torch.equal(module(good, states)[0].data, module(good)[0].data)
    assert served == [True, True]
    sizes = good.batch_sizes
    for packed, given, message in (
        (PackedSequence(torch.randn(8, 5), sizes), None, "input has 5 features"),
        (PackedSequence(torch.randn(7, 6), sizes), None, "batch_sizes add up to 8"),
        (PackedSequence(torch.randn(8, 6), sizes.flip(0)), None, "must not grow"),
        (PackedSequence(torch.randn(8, 6).double(), sizes), None, "float64"),
        (good, (states[0][:, :2], states[1]), r"hx\[0\] has shape"),
        (PackedSequence(torch.randn(0, 6), sizes[:0]), None, "input has 0 timesteps"),
        (PackedSequence(good.data, sizes, torch.tensor([1, 0])), states, r"hx\[0\] has shape"),
    ):
        with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
            module(packed, given)


@pytest.mark.parametrize("options", [{"proj_size": 3}, {}], ids=str)
def test_gradients_of_some(options: dict[str, int], served: list[bool]) -> None:
    module = small(num_layers=2, **options)
    x, states = data_of(module)
    everything = [x, *states, *module.parameters()]
    for places in ([0], [1], [2], [3, 5], [2, len(everything) - 1]):
        for place, leaf in enumerate(everything):
            leaf.requires_grad_(place in places)
        forget(module)
        assert_equal(*(training_step(module, x, states) for _ in range(2)))
    assert served == [True] * 5
    with torch.inference_mode():
        assert not module(x, states)[0].requires_grad
    for leaf in everything:
        leaf.requires_grad_(False)
    assert not module(x, states)[0].requires_grad
    assert served == [True] * 7


def test_one_output_has_a_gradient(served: list[bool]) -> None:
    module = small(num_layers=2)
    x, states = data_of(module)
    for index in range(3):
        forget(module)
        results = []
        for _ in range(2):
            loss = flat(module(x, states))[index].sum()
            results.append(list(torch.autograd.grad(loss, [x, *states, *module.parameters()])))
        assert_equal(*results)
    assert served == [True] * 3


def test_layouts_of_arguments(served: list[bool]) -> None:
    module = small(num_layers=2)
    forget(module)
    x, states = data_of(module)
    expected = training_step(module, x, states)
    turned = torch.randn(6, 3, 4).permute(2, 1, 0).copy_(x).detach().requires_grad_()
    others = tuple(torch.randn(8, 3, 2).permute(2, 1, 0).copy_(s).detach().requires_grad_() for s in states)
    assert not any(value.is_contiguous() for value in (turned, *others))
    found = training_step(module, turned, others)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
    parameters = [torch.nn.Parameter(value.detach()) for value in (x, *states)]
    assert_equal(training_step(module, parameters[0], tuple(parameters[1:])), expected)
    assert served == [True, True]


@pytest.mark.parametrize("cell", CELLS)
def test_retained_and_differentiable_graphs(cell: str, served: list[bool]) -> None:
    module = small(cell, num_layers=2)
    x, states = data_of(module)
    expected = training_step(module, x, states)
    output = module(x, states)[0]
    for _ in range(3):
        assert_equal(*(list(torch.autograd.grad(output.sum(), [x], retain_graph=True)) for _ in range(2)))
    assert_equal(training_step(module, x, states, retain_graph=True), expected)
    gradient = torch.autograd.grad(module(x, states)[0].square().sum(), [x], create_graph=True)[0]
    with pytest.raises(prnn.NotSupportedError, match="differentiated once more"):
        gradient.sum().backward()
    given = torch.randn(2, *output.shape)
    together = torch.autograd.grad(module(x, states)[0], [x], given, is_grads_batched=True)[0]
    for one, found in zip(given, together, strict=True):
        torch.testing.assert_close(torch.autograd.grad(module(x, states)[0], [x], one)[0], found)
    assert all(served)


def test_saved_tensors_that_were_elsewhere(served: list[bool]) -> None:
    module = small(num_layers=2)
    forget(module)
    x, states = data_of(module)
    expected = training_step(module, x, states)
    with torch.autograd.graph.save_on_cpu():
        found = training_step(module, x, states)
    assert_equal(found, expected)

    for dimensions in (2, 3):  # weights, data

        def double(saved: Tensor, dimensions: int = dimensions) -> Tensor:
            return saved.double() if saved.dim() == dimensions else saved

        hooks = torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, double)
        with hooks, pytest.raises(ValueError, match="a weight has dtype"):
            training_step(module, x, states)
    assert served == [True] * 3


def test_weights_that_are_elsewhere_when_the_backward_pass_comes(served: list[bool]) -> None:
    """Of a graph the values then count."""
    module = small(num_layers=2)
    forget(module)
    x, states = data_of(module)
    outputs = [module(x, states)[0] for _ in range(2)]
    for parameter in module.parameters():
        parameter.data = parameter.data * 2
    assert_equal(*(list(torch.autograd.grad(output.sum(), [x, *module.parameters()])) for output in outputs))
    assert served == [True]


class Operators(TorchDispatchMode):
    """Their names, of all calls that the dispatcher sees."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def test_a_backward_pass_that_somebody_looks_at(served: list[bool]) -> None:
    module = small(num_layers=2)
    forget(module)
    x, states = data_of(module)
    expected = training_step(module, x, states)
    results = flat(module(x, states))
    loss = sum((i + 1) * value.double().square().sum() for i, value in enumerate(results))
    with Operators() as operators:
        found = torch.autograd.grad(loss, [x, *states, *module.parameters()])
    assert_equal(list(found), expected[3:])
    assert "prnn.rnn_backward.default" in operators.names
    with Operators() as operators:
        module(x, states)
    assert "prnn.rnn.default" in operators.names
    assert served == [True]


def test_another_thread(served: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    module = small(num_layers=2)
    forget(module)
    x, states = data_of(module)
    expected = training_step(module, x, states)
    found: list[list[Tensor]] = []
    passes: list[str] = []

    def spied(name: str) -> Callable[..., Any]:
        run = getattr(Call, name)

        def spy(call: Call, *rest: Any) -> Any:
            assert call.thread is this_thread.token
            passes.append(name)
            return run(call, *rest)

        return spy

    for name in ("forward", "backward"):
        monkeypatch.setattr(Call, name, spied(name))
    run_in_thread(lambda: found.append(training_step(module, x, states)))
    output = flat(module(x, states))
    loss = sum((i + 1) * value.double().square().sum() for i, value in enumerate(output))
    leaves = [x, *states, *module.parameters()]
    run_in_thread(lambda: found.append([*(value.detach() for value in output), *torch.autograd.grad(loss, leaves)]))
    assert_equal(found[0], expected)
    assert_equal(found[1], expected)
    assert served == [True, True]
    assert passes == ["forward", "backward"] * 2


def run_in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_what_a_gpus_calls_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu(monkeypatch)
    module = small()
    x, states = data_of(module)
    expected = module(x, states)[0]
    prepared: list[bool] = []
    prepare = _calls.prepare
    monkeypatch.setattr(_calls, "prepare", lambda *given: (prepared.append(True), prepare(*given))[1])
    for is_captured in (True, False, True):  # a captured call may be another one
        monkeypatch.setattr(_calls, "_is_capturing", lambda value=is_captured: value)
        assert torch.equal(module(x, states)[0], expected)
    assert prepared == [True]
    current = [0]

    @contextlib.contextmanager
    def device(_: object) -> Iterator[None]:
        current.insert(0, -1)
        yield
        current.pop(0)

    monkeypatch.setattr(_calls, "_current_gpu", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", device)
    assert torch.equal(module(x, states)[0], expected)
    assert current == [0]


def test_a_size_is_found_once_for_each_switch_and_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu(monkeypatch)
    switches = {"allows_tf32_rnn": False, "is_benchmark": False}
    for name in switches:
        monkeypatch.setattr(_calls, name, lambda name=name: switches[name])
    monkeypatch.setattr(_calls, "_MOST_SIZES", 7)
    module = small()
    x, _ = data_of(module)
    module(x)
    calls: Any = module._calls
    calls.has_tf32 = True
    for _ in range(2):
        module(x)
        with torch.no_grad():
            module(x)
        module(x[:3])
    assert len(calls.calls) == 3
    for name in switches:
        switches[name] = True
        module(x)
        module(x)
    run_in_thread(lambda: module(x))
    run_in_thread(lambda: module(x))
    assert len(calls.calls) == 7
    module(x[:2])
    assert len(calls.calls) == 1


def test_what_captured_calls_need_is_run_once_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the resident kernels for calls of their own, and cuDNN for those that are captured."""
    as_on_a_gpu(monkeypatch)
    made: list[tuple[int, int, bool]] = []
    step = _call._run_step

    def eager_config(self: Layer, library: object, sizes: Any, *, training: bool) -> tuple[Config, Config]:
        assert library is handle(self.device)
        return self.with_backend(BACKENDS["persistent"]), self.with_backend(BACKENDS["cudnn"])

    def run_step(data: Any, weights: Any, sizes: Any, seed: None, config: Config, training: bool) -> None:
        assert config.backend == BACKENDS["cudnn"]
        made.append((threading.get_ident(), len(sizes), training))
        step(data, weights, sizes, seed, config, training)

    module = small()
    x, _ = data_of(module)
    forget(module)
    module.requires_grad_(False)(x.detach())
    module.requires_grad_()
    monkeypatch.setattr(Layer, "eager_config", eager_config)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(_call, "_run_step", run_step)
    here = threading.get_ident()
    for _ in range(3):
        results = module(x)[0]
    assert made == [(here, 4, True)]
    results.sum().backward()
    assert made == [(here, 4, True)]
    for _ in range(2):
        loss = module(x)[0].sum()
        run_in_thread(loss.backward)
    assert len(made) == 3
    assert here not in [thread for thread, *_ in made[1:]]
    with torch.no_grad():
        module(x)
        module(x)
    assert made[3:] == [(here, 4, False)]


def test_calls_of_the_operator(served: list[bool]) -> None:
    module = small(dtype=torch.float64)
    x, states = data_of(module)
    module(x[:, :0])
    torch.func.vmap(lambda some: module(some)[0])(torch.stack([x, x]))
    with torch.autograd.forward_ad.dual_level():
        module(x)
    negative = torch.complex(x, x).detach().conj().imag
    assert negative.is_neg()
    expected = module(negative)[0]
    nested = torch.nested.nested_tensor([x[0].detach(), x[1].detach()])
    for value in (x[None], x[0, 0]):
        with pytest.raises(ValueError, match="it must have 3, or 2 if unbatched"):
            module(value)
    bad = ((x.float(), ValueError), (x[..., :5], ValueError), (x[:0], ValueError), (x.to("meta"), ValueError))
    for argument, error in (*bad, (x.detach().to_sparse(), TypeError), (nested, TypeError), ([x], TypeError)):
        with pytest.raises(error):
            module(argument)
    for hx in ((states[0], x), (states[0].float(), None), (torch.zeros(1, 2, 8).double(), None)):
        with pytest.raises(ValueError, match=r"hx\[.\] has"):
            module(x, hx)
    with pytest.raises(ValueError, match="reset_hx is given"):
        module(x, reset_hx=states)
    with pytest.raises(ValueError, match=r"hx\[0\] has shape"):
        module(x[:, 0], states)
    assert not any(served)
    assert torch.equal(module(-x.detach())[0], expected)
    assert served[-1]


OTHERS: dict[str, dict[str, Any]] = {
    "dropout": {"num_layers": 2, "dropout": 0.5},
    "heads": {"heads": 2, "bidirectional": True},
    "recurrent dropout": {"num_layers": 2, "recurrent_dropout": 0.3, "batch_first": True},
    "zoneout": {"num_layers": 2, "zoneout": 0.3, "recurrent_dropout": 0.2, "dropout": 0.1},
    "plain": {},
}


@pytest.mark.parametrize("layout", ["padded", "lengths", "packed", "one sequence"])
@pytest.mark.parametrize("has_reset", [False, True], ids=["", "reset"])
@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
def test_calls_with_options_have_the_same_bits(
    cell: str, options: dict[str, Any], has_reset: bool, layout: str, served: list[bool]
) -> None:
    module = small(cell, **options).train()
    x, states = data_of(module, batch=None if layout == "one sequence" else 3)
    given: dict[str, Any] = {"lengths": torch.tensor([2, 4, 1])} if layout == "lengths" else {}
    if has_reset:
        shape = (7,) if layout == "packed" else x.shape[:-1]
        given |= {"reset": torch.arange(12)[: torch.Size(shape).numel()].view(shape) % 3 == 0, "reset_hx": states}
    if cell == "LSTM":
        given["return_cells"] = True
    leaves = [x, *flat(states), *module.parameters()]

    def step(dtype: torch.dtype | None = None) -> list[Tensor]:
        torch.manual_seed(5)
        input = x
        if layout == "packed":
            input = pack_padded_sequence(x, [4, 2, 1], module.batch_first)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            results = flat(module(input, states, **given))
        loss = sum((i + 1) * value.double().square().sum() for i, value in enumerate(results))
        first, second = (torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(2))
        assert_equal(list(first), list(second))
        return [value.detach() for value in results] + list(first)

    for dtype in (None, torch.bfloat16):
        forget(module)
        assert_equal(*(step(dtype) for _ in range(2)))
    with torch.no_grad():
        forget(module)
        expected, found = [], []
        for results in (expected, found):
            torch.manual_seed(5)
            results.extend(flat(module(x, states)))
        assert_equal(found, expected)
    assert served == [True] * 3


def test_weights_that_lie_anywhere(served: list[bool]) -> None:
    """Parametrised ones, and those that a subclass puts in the place of its parameters."""
    for change in (parametrize, change_flat_weights):
        module = small(num_layers=2)
        change(module)
        x, states = data_of(module)
        found = []
        for _ in range(2):
            results = flat(module(x, states))
            grads = torch.autograd.grad(sum(value.sum() for value in results), x, retain_graph=True)
            found.append([*(value.detach() for value in results), *grads])
            forget(module)
        assert_equal(*found)
    assert served == [True] * 2


@pytest.mark.parametrize("has_states", [False, True], ids=["zeros", "states"])
@pytest.mark.parametrize("lengths", [[2, 4, 3], [3, 3, 1], [2, 2, 2], [4, 4, 4]], ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("cell", CELLS)
def test_lengths_the_same_bits(
    cell: str, options: dict[str, Any], lengths: list[int], has_states: bool, served: list[bool]
) -> None:
    module = small(cell, **options)
    x, states = data_of(module, has_states=has_states)
    by_time = x.transpose(0, 1) if module.batch_first else x
    with torch.no_grad():
        for n, length in enumerate(lengths):
            by_time[length:, n] = float("nan")

    def step(**given: Any) -> list[Tensor]:
        leaves = [
            leaf for leaf in (x, *flat(() if states is None else states), *module.parameters()) if leaf.requires_grad
        ]
        results = flat(module(x, states, lengths=given["lengths"]))
        loss = sum((i + 1) * value.double().square().sum() for i, value in enumerate(results))
        first, second = (torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(2))
        assert_equal(list(first), list(second))
        return [value.detach() for value in results] + list(first)

    forget(module)
    expected = step(lengths=lengths)
    for form in (lengths, tuple(lengths), torch.tensor(lengths), torch.tensor(lengths, dtype=torch.int32)):
        assert_equal(step(lengths=form), expected)
    found: list[Tensor] = []
    run_in_thread(lambda: found.extend(step(lengths=lengths)))
    assert_equal(found, expected)
    with torch.no_grad():
        results = flat(module(x, states, lengths=lengths))
    assert_equal(results, expected[: len(results)])
    assert served == [True] * 6


def test_wrong_lengths(served: list[bool]) -> None:
    module = small()
    x = torch.randn(4, 3, 6)
    module(x, lengths=[4, 2, 1])
    for lengths, error, message in (
        ([4, 0, 1], ValueError, r"lengths\[1\] is 0; it must lie between 1 and the 4 timesteps"),
        ([4, 2, 5], ValueError, r"lengths\[2\] is 5"),
        ([4, 2, 2**70], ValueError, r"lengths\[2\] is 1180591620717411303424"),
        ([4, 2], ValueError, r"lengths has shape \(2,\)"),
        ([4, 2, True], TypeError, "it must hold integers"),
        ([4, 2, 1.0], TypeError, "it must hold integers"),
        (torch.tensor([4.0, 2.0, 1.0]), TypeError, "it must hold integers"),
        (torch.tensor([4, 2, 1], device="meta"), ValueError, "lengths is on meta"),
    ):
        with pytest.raises(error, match=message):
            module(x, lengths=lengths)
    with pytest.raises(ValueError, match="input has 2 dimensions: one sequence"):
        module(x[:, 0], lengths=[4])
    assert not any(served[1:])


def prnn_frames(call: Callable[[], object]) -> int:
    """Calls of functions of prnn's."""
    count, folder = 0, str(Path(prnn.__file__).parent)

    def on_event(frame: Any, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(folder)

    sys.setprofile(on_event)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def few_calls(cell: str) -> list[tuple[dict[str, Any], dict[str, Any], int]]:
    """Options of a module and of its call, and the most calls of functions that a forward call with gradients makes."""
    reset = torch.zeros(9, 3, dtype=torch.bool)
    found: list[tuple[dict[str, Any], dict[str, Any], int]] = [
        ({}, {}, 14),
        ({}, {"lengths": torch.tensor([9, 2, 5])}, 14),
        ({}, {"reset": reset}, 24),
        ({"heads": 2}, {}, 24),
        ({"dropout": 0.1}, {}, 20),
        ({"recurrent_dropout": 0.1}, {}, 26),
    ]
    return found + ([({}, {"return_cells": True}, 24)] if cell == "LSTM" else [])


@pytest.mark.parametrize("cell", CELLS)
def test_few_calls_of_functions(cell: str) -> None:
    """The host's time is in them."""
    x = torch.randn(9, 3, 6)
    for options, given, most in few_calls(cell):
        module = small(cell, num_layers=2, **options).train()
        for _ in range(2):
            module(x, **given)
        assert prnn_frames(lambda: module(x, **given)) <= most, (options, given)  # noqa: B023


@pytest.mark.parametrize("cell", CELLS)
def test_the_first_call_of_a_size_is_served_as_the_others(cell: str, served: list[bool]) -> None:
    """Also where another kernel would serve a call that is looked at in full."""
    module = small(cell)
    for steps, batch in ((4, 3), (1, None)):
        x, states = data_of(module, steps, batch)
        first = training_step(module, x, states)
        assert_equal(training_step(module, x, states), first)
    module(pack_padded_sequence(x[:, None], [1]), None)
    assert all(served)
    assert len(served) == 5


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_module_is_looked_at_again(change: Callable[[Any], None], served: list[bool]) -> None:
    module = small()
    x, states = data_of(module)
    module(x, states)
    change(module)
    weights = [value.detach().clone() for value in module._packed_weights()]
    found = module(x, states)[0]
    other = small()
    forget(other)
    for parameter, value in zip(other._packed_weights(), weights, strict=True):
        parameter.data.copy_(value)
    assert torch.equal(other(x, states)[0], found)
    for _ in range(2):  # by what is remembered then
        assert torch.equal(module(x, states)[0], found)


def test_shapes_and_types_at_the_same_place(served: list[bool]) -> None:
    module = small().requires_grad_(False)
    x, states = data_of(module)
    module(x, states)
    kept = module.weight_hh_l0.data
    module.weight_hh_l0.data = kept.view(8, 32)
    with pytest.raises(ValueError, match="weight_hh_l0 has shape"):
        module(x, states)
    module.weight_hh_l0.data = kept
    module(x, states)
    module.weight_hh_l0.data = kept.view(torch.int32)
    with pytest.raises(ValueError, match="a weight has dtype"):
        module(x, states)
    assert served[:2] == [True, True]
    assert not any(served[2:])


def test_values_of_parameters_may_change(served: list[bool]) -> None:
    module, other = small(), small()
    x, states = data_of(module)
    forget(other)
    module(x, states)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2)
    other.load_state_dict(module.state_dict())
    assert torch.equal(module(x, states)[0], other(x, states)[0])
    assert served == [True, True]


def test_copies_and_pickles_have_none(served: list[bool]) -> None:
    module = small()
    x, states = data_of(module)
    expected = module(x, states)[0]
    for made in (copy.copy(module), copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert "_calls" not in vars(made)
        assert torch.equal(made(x, states)[0], expected)
    assert served == [True] * 4


def test_dropout_draws_its_masks() -> None:
    module = small(num_layers=2, dropout=0.5).train()
    x, states = data_of(module)
    assert not torch.equal(module(x, states)[0], module(x, states)[0])


@pytest.mark.parametrize("cell", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("served", ["cpu"], indirect=True)
def test_those_in_bfloat16_that_are_torchs(cell: str, served: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bool, int, int]] = []

    def is_faster(
        instructions: str, is_autocast: bool, mode: str, training: bool, hidden: int, steps: int, batch: int
    ) -> bool:
        asked.append((training, steps, batch))
        return steps == 4

    monkeypatch.setattr(_torch_on_cpu, "_is_faster", is_faster)
    for options in ({"num_layers": 2}, {"batch_first": True, "bias": False}):
        ours = small(cell, dtype=torch.bfloat16, **options)
        theirs = make(torch.nn, cell, 6, 8, dtype=torch.bfloat16, **options)
        theirs.load_state_dict(ours.state_dict())
        for has_states in (False, True):
            x, states = data_of(ours, has_states=has_states)
            assert_equal(training_step(ours, x, states), training_step(theirs, x, states))
    assert served == [True] * 4
    assert asked == [(True, 4, 3)] * 4
    with torch.no_grad():
        ours(x[:, :3], states)
    assert asked[-1] == (False, 3, 3)
    persistent = small(cell, dtype=torch.bfloat16, backend="persistent", **options)
    for _ in range(2):
        persistent(x, states)
    assert len(asked) == 5
