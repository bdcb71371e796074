"""Layers in 16 bits on the CPU: which calls torch's LSTM serves, and that those are torch's to the bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import prnn
from prnn import _half_on_cpu

HALF = [torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def units(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Sets whether the processor has 16-bit units; it has."""

    def found(value: bool) -> None:
        monkeypatch.setattr(_half_on_cpu, "_has_units", lambda dtype: value)

    found(True)
    return found


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call that torch's operators might serve, whether they did."""
    calls: list[bool] = []
    run = _half_on_cpu.run_torchs

    def spy(*arguments: Any) -> Any:
        results = run(*arguments)
        calls.append(results is not None)
        return results

    monkeypatch.setattr(prnn.nn, "run_torchs", spy)
    return calls


def make_pair(cell: str, *sizes: int, **options: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    theirs, ours = getattr(torch.nn, cell)(*sizes, **options), getattr(prnn.nn, cell)(*sizes, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def flat(result: Any) -> list[torch.Tensor]:
    tensors = [result[0]] if isinstance(result[0], torch.Tensor) else [result[0].data]
    return tensors + (list(result[1]) if isinstance(result[1], tuple) else [result[1]])


def step(module: Any, x: Any, state: Any = None) -> list[torch.Tensor]:
    """Results, and the gradients of the parameters."""
    module.zero_grad()
    results = flat(module(x, state))
    sum(result.float().sum() for result in results).backward()
    return results + [parameter.grad for parameter in module.parameters()]


OPTIONS: list[dict[str, Any]] = [{}, {"bias": False}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_few_timesteps_are_torchs(options: dict[str, Any], dtype: torch.dtype, served: list[bool]) -> None:
    theirs, ours = make_pair("LSTM", 3, 4, dtype=dtype, **options)
    x = torch.randn(2, 8, 3, dtype=dtype)
    x = x.transpose(0, 1) if ours.batch_first else x
    state = torch.randn(ours.num_layers * (2 if ours.bidirectional else 1), 8, 4, dtype=dtype)
    for given in (None, (state, state)):
        for mine, reference in zip(step(ours, x, given), step(theirs, x, given), strict=True):
            assert torch.equal(mine, reference)
            assert (mine.dtype, mine.stride()) == (reference.dtype, reference.stride())
    assert served == [True, True]


def test_packed_sequences_and_one_sequence(served: list[bool]) -> None:
    theirs, ours = make_pair("LSTM", 3, 4, dtype=torch.bfloat16)
    packed = pack_padded_sequence(torch.randn(2, 8, 3, dtype=torch.bfloat16), [1, *[2] * 7], enforce_sorted=False)
    for mine, reference in zip(step(ours, packed), step(theirs, packed), strict=True):
        assert torch.equal(mine, reference)
    x = torch.randn(5, 3, dtype=torch.bfloat16)
    with torch.no_grad():
        for mine, reference in zip(flat(ours(x)), flat(theirs(x)), strict=True):
            assert torch.equal(mine, reference)
    assert served == [True, True]


def test_under_autocast(served: list[bool]) -> None:
    theirs, ours = make_pair("LSTM", 3, 4)
    x = torch.randn(2, 8, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for mine, reference in zip(flat(ours(x)), flat(theirs(x)), strict=True):
            assert torch.equal(mine, reference)
            assert mine.dtype == reference.dtype
    assert served == [True]


def test_what_torch_does_not_serve(served: list[bool]) -> None:
    _, ours = make_pair("LSTM", 3, 4, dtype=torch.bfloat16)
    x = torch.randn(2, 8, 3, dtype=torch.bfloat16)
    reset = torch.zeros(2, 8, dtype=torch.bool)
    expected = prnn.nn.LSTM(3, 4, backend="persistent", dtype=torch.bfloat16)
    expected.load_state_dict(ours.state_dict())
    whole = flat(expected(x))
    for result in (ours(x, lengths=[2] * 8), ours(x, reset=reset), ours(x, return_cells=True)):
        for mine, reference in zip(flat(result), whole, strict=True):
            assert torch.equal(mine, reference)
    torch.compile(ours, fullgraph=True, backend="eager")(x)
    assert True not in served
    served.clear()
    torch.func.functional_call(ours, dict(ours.named_parameters()), (x,))
    torch.nn.utils.parametrizations.weight_norm(ours, "weight_hh_l0")
    ours(x)
    prnn.nn.LSTM(3, 4, heads=2, dtype=torch.bfloat16)(x)
    prnn.nn.LSTM(3, 4, proj_size=2, dtype=torch.bfloat16)(x)
    # With plain parameters, a parametrised one, heads, a projection.
    assert served == [True, False, False, False]


def test_functional_call_takes_the_weights_that_are_given() -> None:
    theirs, ours = make_pair("LSTM", 3, 4, dtype=torch.float16)
    x = torch.randn(1, 2, 3, dtype=torch.float16)
    doubled = {name: torch.nn.Parameter(2 * weight.detach()) for name, weight in ours.named_parameters()}
    theirs.load_state_dict(doubled)
    for mine, reference in zip(flat(torch.func.functional_call(ours, doubled, (x,))), flat(theirs(x)), strict=True):
        assert torch.equal(mine, reference)


def test_a_weight_of_another_type_is_refused() -> None:
    _, ours = make_pair("LSTM", 3, 4, dtype=torch.float16)
    ours.bias_hh_l0 = torch.nn.Parameter(ours.bias_hh_l0.float())
    with pytest.raises(ValueError, match=r"a weight has dtype torch\.float32"):
        ours(torch.randn(1, 2, 3, dtype=torch.float16))


def test_no_sequences() -> None:
    _, ours = make_pair("LSTM", 3, 4, dtype=torch.float16)
    assert ours(torch.zeros(2, 0, 3, dtype=torch.float16))[0].shape == (2, 0, 4)


@pytest.mark.parametrize("cell", ["GRU", "RNN"])
def test_cells_that_torch_rounds_after_each_operation(cell: str, served: list[bool]) -> None:
    theirs, ours = make_pair(cell, 64, 64, dtype=torch.bfloat16)
    exact = make_pair(cell, 64, 64)[0].double()
    exact.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 8, 64, dtype=torch.bfloat16)
    wanted = exact(x.double())[0]
    mine, reference = ((module(x)[0].double() - wanted).norm() for module in (ours, theirs))
    assert mine < 0.8 * reference
    assert served == [False]


@pytest.mark.parametrize(
    ("dtype", "hidden", "steps", "batch", "trains", "has_units", "expected"),
    [
        (torch.bfloat16, 512, 100, 32, False, True, True),
        (torch.bfloat16, 512, 100, 8, True, True, True),
        (torch.bfloat16, 512, 100, 7, True, True, False),
        (torch.float16, 128, 20, 32, False, True, False),
        (torch.float16, 128, 2, 32, False, True, True),
        (torch.float16, 128, 3, 32, False, True, False),
        (torch.float16, 16, 4, 2, False, True, True),  # eight rows
        (torch.float16, 512, 21, 4, False, True, True),  # weights that few timesteps share
        (torch.float16, 512, 22, 4, False, True, False),
        (torch.float16, 512, 5, 4, True, True, True),
        (torch.float16, 512, 6, 4, True, True, False),
        (torch.bfloat16, 512, 1, 1, False, False, False),
    ],
)
def test_rule(
    dtype: torch.dtype,
    hidden: int,
    steps: int,
    batch: int,
    trains: bool,
    has_units: bool,
    expected: bool,
    units: Callable[[bool], None],
) -> None:
    units(has_units)
    assert _half_on_cpu._is_faster(dtype, hidden, steps, batch, trains) == expected
