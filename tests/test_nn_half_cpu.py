"""Calls on the CPU that torch's operators serve, in bfloat16, and that those are torch's to the bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import prnn
from prnn import _called_module, _torch_on_cpu


@pytest.fixture(autouse=True)
def units(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets the instruction set of the library's kernels: AMX."""

    def found(value: str) -> None:
        monkeypatch.setattr(_torch_on_cpu, "_processor", lambda: value)

    found("CPU AMX")
    return found


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call that torch's operators might serve, whether they did."""
    calls: list[bool] = []
    run = _torch_on_cpu.run_torchs

    def spy(*arguments: Any) -> Any:
        results = run(*arguments)
        calls.append(results is not None)
        return results

    monkeypatch.setattr(_called_module, "run_torchs", spy)
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


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_many_sequences_are_torchs(options: dict[str, Any], served: list[bool]) -> None:
    dtype = torch.bfloat16
    theirs, ours = make_pair("LSTM", 3, 4, dtype=dtype, **options)
    x = torch.randn(2, 128, 3, dtype=dtype)
    x = x.transpose(0, 1) if ours.batch_first else x
    state = torch.randn(ours.num_layers * (2 if ours.bidirectional else 1), 128, 4, dtype=dtype)
    for given in (None, (state, state)):
        for mine, reference in zip(step(ours, x, given), step(theirs, x, given), strict=True):
            assert torch.equal(mine, reference)
            assert (mine.dtype, mine.stride()) == (reference.dtype, reference.stride())
    assert served == [True, True]


@pytest.mark.parametrize(
    ("cell", "options"),
    [("GRU", {"num_layers": 2}), ("RNN", {"bidirectional": True}), ("RNN", {"nonlinearity": "relu", "bias": False})],
    ids=str,
)
def test_training_of_many_states_is_torchs_on_avx512_bf16(
    cell: str, options: dict[str, Any], served: list[bool], units: Callable[[str], None]
) -> None:
    units("CPU AVX-512 BF16")
    theirs, ours = make_pair(cell, 3, 256, dtype=torch.bfloat16, **options)
    padded = torch.randn(2, 64, 3, dtype=torch.bfloat16)
    state = torch.randn(ours.num_layers * (2 if ours.bidirectional else 1), 64, 256, dtype=torch.bfloat16)
    for x in (padded, pack_padded_sequence(padded, [2] * 60 + [1] * 4)):
        for given in (None, state):
            for mine, reference in zip(step(ours, x, given), step(theirs, x, given), strict=True):
                assert torch.equal(mine, reference)
                assert (mine.dtype, mine.stride()) == (reference.dtype, reference.stride())
    assert served == [True] * 4
    with torch.no_grad():  # of which prnn's is the faster
        ours(padded)
    for parameter in ours.parameters():
        parameter.requires_grad_(False)
    ours(padded)
    assert served == [True] * 4 + [False] * 2
    ours(padded.clone().requires_grad_())
    assert served[-1]


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("with_state", [False, True], ids=["no state", "state"])
def test_under_autocast_on_avx512_bf16(
    cell: str, with_state: bool, served: list[bool], units: Callable[[str], None]
) -> None:
    units("CPU AVX-512 BF16")
    theirs, ours = make_pair(cell, 3, 256)
    x = torch.randn(4, 64, 3)
    state = torch.randn(1, 64, 256)
    given = None if not with_state else (state, state) if cell == "LSTM" else state
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for mine, reference in zip(step(ours, x, given), step(theirs, x, given), strict=True):
            assert torch.equal(mine, reference)
            assert mine.dtype == reference.dtype
    assert served == [True]


def test_packed_sequences_and_one_sequence(served: list[bool]) -> None:
    theirs, ours = make_pair("LSTM", 3, 4, dtype=torch.bfloat16)
    packed = pack_padded_sequence(torch.randn(2, 128, 3, dtype=torch.bfloat16), [1, *[2] * 127], enforce_sorted=False)
    for mine, reference in zip(step(ours, packed), step(theirs, packed), strict=True):
        assert torch.equal(mine, reference)
    x = torch.randn(300, 3, dtype=torch.bfloat16)
    with torch.no_grad():
        for mine, reference in zip(flat(ours(x)), flat(theirs(x)), strict=True):
            torch.testing.assert_close(mine, reference, rtol=0, atol=1e-2)
    assert served == [True, False]


