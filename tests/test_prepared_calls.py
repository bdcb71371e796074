"""Calls of prnn_call.h: the bits of cuDNN v5's functions, from a call that is prepared once; and what they refuse."""

import ctypes
import pathlib
from types import SimpleNamespace
from typing import Any

import capi
import pytest
import torch
from c_program import ROOT, output_of
from reference import rnn as reference
from reference import slstm
from rnn_case import OUTPUTS, RnnCase
from slstm_case import Case

import prnn

INFERENCE, TRAINING = 0, 1
RUNS = ("RunRNNForward", "RunRNNBackwardData", "RunRNNBackwardWeights")


class Prepared:
    """A prepared call of a case, with the case's arrays for its runs."""

    def __init__(self, case: RnnCase, mode: int = TRAINING) -> None:
        self.case, self.mode = case, mode
        self.extras: capi.Extras | None = None
        self.masks: capi.Masks | None = None
        self.call = ctypes.c_void_p()
        assert prepare(case, self.call, mode=mode) == capi.SUCCESS, capi.message(case.handle.pointer)
        self.info = capi.CallInfo()
        capi.check("GetRNNCallInfo", call=self.call, info=ctypes.byref(self.info))
        device = case.data["x"].device
        self.workspace = torch.full((self.info.workspaceSize,), 0x5A, dtype=torch.uint8, device=device)
        self.reserve = torch.full((self.info.retainedReserveSize,), 0x5A, dtype=torch.uint8, device=device)

    def __del__(self) -> None:
        capi.call("DestroyRNNCall", call=self.call)

    def run(self, name: str, **changes: Any) -> int:
        args = capi.RUN_ARGS[name]()
        for field, _ in args._fields_:
            if field in self.case.data:
                setattr(args, field, self.case.data[field].data_ptr())
        args.workspace, args.workspaceSize = self.workspace.data_ptr(), self.workspace.numel()
        if self.mode == TRAINING:
            args.reserve, args.reserveSize = self.reserve.data_ptr(), self.reserve.numel()
        for field in {"extras", "masks"} & {field for field, _ in args._fields_}:
            given = getattr(self, field)
            setattr(args, field, ctypes.addressof(given) if given is not None else None)
        for field, value in changes.items():
            setattr(args, field, value)
        status: int = capi.call(name, call=self.call, args=ctypes.byref(args))
        return status

    def message(self) -> str:
        return capi.message(self.case.handle.pointer)


def prepare(case: RnnCase, made: ctypes.c_void_p, **changes: Any) -> int:
    sizes = case.batch_sizes
    arguments = dict(
        handle=case.handle.pointer,
        rnnDesc=case.rnn.pointer,
        mode=TRAINING,
        inputSize=case.stack.input,
        seqLength=len(sizes),
        batchSizes=(ctypes.c_int * len(sizes))(*sizes),
        call=ctypes.byref(made),
    )
    status: int = capi.call("PrepareRNN", **(arguments | changes))
    return status


def lstm(layers: int = 2, directions: int = 2, **more: Any) -> RnnCase:
    torch.manual_seed(0)
    return RnnCase(reference.Stack(reference.LSTM, 5, 8, layers, directions, **more), [4, 3, 2])


STACKS = {
    "lstm": reference.Stack(reference.LSTM, 5, 8, 2, 2),
    "gru": reference.Stack(reference.GRU, 5, 8, 3, 1),
    "relu": reference.Stack(reference.RNN_RELU, 5, 8, 1, 2),
    "projection": reference.Stack(reference.LSTM, 5, 8, 2, 1, projection=3),
    "skip input": reference.Stack(reference.GRU, 8, 8, 2, 1, skip_input=True),
}


def kinds_of(stack: reference.Stack) -> list[str]:
    kinds = ["plain", "reset and cells"]
    kinds += [] if stack.projection or stack.skip_input else ["masks"]
    return kinds + (["frozen layer"] if stack.layers > 1 else [])


