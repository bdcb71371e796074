"""prnnRunStreamLayers: the bits of prnn.nn's layers, in slots, and what is refused."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import capi
import pytest
import torch
from decode_case import Layers, LayerWeights

from prnn import _C, nn
from prnn._ops import stream_layers


@pytest.fixture
def threads_of_torch() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("batch", [1, 7, 40])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("layer", "options"),
    [
        (nn.LSTM, {"hidden_size": 33, "num_layers": 2}),
        (nn.LSTM, {"hidden_size": 40, "num_layers": 3, "proj_size": 19, "bias": False}),
        (nn.LSTM, {"hidden_size": 300}),
        (nn.GRU, {"hidden_size": 50, "num_layers": 2}),
    ],
    ids=str,
)
def test_layers_of_streams_are_the_layers(
    layer: Any, options: dict[str, Any], threads: int, batch: int, threads_of_torch: Any
) -> None:
    """Gives the bits of prnn.nn's layers over the whole, for a pool's slots in any order, with chunks of any
    lengths."""
    threads_of_torch(threads)
    torch.manual_seed(0)
    module = layer(21, **options, batch_first=True).eval()
    mode, encoder = (_C.LSTM, "lstm") if layer is nn.LSTM else (_C.GRU, "gru")
    weights = [
        tuple(
            getattr(module, f"{name}_l{i}", None)
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        )
        for i in range(module.num_layers)
    ]
    prepared = stream_layers.prepare(mode, weights)  # type: ignore[arg-type]
    features = torch.randn(batch, 90, 21)
    with torch.no_grad():
        expected, (hidden) = module(features)
    states = hidden if encoder == "lstm" else (hidden,)
    pool = [torch.full((batch + 3, *s.shape[::2]), torch.nan) for s in states]
    slots = torch.randperm(batch + 3)[:batch].int()
    for state in pool:
        state[slots.long()] = 0.0
    at = torch.zeros(batch, dtype=torch.int64)
    found = torch.zeros_like(expected)
    while bool((at < 90).any()):
        size = int(torch.randint(1, 80, ()))
        lengths = torch.minimum(torch.randint(0, size + 1, (batch,)), 90 - at)
        x = torch.full((batch, size, 21), torch.nan)
        for n, (start, count) in enumerate(zip(at.tolist(), lengths.tolist(), strict=True)):
            x[n, :count] = features[n, start : start + count]
        y = stream_layers.run(prepared, x, lengths.int(), slots, pool[0], pool[1] if len(pool) > 1 else None)
        for n, (start, count) in enumerate(zip(at.tolist(), lengths.tolist(), strict=True)):
            found[n, start : start + count] = y[n, :count]
            assert not y[n, count:].any()
        at += lengths
    assert torch.equal(found, expected)
    for state, after in zip(pool, states, strict=True):
        assert torch.equal(state[slots.long()], after.transpose(0, 1))
        others = torch.ones(batch + 3, dtype=torch.bool)
        others[slots.long()] = False
        assert state[others].isnan().all()


SIZES = {"layers": 2, "inputSize": 5, "hiddenSize": 6, "projectionSize": 3}


class Case:
    """Two LSTM layers with a projection."""

    def __init__(self, **changes: Any) -> None:
        self.handle = capi.cpu_handle()
        self.layers = Layers(**{"dataType": capi.FLOAT, "mode": _C.LSTM, **SIZES, **changes})
        self.room = torch.zeros(1 << 16, dtype=torch.uint8)
        self.tensors = [torch.randn(24 * size) for size in (6, 6, 1, 1, 3)]
        own = [tensor.data_ptr() for tensor in self.tensors]
        self.weights = (LayerWeights * 2)(LayerWeights(*own), LayerWeights(*own))
        self.data = {name: torch.zeros(200) for name in ("x", "h", "c", "y")}

    def call(self, name: str, **arguments: Any) -> int:
        given = {"handle": self.handle.pointer, "layers": ctypes.byref(self.layers), **arguments}
        names = capi.FUNCTIONS[f"prnn{name}"].parameters
        return int(capi.call(name, **{key: given[key] for key in names}))

    def size(self) -> tuple[int, str]:
        size = ctypes.c_size_t(77)
        status = self.call("GetStreamLayersPreparedSize", sizeInBytes=ctypes.byref(size))
        assert status == capi.SUCCESS or size.value == 77
        return status, capi.message(self.handle.pointer)

    def prepare(self, **changes: Any) -> int:
        given = {"weights": self.weights, "prepared": self.room.data_ptr(), "preparedSizeInBytes": len(self.room)}
        return self.call("PrepareStreamLayers", **{**given, **changes})

    def run(self, **changes: Any) -> tuple[int, str]:
        workspace = torch.zeros(1 << 18, dtype=torch.uint8)
        given: dict[str, Any] = {name: tensor.data_ptr() for name, tensor in self.data.items()}
        given |= {"prepared": self.room.data_ptr(), "batch": 2, "maxFrames": 4, "lengths": None, "slots": None}
        given |= {"workspace": workspace.data_ptr(), "workspaceSizeInBytes": len(workspace), **changes}
        return self.call("RunStreamLayers", **given), capi.message(self.handle.pointer)


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"dataType": 99}, capi.BAD_PARAM, "dataType is 99"),
        ({"mode": 9}, capi.BAD_PARAM, "mode is 9"),
        ({"layers": 0}, capi.BAD_PARAM, "layers is 0; it must be 1 to 1000"),
        ({"inputSize": 0}, capi.BAD_PARAM, "inputSize is 0"),
        ({"hiddenSize": -1}, capi.BAD_PARAM, "hiddenSize is -1"),
        ({"hiddenSize": 2**31 - 1, "inputSize": 2**31 - 1, "layers": 1000}, capi.BAD_PARAM, "too large"),
        ({"projectionSize": 6}, capi.BAD_PARAM, "projectionSize is 6; it must be 0 to 5"),
        ({"mode": _C.GRU}, capi.BAD_PARAM, "projectionSize is 3; it must be 0 to 0"),
        ({"dataType": capi.HALF}, capi.NOT_SUPPORTED, "layers of streams take PRNN_DATA_FLOAT and PRNN_DATA_DOUBLE"),
        ({"mode": 1, "projectionSize": 0}, capi.NOT_SUPPORTED, "mode is 1; layers of streams are PRNN_LSTM"),
    ],
)
def test_wrong_layers(changes: dict[str, int], status: int, message: str) -> None:
    found = Case(**changes).size()
    assert found[0] == status
    assert message in found[1]


def test_wrong_weights() -> None:
    case = Case()
    for name in ("input", "recurrent", "projection"):
        kept = getattr(case.weights[1], name)
        setattr(case.weights[1], name, None)
        assert case.prepare() == capi.BAD_PARAM
        assert f"weights[layer].{name}" in capi.message(case.handle.pointer)
        setattr(case.weights[1], name, kept)
    assert case.prepare(weights=None) == case.prepare(preparedSizeInBytes=9) == capi.BAD_PARAM
    assert not case.room.any()
    assert case.prepare() == capi.SUCCESS


def test_wrong_arguments_of_a_run() -> None:
    case = Case()
    assert case.prepare() == capi.SUCCESS
    assert case.run()[0] == capi.SUCCESS
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"batch": 0}, "batch is 0"),
        ({"maxFrames": 0}, "maxFrames is 0"),
        ({"lengths": capi.ints([4, 5])}, "lengths[1] is 5"),
        ({"slots": capi.ints([0, -1])}, "slots[1] is -1; it must be at least 0"),
        ({"slots": capi.ints([3, 3])}, "slots holds 3 twice"),
        ({"workspaceSizeInBytes": 16}, "workspace has 16 bytes"),
        ({"h": case.data["h"].data_ptr() + 1}, "h is at"),
    ]
    wrong += [({name: None}, f"{name} is NULL") for name in ("prepared", "x", "h", "c", "y", "workspace")]
    for tensor in case.data.values():
        tensor.fill_(3.0)
    for changes, message in wrong:
        status, said = case.run(**changes)
        assert status == capi.BAD_PARAM
        assert message in said
    assert all(bool((tensor == 3.0).all()) for tensor in case.data.values())


def test_initial_values() -> None:
    layers = Layers(9, 9, 9, 9, 9, 9)
    capi.check("InitStreamLayers", layers=ctypes.byref(layers))
    assert [getattr(layers, name) for name, _ in Layers._fields_] == [capi.FLOAT, _C.LSTM, 1, 0, 0, 0]
