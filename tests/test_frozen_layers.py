"""Stacks whose lowest layers train nothing: the same bits as if all did, and a step without what these would take."""

import copy
import ctypes
import itertools
from typing import Any

import capi
import pytest
import torch
from nn_pairs import CELLS, flat, make, make_states, train_step
from reference import rnn as reference
from rnn_case import RnnCase, dropout_descriptor
from test_rnn_extras import ExtrasCase
from torch import Tensor

import prnn
from prnn._ops._call import Call
from prnn._ops._layer import Config, layer
from prnn._ops.rnn import MODES

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "both directions": {"bidirectional": True},
    "no bias": {"bias": False, "batch_first": True},
    "dropout": {"dropout": 0.5},
    "heads": {"heads": 2},
    "recurrent dropout": {"recurrent_dropout": 0.5},
    "double": {"dtype": torch.float64},
    "half": {"dtype": torch.float16},
    "bfloat16": {"dtype": torch.bfloat16, "bidirectional": True},
}


def freeze(module: Any, count: int) -> Any:
    for name, parameter in module.named_parameters():
        lowest = int(name.split("_l")[1].split("_")[0])
        parameter.requires_grad_(lowest >= count)
    return module


def step(module: Any, *data: Any, **options: Any) -> dict[str, Tensor]:
    torch.manual_seed(3)  # of dropout
    return train_step(module, dict(module.named_parameters()), *data, **options)