@pytest.mark.parametrize(
    ("stack", "kind"),
    [pytest.param(stack, kind, id=f"{name}-{kind}") for name, stack in STACKS.items() for kind in kinds_of(stack)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_the_bits_of_the_other_functions(stack: reference.Stack, dtype: torch.dtype, kind: str) -> None:
    torch.manual_seed(0)
    case = RnnCase(stack, [4, 3, 2], dtype)
    rows, cells = sum(case.batch_sizes), stack.layers * stack.directions
    is_lstm = stack.mode == reference.LSTM
    extras = masks = None
    if kind == "reset and cells":
        reset = torch.tensor([0, 1, 0, 0, 1, 0, 0, 0, 1], dtype=torch.uint8)
        kept = torch.zeros(rows, stack.directions * stack.hidden, dtype=dtype)
        dkept = torch.randn_like(kept)
        extras = capi.Extras(reset=reset.data_ptr())
        if is_lstm:
            extras.cells, extras.dcells = kept.data_ptr(), dkept.data_ptr()
        capi.check("SetRNNExtras", rnnDesc=case.rnn.pointer, extras=ctypes.byref(extras))
    if kind == "masks":
        recurrent = (torch.rand(cells, case.batch_sizes[0], stack.hidden) > 0.3).to(dtype)
        masks = capi.Masks(recurrent=recurrent.data_ptr(), zoneoutExpectation=0.25 if stack.mode >= 2 else 0)
        capi.check("SetRNNMasks", rnnDesc=case.rnn.pointer, masks=ctypes.byref(masks))
    if kind == "frozen layer":
        capi.check("SetRNNFrozenLayers", rnnDesc=case.rnn.pointer, frozenLayers=1)
    absent = dict.fromkeys(("dx", "dhx", "dcx") if kind == "frozen layer" else ())
    case.workspace = torch.full((case.size("GetRNNWorkspaceSize"),), 0x5A, dtype=torch.uint8)
    case.reserve = torch.full((case.reserve_size(),), 0x5A, dtype=torch.uint8)
    capi.check("RNNForwardTraining", **case.arguments("RNNForwardTraining"))
    capi.check("RNNBackwardData", **(case.arguments("RNNBackwardData") | absent))
    capi.check("RNNBackwardWeights", **case.arguments("RNNBackwardWeights"))
    expected = {name: case.data[name].clone() for name in OUTPUTS}

    prepared = Prepared(case)
    prepared.extras, prepared.masks = extras, masks
    assert prepared.info.rows == rows
    assert prepared.info.weightsSize == case.data["w"].numel() * case.data["w"].element_size()
    assert prepared.info.workspaceSize <= case.workspace.numel()
    assert prepared.info.retainedReserveSize == case.reserve.numel()
    for _ in range(2):
        for name in expected:
            case.data[name].fill_(0 if name == "dw" else case.UNTOUCHED)
        for name in RUNS:
            changes = absent if name == "RunRNNBackwardData" else {}
            assert prepared.run(name, **changes) == capi.SUCCESS, prepared.message()
        assert all(torch.equal(case.data[name], value) for name, value in expected.items())


def test_inference() -> None:
    case = lstm()
    capi.check("RNNForwardInference", **case.arguments("RNNForwardInference"))
    expected = {name: case.data[name].clone() for name in ("y", "hy", "cy")}
    prepared = Prepared(case, INFERENCE)
    assert (prepared.info.reserveSize, prepared.info.retainedReserveSize) == (0, 0)
    for name in expected:
        case.data[name].fill_(case.UNTOUCHED)
    assert prepared.run("RunRNNForward") == capi.SUCCESS, prepared.message()
    assert all(torch.equal(case.data[name], value) for name, value in expected.items())
    assert prepared.run("RunRNNForward", reserve=prepared.workspace.data_ptr()) == capi.BAD_PARAM
    assert "args->reserve is given" in prepared.message()
    assert prepared.run("RunRNNBackwardData") == capi.BAD_PARAM
    assert "this one was prepared for inference" in prepared.message()


def test_what_only_lstms_on_the_input_of_their_gates_have() -> None:
    case = lstm()
    prepared = Prepared(case)
    norm, lengths = capi.Norm(), (ctypes.c_int * 4)()
    for changes, text in (
        ({"norm": ctypes.addressof(norm)}, "norm is given, but the layer is not normalised"),
        ({"lengths": ctypes.addressof(lengths)}, "lengths are given; only an LSTM with PRNN_GATES_INPUT takes them"),
    ):
        assert prepared.run("RunRNNForward", **changes) == capi.BAD_PARAM
        assert text in prepared.message()
    assert prepared.run("RunRNNForward") == capi.SUCCESS, prepared.message()
    for changes in ({}, {"x": None}, {"workspace": None}):  # whatever else is wrong
        assert prepared.run("RunRNNBackward", **changes) == capi.NOT_SUPPORTED
        assert "prnnRunRNNBackward is of LSTMs with PRNN_GATES_INPUT" in prepared.message()


def test_dropout_states_are_those_of_the_run() -> None:
    """Two steps draw two masks; the same states again give the first one."""
    handle = capi.cpu_handle()
    states = (ctypes.c_uint64 * 2)()
    dropout = capi.descriptor("Dropout")

    def seed() -> None:
        arguments = dict(dropoutDesc=dropout.pointer, handle=handle.pointer, dropout=0.5, states=states)
        capi.check("SetDropoutDescriptor", **arguments, stateSizeInBytes=ctypes.sizeof(states), seed=7)

    seed()
    torch.manual_seed(0)
    case = RnnCase(reference.Stack(reference.LSTM, 5, 8, 2, 1), [3] * 4, torch.float32, dropout, handle)
    prepared, outputs = Prepared(case), []
    for step in range(3):
        if step == 2:
            seed()
        assert prepared.run("RunRNNForward") == capi.SUCCESS, prepared.message()
        outputs.append(case.data["y"].clone())
    assert not torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])
    arguments = dict(dropoutDesc=dropout.pointer, handle=handle.pointer, dropout=0.25, states=states)
    capi.check("SetDropoutDescriptor", **arguments, stateSizeInBytes=ctypes.sizeof(states), seed=7)
    assert prepared.run("RunRNNForward") == capi.BAD_PARAM
    assert "probability is 0.25; the call was prepared with 0.5" in prepared.message()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"handle": None}, ""),
        ({"rnnDesc": None}, "rnnDesc is NULL"),
        ({"mode": 2}, "mode is 2"),
        ({"inputSize": 0}, "inputSize is 0; it must be at least 1"),
        ({"seqLength": 0}, "seqLength is 0; it must be at least 1"),
        ({"batchSizes": None}, "batchSizes is NULL"),
        ({"batchSizes": (ctypes.c_int * 3)(2, 3, 1)}, "batchSizes[1] is 3, more than the 2 of the timestep before it"),
        ({"batchSizes": (ctypes.c_int * 3)(2, 2, 0)}, "batchSizes[2] is 0; it must be at least 1"),
        ({"call": None}, "call is NULL"),
    ],
)
def test_what_is_not_prepared(changes: dict[str, Any], text: str) -> None:
    case, call = lstm(), ctypes.c_void_p()
    wanted = capi.NOT_INITIALIZED if "handle" in changes else capi.BAD_PARAM
    assert prepare(case, call, **changes) == wanted
    assert text in (capi.message(case.handle.pointer) or capi.message())
    assert call.value is None


