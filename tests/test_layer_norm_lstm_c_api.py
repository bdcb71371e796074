"""The LSTM with layer normalisation through the C API: agreement with Python, NULLs, and what is refused."""

import ctypes
import math
from typing import Any

import capi
import pytest
import torch
from layer_norm_lstm_c_case import GRADIENTS, INPUTS, CCase, Info, Options

from prnn._ops.layer_norm_lstm import call_layer_norm_lstm

PARAMETERS = ("gateGain", "gateBias", "cellGain", "cellBias", "dGateGain", "dGateBias", "dCellGain", "dCellBias")


def test_defaults() -> None:
    options = Options(*(1 for _ in Options._fields_))
    capi.check("InitLayerNormLSTMOptions", options=ctypes.byref(options))
    values = {name: getattr(options, name) for name, _ in Options._fields_}
    assert values.pop("epsilon") == 1e-5
    assert set(values.values()) == {0}
    assert capi.call("InitLayerNormLSTMOptions", options=None) == capi.BAD_PARAM


@pytest.mark.parametrize("normalize", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_agrees_with_python(dtype: torch.dtype, normalize: int) -> None:
    case = CCase(dtype)
    case.options.normalize = normalize
    if normalize == 2:
        case.data |= dict.fromkeys(PARAMETERS)
    case.data["zoneoutMask"] = (torch.rand(4, 3, 6) < 0.5).to(dtype)
    case.data["workspace"] = torch.zeros(100_000, dtype=torch.uint8)
    arrays = [case.data[name] for name in INPUTS]
    arrays = [
        None if a is None else a.clone().requires_grad_(name != "zoneoutMask")
        for a, name in zip(arrays, INPUTS, strict=False)
    ]
    y, cy, _ = call_layer_norm_lstm(*arrays, normalize, False, 1e-5, 0.0, True)
    torch.autograd.backward([y, cy], [case.data["dy"], case.data["dcy"]])
    case.check("Forward")
    case.check("Backward")
    assert torch.equal(case.data["y"], y)
    assert torch.equal(case.data["cy"], cy)
    for name, array in zip(GRADIENTS, arrays, strict=False):
        assert (case.data[name] is None) == (array is None), name
        assert array is None or torch.equal(case.data[name], array.grad), name
    case.data["y"].zero_()
    case.check("Forward", reserveSpace=None, reserveSizeInBytes=0, cy=None)
    assert torch.equal(case.data["y"], y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tf32_has_no_effect_on_the_cpu(dtype: torch.dtype) -> None:
    cases = [CCase(dtype, hidden=70) for _ in range(2)]
    for allowed, case in enumerate(cases):
        case.options.allowTf32 = allowed
        case.check("Forward")
        case.check("Backward")
        case.check("Query")
    for name in ("y", "cy", *GRADIENTS):
        assert torch.equal(cases[0].data[name], cases[1].data[name]), name


def test_null_is_zero_or_not_wanted() -> None:
    zeros, nulls = CCase(), CCase()
    for name in ("h0", "c0", "dcy"):
        zeros.data[name].zero_()
        nulls.data[name] = None
    wanted = {"dx": nulls.data["dx"]}
    nulls.data |= {name: None for name in GRADIENTS[1:]}
    for case in (zeros, nulls):
        case.check("Forward")
        case.check("Backward")
    assert torch.equal(zeros.data["y"], nulls.data["y"])
    assert torch.equal(zeros.data["dx"], wanted["dx"])


def test_gradients_replace_what_was_there() -> None:
    first, second = CCase(), CCase()
    for name in GRADIENTS:
        second.data[name].fill_(math.nan)
    for case in (first, second):
        case.check("Forward")
        case.check("Backward")
    for name in GRADIENTS:
        assert torch.equal(first.data[name], second.data[name]), name


BAD_OPTIONS: list[tuple[dict[str, Any], int, str]] = [
    ({"dataType": 7}, capi.BAD_PARAM, "dataType is 7"),
    ({"dataType": capi.HALF}, capi.NOT_SUPPORTED, "dataType is PRNN_DATA_HALF; on the CPU recurrent layers take"),
    (
        {"normalize": 3},
        capi.BAD_PARAM,
        "normalize is 3; it must be PRNN_NORMALIZE_GATES (0), PRNN_NORMALIZE_PRODUCTS (1) or PRNN_NORMALIZE_NONE (2)",
    ),
    ({"steps": 0}, capi.BAD_PARAM, "steps is 0; it must be 1 to"),
    ({"batch": -1}, capi.BAD_PARAM, "batch is -1"),
    ({"hiddenSize": 0}, capi.BAD_PARAM, "hiddenSize is 0"),
    ({"steps": 2**31 - 1, "batch": 2**31 - 1}, capi.BAD_PARAM, "too large: their product does not fit 64 bits"),
    ({"epsilon": -1e-3}, capi.BAD_PARAM, "epsilon is -0.001; it must be at least 1.17549e-38"),
    ({"epsilon": 0.0}, capi.BAD_PARAM, "epsilon is 0; it must be at least 1.17549e-38"),
    ({"epsilon": math.nan}, capi.BAD_PARAM, "epsilon is nan"),
    ({"zoneout": 1.5}, capi.BAD_PARAM, "zoneout is 1.5; it must be 0 to 1"),
    ({"allowTf32": 2}, capi.BAD_PARAM, "allowTf32 is 2; it must be 0 to 1"),
    ({"allowTf32": -1}, capi.BAD_PARAM, "allowTf32 is -1; it must be 0 to 1"),
]


@pytest.mark.parametrize(("fields", "status", "message"), BAD_OPTIONS)
@pytest.mark.parametrize("name", ["Forward", "Backward", "Query", "GetWorkspaceSize", "GetReserveSize"])
def test_bad_options(name: str, fields: dict[str, Any], status: int, message: str) -> None:
    case = CCase()
    before = [tensor.clone() for tensor in case.outputs()[:-2]]
    for field, value in fields.items():
        setattr(case.options, field, value)
    assert case.call(name) == status
    assert message in capi.message(case.handle.pointer)
    assert all(torch.equal(a, b) for a, b in zip(case.outputs(), before, strict=False))


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        *(("Forward", name) for name in ("x", "recurrent", "gateGain", "gateBias", "cellGain", "cellBias", "y")),
        *(("Backward", name) for name in ("x", "y", "dy", "dx", "reserveSpace")),
    ],
)
def test_missing_arrays(name: str, missing: str) -> None:
    case = CCase()
    sizes = {"reserveSizeInBytes": case.data["reserveSpace"].numel()}
    case.data[missing] = None
    assert case.call(name, **(sizes if missing == "reserveSpace" else {})) == capi.BAD_PARAM
    place = "inputs->" if missing in INPUTS else "gradients->" if missing in GRADIENTS else ""
    assert capi.message(case.handle.pointer) == f"{place}{missing} is NULL"


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_of_what_is_not_normalised(name: str) -> None:
    case = CCase()
    case.options.normalize = 2
    given = case.data[name]
    case.data |= dict.fromkeys(PARAMETERS)
    case.data[name] = given
    before = [tensor.clone() for tensor in case.outputs()[:-2] if tensor is not None]
    place = "inputs" if name in INPUTS else "gradients"
    assert case.call("Backward") == capi.BAD_PARAM
    message = f"{place}->{name} is given, but normalize is PRNN_NORMALIZE_NONE, which has none"
    assert capi.message(case.handle.pointer) == message
    after = [tensor for tensor in case.outputs()[:-2] if tensor is not None]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("name", ["Forward", "Backward"])
