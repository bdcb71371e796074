"""Eager calls of modules: the same bits as by the operator, and a module whose parameters, attributes or arguments are
not what they were is looked at again. A GPU's calls are here with the CPU in its place, and in
test_eager_calls_cuda.py; those with lengths and options in test_eager_calls_lengths.py and _options.py."""

import contextlib
import copy
import itertools
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import eager_case
import pytest
import torch
from eager_case import (
    OPTIONS,
    as_on_a_gpu,
    assert_equal,
    data_of,
    forget,
    run_in_thread,
    small,
    training_step,
)
from module_changes import CHANGES, change_flat_weights, parametrize
from nn_pairs import CELLS, flat, make
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._python_dispatch import TorchDispatchMode

import prnn
from prnn import _called_module, _calls, _torch_on_cpu
from prnn._ops import _call
from prnn._ops._call import Call
from prnn._ops._handles import handle, this_thread
from prnn._ops._layer import BACKENDS, Config, Layer

served = eager_case.served


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("cell", CELLS)
def test_the_same_bits(cell: str, options: dict[str, Any], served: list[bool]) -> None:
    for batch, has_states in itertools.product((None, 1, 3), (False, True)):
        module = small(cell, **options)
        for steps in (4, 1):
            x, states = data_of(module, steps, batch, has_states)
            forget(module)
            with torch.no_grad():
                assert_equal(*(flat(module(x, states)) for _ in range(2)))
            forget(module)
            assert_equal(*(training_step(module, x, states) for _ in range(2)))
        assert served == [True] * 4, (batch, has_states)
        served.clear()


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
    """A graph takes the values of that time."""
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

    monkeypatch.setattr(_called_module, "_current_gpu", lambda: current[0])
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

    def run_step(data: Any, weights: Any, sizes: Any, seed: None, training: bool, config: Config) -> None:
        assert config.backend == BACKENDS["cudnn"]
        made.append((threading.get_ident(), len(sizes), training))
        step(data, weights, sizes, seed, training, config)

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


@pytest.mark.parametrize("cell", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("served", ["cpu"], indirect=True)
def test_those_in_bfloat16_that_are_torchs(cell: str, served: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bool, int, int]] = []

    def is_faster(
        processor: str, is_autocast: bool, mode: str, training: bool, hidden: int, steps: int, batch: int
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