@pytest.mark.parametrize("name", RUNS)
def test_what_is_not_run(name: str) -> None:
    case = lstm()
    prepared = Prepared(case)
    for other in RUNS:
        assert prepared.run(other) == capi.SUCCESS, prepared.message()
    before = {key: value.clone() for key, value in case.data.items()}
    reset = (ctypes.c_ubyte * 9)()
    extras, masks = capi.Extras(reset=ctypes.addressof(reset)), capi.Masks(zoneoutExpectation=0.5)
    for changes, text in (
        ({"y": None}, "y is NULL"),
        ({"workspaceSize": prepared.workspace.numel() - 1}, f"this call needs {prepared.workspace.numel()} bytes"),
        ({"reserveSize": 7}, f"this call needs {prepared.info.reserveSize} bytes"),
        ({"reserve": None}, "reserveSpace is NULL"),
        ({"extras": ctypes.addressof(extras)}, "args->extras->reset is given, but the call was prepared without it"),
        ({"masks": ctypes.addressof(masks)}, "zoneoutExpectation is 0.5; the call was prepared with 0"),
        ({"hx": case.data["hx"].data_ptr() + 1}, "hx is at"),
    ):
        assert prepared.run(name, **changes) == capi.BAD_PARAM, changes
        assert text in prepared.message(), prepared.message()
    assert capi.call(name, call=prepared.call, args=None) == capi.BAD_PARAM
    assert all(torch.equal(case.data[key], value) for key, value in before.items())