def assert_equal_where_trained(module: Any, *data: Any, **options: Any) -> None:
    whole = freeze(copy.deepcopy(module), 0)
    found, expected = step(module, *data, **options), step(whole, *data, **options)
    trained = {f"grad of {name}" for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert trained <= found.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Frozen layers of each call of the kernels."""
    calls: list[int] = []

    forward = Call.forward

    def spy(call: Call, *arguments: Any) -> Any:
        calls.append(call.stack.config.frozen_layers)
        return forward(call, *arguments)

    monkeypatch.setattr(Call, "forward", spy)
    return calls


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("cell", CELLS)
def test_same_bits(cell: str, options: dict[str, Any], counts: list[int]) -> None:
    for frozen, (steps, batch) in itertools.product((1, 2, 3), ((1, 1), (9, 5), (40, 60))):
        module = freeze(make(prnn.nn, cell, 6, 8, num_layers=4, **options), frozen)
        x = torch.randn((batch, steps, 6) if module.batch_first else (steps, batch, 6), dtype=module.weight_hh_l0.dtype)
        for _ in range(2):  # the second is a short call
            assert_equal_where_trained(module, x)
        assert_equal_where_trained(module, x, make_states(module, batch, requires_grad=False))
        assert_equal_where_trained(module, x, lengths=torch.randint(1, steps + 1, (batch,)))
        assert_equal_where_trained(module, x, reset=torch.rand(x.shape[:2]) < 0.3)
        assert set(counts) == {0, frozen}
        counts.clear()


def test_projection_and_cells(counts: list[int]) -> None:
    for frozen in (1, 2):
        module = freeze(prnn.nn.LSTM(6, 8, 3, proj_size=5, bidirectional=True), frozen)
        assert_equal_where_trained(module, torch.randn(7, 3, 6), return_cells=True)
        assert counts == [frozen, 0]
        counts.clear()


@pytest.mark.parametrize("name", ["weight_hh_l1", "bias_ih_l1", "weight_ih_l1_reverse", "bias_hh_l1_reverse"])
def test_a_single_trained_parameter(name: str, counts: list[int]) -> None:
    module = freeze(prnn.nn.GRU(6, 8, 3, bidirectional=True), 3)
    module.get_parameter(name).requires_grad_()
    assert_equal_where_trained(module, torch.randn(7, 3, 6))
    assert counts == [1, 0]


def test_layers_in_between_and_toggles(counts: list[int]) -> None:
    module, x = prnn.nn.LSTM(6, 8, 3), torch.randn(7, 3, 6)
    for trained in ([1], [0, 2], [2], [0, 1, 2], [1, 2]):
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(int(name[-1]) in trained)
        assert_equal_where_trained(module, x)
        assert counts == [trained[0], 0]
        counts.clear()


def test_gradients_of_data_go_through_all_layers(counts: list[int]) -> None:
    module = freeze(prnn.nn.LSTM(6, 8, 3), 2)
    x, states = torch.randn(7, 3, 6), make_states(module, 3)
    assert_equal_where_trained(module, x.clone().requires_grad_(), states)
    assert_equal_where_trained(module, x, states)
    with torch.no_grad():
        module(x)
    assert counts == [0] * 5


@pytest.mark.parametrize("options", [{"dropout": 0.5}, {"dropout": 0.5, "proj_size": 5}, {"bidirectional": True}])
def test_without_gradients_there_is_no_reserve_space(options: dict[str, Any], counts: list[int]) -> None:
    module, x = prnn.nn.LSTM(6, 8, 3, **options), torch.randn(9, 4, 6)
    results = []
    for enabled, return_cells in itertools.product((True, False), repeat=2):
        torch.manual_seed(3)
        with torch.set_grad_enabled(enabled):
            results.append(module(x, return_cells=return_cells))
    for with_gradients, without in zip(results[:2], results[2:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(flat(with_gradients), flat(without), strict=True))
    assert counts == [0, 0, 2, 3 if "dropout" in options else 0]


def test_passes_over_a_retained_graph() -> None:
    module, x = freeze(prnn.nn.LSTM(6, 8, 3, dropout=0.5), 2), torch.randn(7, 3, 6)
    loss = module(x)[0].square().sum()
    weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
    first = torch.autograd.grad(loss, weights, retain_graph=True)
    for found, expected in zip(torch.autograd.grad(loss, weights), first, strict=True):
        assert torch.equal(found, expected)


def test_transforms_and_autocast(counts: list[int]) -> None:
    """A transform has gradients that the tensors themselves do not tell of."""
    module, x = freeze(prnn.nn.GRU(6, 8, 2), 1), torch.randn(7, 3, 6)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(module, parameters, (x,))[0].square().sum()

    gradients = torch.func.grad(loss)({name: parameter.detach() for name, parameter in module.named_parameters()})
    freeze(module, 0)
    loss(dict(module.named_parameters())).backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)
    assert counts == [0, 0]
    counts.clear()
    with torch.autocast("cpu", torch.float16):
        assert_equal_where_trained(freeze(module, 1), x)
    assert counts == [1, 0]


@pytest.mark.parametrize("inner", [0, 1, 2])
def test_transforms_inside_of_a_graph(inner: int) -> None:
    """A transform's gradients are of a layer's weights, and those of the graph around it of others."""
    results = []
    for namespace in (torch.nn, prnn.nn):
        torch.manual_seed(1)
        module, x = make(namespace, "LSTM", 6, 8, num_layers=3, dtype=torch.float64), torch.randn(7, 3, 6).double()
        parameters = dict(module.named_parameters())
        of_inner = {name: value.detach() for name, value in parameters.items() if f"_l{inner}" in name}
        others = {name: value for name, value in parameters.items() if name not in of_inner}

        def loss(of_inner: dict[str, Tensor]) -> Tensor:
            return torch.func.functional_call(module, {**others, **of_inner}, (x,))[0].square().sum()  # noqa: B023

        gradients, value = torch.func.grad_and_value(loss)(of_inner)
        value.backward()
        results.append([*(gradient.detach() for gradient in gradients.values()), *(p.grad for p in others.values())])
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_compiled(counts: list[int]) -> None:
    module, x = prnn.nn.LSTM(6, 8, 3), torch.randn(7, 3, 6)
    for frozen in (2, 0, 1):
        torch.compiler.reset()  # torch 2.6 does not look at requires_grad again
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        parameters = dict(freeze(module, frozen).named_parameters())
        expected = train_step(module, parameters, x)
        for name, value in train_step(compiled, parameters, x).items():
            assert torch.equal(value, expected[name]), name
        assert counts == [frozen, frozen]
        counts.clear()


def test_operator(counts: list[int]) -> None:
    torch.use_deterministic_algorithms(True)  # so that the reserve space is the same in every run
    try:
        module = freeze(prnn.nn.GRU(6, 8, 3), 1)
        config = Config(MODES["GRU"], 8, 0, 3, False, 0.0, 0)
        rest = (None, None, None, [], None, None, *config, False)
        torch.library.opcheck(
            torch.ops.prnn.rnn.default, (torch.randn(7, 3, 6), None, None, module._packed_weights(), *rest)
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert set(counts) == {1}


def test_weights_of_operators_lie_as_they_may() -> None:
    """One tensor for all, or one for each layer's matrices and one for the biases."""
    config = Config(MODES["LSTM"], 8, 0, 3, False, 0.0, 0)
    stack = layer(config, torch.float32, 6, torch.device("cpu"))
    sizes = [32 * (6 + 8), 32 * 16, 32 * 16, 64, 64, 64]

    def count(sizes: list[int], *trained: int) -> int:
        weights = [torch.zeros(size, requires_grad=place in trained) for place, size in enumerate(sizes)]
        return stack.frozen_layers(weights)

    assert count([sum(sizes)], 0) == 0
    assert [count(sizes, place) for place in range(6)] == [0, 1, 2, 0, 1, 2]
    assert count(sizes, 2, 4) == 1
    together = [sizes[0], sizes[1] + sizes[2], sizes[3], sizes[4] + sizes[5]]
    assert [count(together, place) for place in range(4)] == [0, 1, 0, 1]
    assert count([sizes[0], sizes[1], sizes[2] + sizes[3], sizes[4], sizes[5]], 2) == 0
    assert count(sizes) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", [reference.RNN_TANH, reference.LSTM, reference.GRU])
def test_reserve_space_has_the_trained_layers_alone(mode: int, dtype: torch.dtype) -> None:
    case = RnnCase(reference.Stack(mode, 40, 40, 5), [16] * 50, dtype)
    sizes = []
    for frozen in range(6):
        capi.check("SetRNNFrozenLayers", rnnDesc=case.rnn.pointer, frozenLayers=frozen)
        sizes.append(case.reserve_size())
    layers = [size - smaller for size, smaller in itertools.pairwise(sizes)]
    output = 50 * 16 * 40 * 4
    assert layers[0] >= output  # the input of the lowest trained one is kept
    assert layers[1:-1] == [layers[0] + output] * 3
    assert sizes[-1] < 2000 + output * (dtype == torch.bfloat16)  # of 16 bits y in float


@pytest.mark.parametrize("mode", [reference.RNN_TANH, reference.LSTM, reference.GRU])
def test_c_api(mode: int) -> None:
    stack = reference.Stack(mode, 5, 6, 3, 2, projection=4 if mode == reference.LSTM else 0)
    states = (ctypes.c_char * 16)()
    for probability, frozen in itertools.product((0.0, 0.5), (1, 2)):
        dropout = dropout_descriptor(capi.cpu_handle(), probability, states, 7)
        case = RnnCase(stack, [3, 3, 1], dropout=dropout)
        case.train()
        expected, gradients = case.results(), case.data["dw"].clone()
        dropout_descriptor(capi.cpu_handle(), probability, states, 7)
        capi.check("SetRNNFrozenLayers", rnnDesc=case.rnn.pointer, frozenLayers=frozen)
        _, *sizes = case.temp_space_sizes()
        case.workspace, case.reserve = (torch.full((size,), 0xFF, dtype=torch.uint8) for size in sizes)
        case.data["dw"].zero_()
        case.check("RNNForwardTraining")
        for name in ("dx", "dhx", "dcx"):
            given = {other: None for other in ("dx", "dhx", "dcx") if other != name}
            status = case.call("RNNBackwardData", **given)
            if name == "dcx" and mode != reference.LSTM:
                assert status == capi.SUCCESS
                break
            assert status == capi.BAD_PARAM
            message = f"{name} is given, but the lowest {frozen} layers are frozen (prnnSetRNNFrozenLayers)"
            assert message in capi.message(case.handle.pointer)
        else:
            case.check("RNNBackwardData", dx=None, dhx=None, dcx=None)
        case.check("RNNBackwardWeights")
        for name in ("y", "hy", "cy"):
            assert torch.equal(case.data[name], expected[name]), name
        parts = zip(
            reference.split_weights(stack, case.data["dw"]), reference.split_weights(stack, gradients), strict=True
        )
        for index, (found, wanted) in enumerate(parts):
            for ours, theirs in zip(found, wanted, strict=True):
                for name, value in vars(ours).items():
                    if value is not None:
                        other = getattr(theirs, name) if index >= frozen else torch.zeros_like(value)
                        assert torch.equal(value, other), (index, name)


def test_calls_of_a_step_want_the_same_layers() -> None:
    case = RnnCase(reference.Stack(reference.LSTM, 5, 6, 3), [3, 1])
    case.check("RNNForwardTraining")
    capi.check("SetRNNFrozenLayers", rnnDesc=case.rnn.pointer, frozenLayers=1)
    assert case.call("RNNBackwardData", dx=None, dhx=None, dcx=None) == capi.BAD_PARAM
    assert "for another layer or other sizes" in capi.message(case.handle.pointer)


def test_cells_are_of_a_layer_that_keeps_them() -> None:
    case = ExtrasCase(reference.Stack(reference.LSTM, 5, 6, 2), [3, 1])
    case.set_extras(("cells",))
    case.check("RNNForwardTraining")
    expected = case.cells.clone()
    case.cells.fill_(0)
    capi.check("SetRNNFrozenLayers", rnnDesc=case.rnn.pointer, frozenLayers=1)
    case.set_extras(("cells",))
    case.check("RNNForwardTraining")
    assert torch.equal(case.cells, expected)
    capi.check("SetRNNFrozenLayers", rnnDesc=case.rnn.pointer, frozenLayers=2)
    assert case.call("RNNForwardTraining") == capi.BAD_PARAM
    assert "extras->cells is given (prnnSetRNNExtras), but all 2 layers are frozen" in capi.message(case.handle.pointer)


@pytest.mark.parametrize("count", [-1, 4, 2**31 - 1])
def test_bad_counts(count: int) -> None:
    case = RnnCase(reference.Stack(reference.LSTM, 5, 6, 3), [3, 1])
    assert capi.call("SetRNNFrozenLayers", rnnDesc=case.rnn.pointer, frozenLayers=count) == capi.BAD_PARAM
    assert f"frozenLayers is {count}; it must be 0 to numLayers, 3" in capi.message()
    capi.check("SetRNNFrozenLayers", rnnDesc=case.rnn.pointer, frozenLayers=2)
    case.set_rnn()  # takes it back
    case.train()