def test_under_autocast(served: list[bool]) -> None:
    theirs, ours = make_pair("LSTM", 3, 4)
    x = torch.randn(8, 32, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for mine, reference in zip(flat(ours(x)), flat(theirs(x)), strict=True):
            assert torch.equal(mine, reference)
            assert mine.dtype == reference.dtype
    assert served == [True]


def test_what_torch_does_not_serve(served: list[bool]) -> None:
    _, ours = make_pair("LSTM", 3, 4, dtype=torch.bfloat16)
    x = torch.randn(2, 128, 3, dtype=torch.bfloat16)
    reset = torch.zeros(2, 128, dtype=torch.bool)
    expected = prnn.nn.LSTM(3, 4, backend="persistent", dtype=torch.bfloat16)
    expected.load_state_dict(ours.state_dict())
    whole = flat(expected(x))
    for result in (ours(x, lengths=[2] * 128), ours(x, reset=reset), ours(x, return_cells=True)):
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
    # With plain parameters, and a parametrised one.
    assert served == [True, False]


def test_functional_call_takes_the_weights_that_are_given() -> None:
    theirs, ours = make_pair("LSTM", 3, 4, dtype=torch.bfloat16)
    x = torch.randn(2, 128, 3, dtype=torch.bfloat16)
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


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_prnns_own_are_those_of_float32_rounded_once(cell: str, dtype: torch.dtype) -> None:
    """Weights as they are, also where they do not lie one after the other, and their gradients."""
    torch.manual_seed(0)
    module = getattr(prnn.nn, cell)(5, 37, num_layers=2, bidirectional=True, backend="persistent", dtype=dtype)
    twin = getattr(prnn.nn, cell)(5, 37, num_layers=2, bidirectional=True, backend="persistent")
    twin.load_state_dict(module.state_dict())
    x = torch.randn(6, 3, 5, dtype=dtype, requires_grad=True)
    wide = x.detach().float().requires_grad_()
    for scattered in (False, True):
        if scattered:
            for name, weight in module.named_parameters():
                setattr(module, name, torch.nn.Parameter(weight.detach().clone()))
        x.grad = wide.grad = None
        results, wanted = step(module, x), step(twin, wide)
        for mine, reference in zip([*results, x.grad], [*wanted, wide.grad], strict=True):
            assert mine.dtype == dtype
            scale = reference.abs().max()
            torch.testing.assert_close(mine.float(), reference, rtol=torch.finfo(dtype).eps, atol=1e-4 * scale.item())


# Cell, whether it trains, hidden units, timesteps, sequences; and whether the call is torch's.
RULES: dict[tuple[str, bool], list[tuple[str, bool, int, int, int, bool]]] = {
    ("CPU AMX", False): [
        ("LSTM", False, 512, 100, 32, True),
        ("LSTM", True, 512, 8, 32, True),
        ("LSTM", False, 512, 7, 32, False),
        ("LSTM", False, 512, 100, 31, False),
        ("LSTM", True, 256, 32, 8, True),
        ("LSTM", False, 256, 100, 7, False),
        ("LSTM", False, 256, 31, 8, False),
        ("GRU", True, 1024, 100, 128, False),
    ],
    ("CPU AMX", True): [
        ("LSTM", False, 512, 32, 8, True),
        ("LSTM", True, 512, 31, 8, False),
        ("LSTM", False, 512, 100, 7, False),
        ("RNN_TANH", True, 1024, 100, 128, False),
    ],
    ("CPU AVX-512 BF16", False): [
        ("LSTM", False, 512, 32, 8, True),
        ("LSTM", False, 512, 100, 7, False),
        ("LSTM", False, 512, 31, 8, False),
        ("LSTM", True, 256, 32, 8, True),
        ("LSTM", True, 257, 20, 31, False),
        ("LSTM", True, 512, 8, 32, True),
        ("GRU", False, 512, 4, 32, True),
        ("GRU", False, 512, 3, 32, False),
        ("GRU", False, 1024, 1, 256, False),
        ("RNN_TANH", False, 512, 20, 31, False),
        ("RNN_RELU", False, 512, 20, 32, True),
        ("GRU", True, 512, 1, 32, True),
        ("RNN_RELU", True, 512, 2, 31, False),
        ("GRU", True, 255, 20, 256, False),
    ],
    ("CPU AVX-512 BF16", True): [
        ("LSTM", False, 512, 32, 8, True),
        ("LSTM", True, 512, 32, 8, False),
        ("RNN_TANH", False, 1024, 1, 16, True),
        ("GRU", False, 256, 1, 63, False),
        ("GRU", True, 256, 1, 64, True),
    ],
    ("CPU AVX-512", False): [("LSTM", False, 512, 100, 32, False), ("GRU", True, 1024, 100, 128, False)],
    ("CPU AVX2", True): [("LSTM", False, 512, 100, 32, False), ("GRU", True, 1024, 100, 128, False)],
}


@pytest.mark.parametrize(
    ("processor", "is_autocast", "mode", "training", "hidden", "steps", "batch", "expected"),
    [(*key, *call) for key, calls in RULES.items() for call in calls],
)
def test_rule(
    processor: str,
    is_autocast: bool,
    mode: str,
    training: bool,
    hidden: int,
    steps: int,
    batch: int,
    expected: bool,
) -> None:
    assert _torch_on_cpu._is_faster(processor, is_autocast, mode, training, hidden, steps, batch) == expected


@pytest.mark.parametrize(
    ("cell", "steps", "options"),
    [
        ("RNN", 1, {}),
        ("RNN", 1, {"num_layers": 2}),
        ("RNN", 2, {"dtype": torch.float64}),
        ("RNN", 1, {"dtype": torch.float16}),
        ("GRU", 1, {}),
        ("LSTM", 1, {}),
    ],
)
def test_calls_in_other_types_are_prnns(
    monkeypatch: pytest.MonkeyPatch, cell: str, steps: int, options: dict[str, Any]
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("torch's operator served the call")

    for name in ("rnn_tanh", "rnn_relu", "gru", "lstm"):
        monkeypatch.setattr(torch, name, refuse)
    layer = getattr(prnn.nn, cell)(4, 6, **options)
    x = torch.randn(steps, 3, 4, dtype=options.get("dtype", torch.float32))
    for _ in range(2):
        flat(layer(x))[0].sum().backward()
    with torch.no_grad():
        layer(x)