def test_a_destroyed_call_is_refused() -> None:
    case, call = lstm(), ctypes.c_void_p()
    assert prepare(case, call) == capi.SUCCESS
    info = capi.CallInfo()
    capi.check("DestroyRNNCall", call=call)
    assert capi.call("GetRNNCallInfo", call=call, info=ctypes.byref(info)) == capi.BAD_PARAM
    assert "is no RNN call descriptor, or was destroyed" in capi.message()
    assert capi.call("DestroyRNNCall", call=call) == capi.BAD_PARAM
    assert capi.call("DestroyRNNCall", call=None) == capi.SUCCESS


@pytest.mark.parametrize(("program", "language"), [("prepared_call.c", "c99"), ("prepared_call.cc", "c++")])
def test_example(program: str, language: str, tmp_path: pathlib.Path) -> None:
    text = output_of(ROOT / "tests/c" / program, tmp_path, language)
    if program.endswith(".cc"):
        assert text == "ok\n"
    else:
        y, dw = map(float, text.split())
        assert y > 0
        assert dw != 0


@pytest.mark.parametrize(
    ("length", "canonical"), [(-1, -1), (0, 0), (1, 1), (32, 32), (70000, 65536), (2**31 - 1, 65536)]
)
def test_canonical_length(length: int, canonical: int) -> None:
    assert capi.call("GetRNNCanonicalLength", seqLength=length) == canonical


def test_an_slstm_has_three_states_in_cx() -> None:
    """Beside the operator's results, whose states and weights lie as the C API has them."""
    case = Case(slstm.Stack(5, 8, heads=2, layers=2), [4, 3, 2], torch.float32)
    expected = case.found()
    weights = [name for name in case.tensors if name.startswith("w")]
    data = {name: case.tensors[name].float() for name in ("x", "hx", "cx")}
    data["w"] = torch.cat([case.tensors[name].float().flatten() for name in weights])
    data |= {f"d{name}": given.float() for name, given in zip(("y", "hy", "cy"), case.gradients, strict=True)}
    data |= {name: torch.empty_like(data[f"d{name}"]) for name in ("y", "hy", "cy")}
    data |= {f"d{name}": torch.zeros_like(data[name]) for name in ("x", "hx", "cx", "w")}
    rnn = capi.descriptor("RNN")
    sizes = dict(hiddenSize=8, numLayers=2, dropoutDesc=None, inputMode=0, direction=0, mode=prnn._C.SLSTM)
    capi.check("SetRNNDescriptor", rnnDesc=rnn.pointer, dataType=0, **sizes)
    capi.check("SetRNNHeads", rnnDesc=rnn.pointer, heads=2)
    stack = SimpleNamespace(input=5)
    handle = capi.cpu_handle()
    call: Any = SimpleNamespace(handle=handle, rnn=rnn, stack=stack, batch_sizes=case.batch_sizes, data=data)
    prepared = Prepared(call)
    for name in RUNS:
        assert prepared.run(name) == capi.SUCCESS, prepared.message()
    expected["dw"] = torch.cat([expected[f"d{name}"].flatten() for name in weights])
    for name in ("y", "hy", "cy", "dx", "dhx", "dcx", "dw"):
        torch.testing.assert_close(data[name].double(), expected[name], atol=1e-5, rtol=1e-5, msg=name)
