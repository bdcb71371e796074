"""The LSTM with layer normalisation through the C API: agreement with Python, NULLs, and what is refused."""

import ctypes
import math
from typing import Any

import capi
import pytest
import torch
from layer_norm_lstm_c_case import GRADIENTS, INPUTS, NONE, PARAMETERS, CCase
from layer_norm_lstm_case import call_layer

REVERSE = 2


@pytest.mark.parametrize("direction", [0, REVERSE])
@pytest.mark.parametrize("normalize", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_agrees_with_python(dtype: torch.dtype, normalize: int, direction: int) -> None:
    case = CCase(dtype, normalize=normalize, direction=direction, zoneout=True)
    arrays = [
        None if (a := case.data.get(name)) is None else a.clone().requires_grad_(name != "zoneout") for name in INPUTS
    ]
    y, cy = call_layer(*arrays, normalize, direction == REVERSE, 1e-5, 0.0)
    torch.autograd.backward([y, cy], [case.data["dy"], case.data["dcy"]])
    case.check("Forward")
    for _ in range(2):  # the gradients replace what is there
        case.check("Backward")
        assert torch.equal(case.data["y"], y)
        assert torch.equal(case.data["hy"], y[0 if direction else -1])
        assert torch.equal(case.data["cy"], cy)
        for name, array in zip(GRADIENTS, arrays, strict=False):
            assert (case.data.get(name) is None) == (array is None), name
            assert array is None or torch.equal(case.data[name], array.grad), name
            if array is not None:
                case.data[name].fill_(math.nan)


def test_inference() -> None:
    case = CCase()
    case.check("Forward")
    expected, training = {name: case.data[name].clone() for name in ("y", "hy", "cy")}, case.info.workspaceSize
    capi.check("DestroyRNNCall", call=case.prepared)
    case.check("Prepare", mode=0)
    case.check("CallInfo")
    assert (case.info.reserveSize, case.info.workspaceSize < training) == (0, True)
    case.data |= {"workspace": torch.zeros(case.info.workspaceSize, dtype=torch.uint8), "reserve": None}
    for name in expected:
        case.data[name].zero_()
    case.check("Forward")
    assert all(torch.equal(case.data[name], value) for name, value in expected.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tf32_has_no_effect_on_the_cpu(dtype: torch.dtype) -> None:
    cases = [CCase(dtype, hidden=70) for _ in range(2)]
    capi.check("SetRNNMatrixMathType", rnnDesc=cases[1].rnn.pointer, mType=2)
    capi.check("DestroyRNNCall", call=cases[1].prepared)
    cases[1].check("Prepare")
    for case in cases:
        case.check("Forward")
        case.check("Backward")
        case.check("InputForward")
        case.check("InputBackward")
    for name in ("y", "cy", "x", "dInput", "dWeight", *GRADIENTS):
        assert torch.equal(cases[0].data[name], cases[1].data[name]), name


def test_null_is_zero_or_not_wanted() -> None:
    zeros, nulls = CCase(), CCase()
    for name in ("hx", "cx", "dcy"):
        zeros.data[name].zero_()
        nulls.data[name] = None
    nulls.data |= dict.fromkeys((*GRADIENTS[1:], "hy", "cy"))
    for case in (zeros, nulls):
        case.check("Forward")
        case.check("Backward")
    nulls.check("Backward", normGradients=None)
    for name in ("y", "dx"):
        assert torch.equal(zeros.data[name], nulls.data[name])


def test_spaces_may_lie_anywhere_on_the_cpu() -> None:
    """And the reserve space may move between the runs."""
    plain, moved = CCase(), CCase()
    for case in (plain, moved):
        case.check("Forward")
    size = moved.data["reserve"].numel()
    for shift in (1, 17):
        room = torch.zeros(size + 64, dtype=torch.uint8)
        room[shift : shift + size] = moved.data["reserve"]
        moved.data["reserve"] = room[shift : shift + size]
        moved.data["workspace"] = torch.zeros(moved.info.workspaceSize + 1, dtype=torch.uint8)[1:]
        plain.check("Backward")
        moved.check("Backward")
        assert all(torch.equal(plain.data[name], moved.data[name]) for name in GRADIENTS)


@pytest.mark.parametrize(
    ("function", "arguments", "status", "message"),
    [
        ("SetRNNNormalization", {"kind": 3, "epsilon": 1e-5}, capi.BAD_PARAM, "kind is 3; it must be PRNN_NORMALIZE_"),
        (
            "SetRNNNormalization",
            {"kind": 0, "epsilon": 0.0},
            capi.BAD_PARAM,
            "epsilon is 0; it must be at least 1.17549e-38 and finite",
        ),
        ("SetRNNNormalization", {"kind": 1, "epsilon": math.nan}, capi.BAD_PARAM, "epsilon is nan"),
        ("SetRNNNormalization", {"kind": 1, "epsilon": math.inf}, capi.BAD_PARAM, "epsilon is inf"),
        ("SetRNNProjectionSize", {"projSize": 3}, capi.NOT_SUPPORTED, "a projection is given; an LSTM with PRNN_GATES"),
        ("SetRNNHeads", {"heads": 2}, capi.NOT_SUPPORTED, "heads are given; an LSTM with PRNN_GATES_INPUT has none"),
        ("SetRNNFrozenLayers", {"frozenLayers": 1}, capi.NOT_SUPPORTED, "frozen layers are given"),
        (
            "SetRNNExtras",
            {"extras": ctypes.byref(capi.Extras(reset=4096))},
            capi.NOT_SUPPORTED,
            "extras are given; an LSTM with PRNN_GATES_INPUT has none",
        ),
        (
            "SetRNNPlan",
            {"forward": ctypes.byref(capi.Plan(1, 8, 1, 1, 0)), "backward": None},
            capi.NOT_SUPPORTED,
            "a plan is given",
        ),
        (
            "SetRNNMasks",
            {"masks": ctypes.byref(capi.Masks(zoneoutExpectation=1.5))},
            capi.BAD_PARAM,
            "masks->zoneoutExpectation is 1.5; it must be 0 to 1",
        ),
    ],
)
def test_properties_that_are_refused(function: str, arguments: dict[str, Any], status: int, message: str) -> None:
    case = CCase()
    assert capi.call(function, rnnDesc=case.rnn.pointer, **arguments) == status
    assert message in capi.message()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"numLayers": 2}, "numLayers is 2; an LSTM with PRNN_GATES_INPUT has 1"),
        ({"direction": 1}, "direction is PRNN_BIDIRECTIONAL (1); an LSTM with PRNN_GATES_INPUT has one"),
        ({"inputMode": 0, "direction": REVERSE}, "only an LSTM with PRNN_GATES_INPUT has it"),
        ({"mode": 3}, "only an sLSTM and PRNN_LSTM take their gates' input"),
    ],
)
def test_layers_that_are_refused(changes: dict[str, int], message: str) -> None:
    rnn = capi.descriptor("RNN")
    layer = dict(hiddenSize=8, numLayers=1, dropoutDesc=None, inputMode=2, direction=0, mode=2, dataType=0)
    assert capi.call("SetRNNDescriptor", rnnDesc=rnn.pointer, **(layer | changes)) == capi.NOT_SUPPORTED
    assert message.replace(" (1)", "") in capi.message().replace(" (1)", "")
    layer["inputMode"] = 0
    capi.check("SetRNNDescriptor", rnnDesc=rnn.pointer, **layer)
    assert capi.call("SetRNNNormalization", rnnDesc=rnn.pointer, kind=0, epsilon=1.0) == capi.NOT_SUPPORTED
    assert "only an LSTM with PRNN_GATES_INPUT is normalised" in capi.message()
    capi.check("SetRNNNormalization", rnnDesc=rnn.pointer, kind=NONE, epsilon=0.0)


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"inputSize": 7}, capi.BAD_PARAM, "with PRNN_GATES_INPUT it must be that of the gates, 24"),
        (
            {"batchSizes": capi.ints([3, 3, 3, 2])},
            capi.NOT_SUPPORTED,
            "the last timestep has 2 sequences and the first 3; an LSTM with PRNN_GATES_INPUT takes their lengths",
        ),
    ],
)
def test_calls_that_are_not_prepared(changes: dict[str, Any], status: int, message: str) -> None:
    case = CCase()
    made = ctypes.c_void_p()
    assert case.call("Prepare", call=ctypes.byref(made), **changes) == status
    assert message in case.message()