@pytest.mark.parametrize("space", ["workspace", "reserve"])
def test_spaces_that_are_too_small(name: str, space: str) -> None:
    case = CCase()
    assert case.call(name, **{f"{space}SizeInBytes": 64}) == capi.BAD_PARAM
    assert " has 64 bytes; it needs " in capi.message(case.handle.pointer)
    key = "workspace" if space == "workspace" else "reserveSpace"
    size = case.data[key].numel()  # as the query says, which rounds up
    assert case.call(name, **{f"{space}SizeInBytes": size - 1}) == capi.BAD_PARAM
    assert capi.message(case.handle.pointer) == f"{key} has {size - 1} bytes; it needs {size}"
    assert case.call(name, **{key: case.data[key].data_ptr() + 4}) == capi.BAD_PARAM
    assert "it must be aligned to 16 bytes" in capi.message(case.handle.pointer)


@pytest.mark.parametrize("name", ["Forward", "Backward"])
def test_arrays_that_are_not_aligned(name: str) -> None:
    case = CCase(torch.float64)
    odd = torch.zeros(2**16, dtype=torch.uint8)[2:]
    for place, fields in (("inputs", INPUTS), ("gradients", GRADIENTS), ("", ("y", "cy", "dy", "dcy"))):
        parameters = capi.FUNCTIONS[f"prnnLayerNormLSTM{name}"].parameters
        for field in fields:
            if (place or field) not in parameters:
                continue
            whole, case.data[field] = case.data[field], odd
            assert case.call(name) == capi.BAD_PARAM
            size = 4 if field == "lengths" else 8
            text = f"{place}->{field}" if place else field
            message = f"{text} is at address {odd.data_ptr():#x}; it must be aligned to {size} bytes"
            assert capi.message(case.handle.pointer) == message
            case.data[field] = whole


@pytest.mark.parametrize("length", [-1, 5])
def test_bad_lengths(length: int) -> None:
    case = CCase()
    case.data["lengths"] = torch.tensor([4, length, 0], dtype=torch.int32)
    for name in ("Forward", "Backward"):
        assert case.call(name) == capi.BAD_PARAM
        assert capi.message(case.handle.pointer) == f"inputs->lengths[1] is {length}; it must be 0 to 4"


def test_missing_structs() -> None:
    case = CCase()
    for name, parameter in (("Forward", "inputs"), ("Backward", "gradients"), ("Query", "options"), ("Query", "info")):
        assert case.call(name, **{parameter: None}) == capi.BAD_PARAM
        assert capi.message(case.handle.pointer) == f"{parameter} is NULL"
    assert case.call("Forward", handle=None) == capi.NOT_INITIALIZED


def test_query() -> None:
    case = CCase()
    case.check("Query")
    assert (case.info.engine, case.info.clusters, case.info.blocks) == (0, 0, 0)
    case.options.dataType = capi.BFLOAT16
    info = Info()
    case.check("Query", handle=None, gpu=ctypes.create_string_buffer(b"H200"), info=ctypes.byref(info))
    assert (info.engine, info.clusters, info.blocks) == (2, 3, 8)
    assert case.call("Query", gpu=ctypes.create_string_buffer(b"H900")) == capi.BAD_PARAM
    assert 'gpu is "H900"; the GPU table has H200' in capi.message()
