"""Modules, arguments and comparisons of the tests of eager calls: the same calls by the operator, and a GPU's with the
CPU in its place."""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from nn_pairs import flat, make, make_states
from torch import Tensor

import prnn
from prnn import _called_module, _calls
from prnn._calls import ModuleCalls

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
    ask, run, run_torchs = ModuleCalls.of_plain, ModuleCalls.run, _called_module.run_torchs

    def spy_ask(self: ModuleCalls, module: Any, *arguments: Any) -> Any:
        results = ask(self, module, *arguments)
        if module._calls in (self, None):  # else it has made others, and counted
            calls.append(False)
        return results

    def spy_run(self: ModuleCalls, *arguments: Any) -> Any:
        results = run(self, *arguments)
        calls[-1] = True
        return results

    def spy_torchs(*arguments: Any) -> Any:
        results = run_torchs(*arguments)
        calls[-1] = results is not None
        return results

    monkeypatch.setattr(ModuleCalls, "of_plain", spy_ask)
    monkeypatch.setattr(ModuleCalls, "run", spy_run)
    monkeypatch.setattr(_called_module, "run_torchs", spy_torchs)
    if request.param == "cuda":
        as_on_a_gpu(monkeypatch)
    return calls


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    make = ModuleCalls.__init__

    def init(self: ModuleCalls, *arguments: Any) -> None:
        make(self, *arguments)
        self.is_gpu = True

    monkeypatch.setattr(ModuleCalls, "__init__", init)
    monkeypatch.setattr(_called_module, "_current_gpu", lambda: -1)
    for module in (_called_module, _calls):
        monkeypatch.setattr(module, "_is_capturing", lambda: False)


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
    """In the place of a module's calls, for the next one alone, which is not plain."""

    is_gpu = False

    def of_plain(self, module: Any, *arguments: Any) -> None:
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


def run_in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