@pytest.mark.parametrize("data_type", [capi.HALF, capi.BFLOAT16])
def test_types_that_the_cpu_does_not_have(data_type: int) -> None:
    case = CCase()
    layer = dict(hiddenSize=6, numLayers=1, dropoutDesc=None, inputMode=2, direction=0, mode=2, dataType=data_type)
    capi.check("SetRNNDescriptor", rnnDesc=case.rnn.pointer, **layer)
    made = ctypes.c_void_p()
    assert case.call("Prepare", call=ctypes.byref(made)) == capi.NOT_SUPPORTED
    assert "on the CPU an LSTM with PRNN_GATES_INPUT takes PRNN_DATA_FLOAT and PRNN_DATA_DOUBLE" in case.message()
    for name in ("InputForward", "InputBackward"):
        assert case.call(name) == capi.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        *(("Forward", name) for name in ("x", "w", *PARAMETERS, "y")),
        *(("Backward", name) for name in ("x", "y", "dy", "dx", "reserve")),
    ],
)
def test_missing_arrays(name: str, missing: str) -> None:
    case = CCase()
    case.check("Forward")
    size = case.data["reserve"].numel()
    case.data[missing] = None
    assert case.call(name, **({"reserveSize": size} if missing == "reserve" else {})) == capi.BAD_PARAM
    text = f"norm->{missing}" if missing in PARAMETERS else "reserveSpace" if missing == "reserve" else missing
    assert case.message() == f"{text} is NULL"


@pytest.mark.parametrize("space", ["workspace", "reserve"])
@pytest.mark.parametrize("name", ["Forward", "Backward"])
def test_spaces_that_are_too_small(name: str, space: str) -> None:
    case = CCase()
    case.check("Forward")
    size = case.data[space].numel()
    assert case.call(name, **{f"{space}Size": size - 1}) == capi.BAD_PARAM
    assert f"is {size - 1}; this call needs {size} bytes" in case.message()


@pytest.mark.parametrize("name", ["Forward", "Backward"])
def test_arrays_that_are_not_aligned(name: str) -> None:
    case = CCase(torch.float64, zoneout=True)
    case.check("Forward")
    odd = torch.zeros(2**16, dtype=torch.uint8)[2:]
    outputs = ("y", "hy", "cy") if name == "Forward" else ("y", "dy", "dcy", *GRADIENTS)
    for field in (*(field for field in INPUTS if field != "recurrent"), *outputs):
        before, case.data[field] = case.data.get(field), odd
        assert case.call(name) == capi.BAD_PARAM
        text = f"norm->{field}" if field in PARAMETERS else "masks->zoneout" if field == "zoneout" else field
        if field[1:] in PARAMETERS:
            text = f"normGradients->{field[1:]}"
        size = 4 if field == "lengths" else 8
        assert case.message() == f"{text} is at address {odd.data_ptr():#x}; it must be aligned to {size} bytes"
        case.data[field] = before


@pytest.mark.parametrize("length", [-1, 5])
def test_bad_lengths(length: int) -> None:
    case = CCase()
    case.check("Forward")
    case.data["lengths"] = torch.tensor([4, length, 0], dtype=torch.int32)
    for name in ("Forward", "Backward"):
        assert case.call(name) == capi.BAD_PARAM
        assert case.message() == f"lengths[1] is {length}; it must be 0 to 4"


def test_what_only_normalised_layers_have() -> None:
    case, other = CCase(normalize=NONE), CCase()
    case.check("Forward")
    norm = capi.Norm(*(other.data[name].data_ptr() for name in PARAMETERS))
    for name, field in (("Forward", "norm"), ("Backward", "norm"), ("Backward", "normGradients")):
        assert case.call(name, **{field: ctypes.addressof(norm)}) == capi.BAD_PARAM
        assert case.message() == f"{field} is given, but the layer is not normalised (prnnSetRNNNormalization)"
        if field == "norm":
            assert other.call(name, norm=None) == capi.BAD_PARAM
            assert other.message() == "norm is NULL"


def test_the_one_backward_run() -> None:
    case = CCase()
    case.check("Forward")
    for name in ("RunRNNBackwardData", "RunRNNBackwardWeights"):
        args = capi.RUN_ARGS[name]()
        assert capi.call(name, call=case.prepared, args=ctypes.byref(args)) == capi.NOT_SUPPORTED
        assert case.message() == "an LSTM with PRNN_GATES_INPUT has one backward run, prnnRunRNNBackward"


def test_reserve_of_another_layer() -> None:
    case, other = CCase(), CCase(normalize=1)
    other.check("Forward")
    size = case.data["reserve"].numel()
    assert other.data["reserve"].numel() == size
    case.data["reserve"] = other.data["reserve"]
    assert case.call("Backward") == capi.BAD_PARAM
    assert "for another layer or other sizes" in case.message()


def test_info() -> None:
    case = CCase()
    assert (case.info.supported, case.info.forwardEngine, case.info.backwardEngine) == (1, b"cpu", b"cpu")
    assert case.info.weightsSize == 4 * 6 * 6 * 4
    assert case.info.rows == 12
    assert case.info.reserveSize == case.info.retainedReserveSize > 0
