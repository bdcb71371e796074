"""Every bad argument of every recurrent function: a status, a message with name and value, and outputs untouched."""

import ctypes
from typing import Any

import capi
import pytest
import torch
from reference import rnn as reference
from rnn_case import OUTPUTS, RnnCase

CALLS = ("RNNForwardInference", "RNNForwardTraining", "RNNBackwardData", "RNNBackwardWeights")
OPTIONAL_DATA = ("hx", "cx", "hy", "cy", "dhx", "dcx", "dhy", "dcy", "dx")
INT_MAX = 2**31 - 1


@pytest.fixture
def case() -> RnnCase:
    """Three timesteps of 4, 3 and 2 sequences, trained up to where any call may come next."""
    made = RnnCase(reference.Stack(reference.LSTM, 5, 6, 2, 2), [4, 3, 2])
    made.train()
    for name in OUTPUTS:
        made.data[name].fill_(made.UNTOUCHED)
    made.data["y"].zero_()
    return made


def assert_refused(case: RnnCase, name: str, changes: dict[str, Any], text: str, status: int = capi.BAD_PARAM) -> None:
    reserve = case.reserve.clone()
    assert case.call(name, **changes) == status, f"{changes}: {capi.message(case.handle.pointer)}"
    message = capi.message(case.handle.pointer) if status != capi.NOT_INITIALIZED else capi.message()
    assert text in message, f"{changes}: {message}"
    for output in OUTPUTS:
        expected = 0 if output == "y" else case.UNTOUCHED
        assert torch.all(case.data[output] == expected), f"{output} was written"
    assert torch.equal(case.reserve, reserve), "reserveSpace was written"


def destroyed(kind: str) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    parameter = capi.FUNCTIONS[f"prnnCreate{kind}Descriptor"].parameters[0]
    capi.check(f"Create{kind}Descriptor", **{parameter: ctypes.byref(made)})
    capi.check(f"Destroy{kind}Descriptor", **{parameter: made})
    return made


def sequence_with(case: RnnCase, name: str, t: int, replacement: Any) -> ctypes.Array:
    """case's array of descriptors `name` with element t replaced."""
    original = case.x_desc if name in ("xDesc", "dxDesc") else case.y_desc
    changed = (ctypes.c_void_p * len(original))(*original)
    changed[t] = replacement
    return changed


@pytest.mark.parametrize("name", CALLS)
def test_handle(case: RnnCase, name: str) -> None:
    assert_refused(case, name, {"handle": None}, "the handle is NULL", capi.NOT_INITIALIZED)
    dead = ctypes.c_void_p()
    capi.check("CreateCPU", handle=ctypes.byref(dead))
    capi.check("Destroy", handle=dead)
    assert_refused(case, name, {"handle": dead}, "not one that prnnCreate", capi.NOT_INITIALIZED)


@pytest.mark.parametrize("name", CALLS)
def test_rnn_descriptor(case: RnnCase, name: str) -> None:
    unset = capi.descriptor("RNN")
    assert_refused(case, name, {"rnnDesc": None}, "rnnDesc is NULL")
    assert_refused(case, name, {"rnnDesc": destroyed("RNN")}, "was destroyed")
    assert_refused(case, name, {"rnnDesc": case.h_desc.pointer}, "is no RNN descriptor")
    assert_refused(case, name, {"rnnDesc": unset.pointer}, "has not been set")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("length", [0, -1, -(2**31)])
def test_sequence_length(case: RnnCase, name: str, length: int) -> None:
    assert_refused(case, name, {"seqLength": length}, f"seqLength is {length}")


def parameters_of(kind: str) -> list[tuple[str, str]]:
    """(call, parameter) of all parameters of a kind."""
    found = []
    for name in CALLS:
        parameters = capi.FUNCTIONS[f"prnn{name}"].parameters
        data = [parameter for parameter in parameters if f"{parameter}Desc" in parameters]
        kinds = {
            "required": [parameter for parameter in data if parameter not in OPTIONAL_DATA],
            "sequence": [f"{parameter}Desc" for parameter in data if parameter in ("x", "y", "dx", "dy")],
            "state": [f"{parameter}Desc" for parameter in data if parameter[-2:] in ("hx", "hy", "cx", "cy")],
            "weights": [f"{parameter}Desc" for parameter in data if parameter in ("w", "dw")],
        }
        found += [(name, parameter) for parameter in kinds[kind]]
    return found


@pytest.mark.parametrize(("name", "parameter"), parameters_of("required"))
def test_data_that_must_not_be_null(case: RnnCase, name: str, parameter: str) -> None:
    assert_refused(case, name, {parameter: None}, f"{parameter} is NULL")


@pytest.mark.parametrize("name", CALLS)
def test_data_that_is_not_aligned(case: RnnCase, name: str) -> None:
    arguments = case.arguments(name)
    for parameter in [parameter for parameter in arguments if f"{parameter}Desc" in arguments]:
        address = arguments[parameter] + 4  # of doubles
        text = f"{parameter} is at address {address:#x}; it must be aligned to 8 bytes"
        assert_refused(case, name, {parameter: address}, text)


def test_masks_extras_and_states_that_are_not_aligned(case: RnnCase) -> None:
    calls = {"cells": 1, "dcells": 2, "resetHx": 3, "resetCx": 1, "dresetHx": 2, "dresetCx": 2}
    for field, which in calls.items():
        extras = capi.Extras(reset=4097, **{field: 4100})
        capi.check("SetRNNExtras", rnnDesc=case.rnn.pointer, extras=ctypes.addressof(extras))
        text = f"extras->{field} is at address 0x1004; it must be aligned to 8 bytes"
        assert_refused(case, CALLS[which], {}, text)
    gru = RnnCase(reference.Stack(reference.GRU, 3, 4), [2])
    masks = capi.Masks(4100, 4097, 0.0)
    capi.check("SetRNNMasks", rnnDesc=gru.rnn.pointer, masks=ctypes.addressof(masks))
    for name in CALLS:
        assert gru.call(name) == capi.BAD_PARAM
        text = "masks->recurrent is at address 0x1004; it must be aligned to 8 bytes"
        assert capi.message(gru.handle.pointer) == text
    dropout = capi.descriptor("Dropout")
    arguments = {"dropoutDesc": dropout.pointer, "handle": case.handle.pointer, "dropout": 0.5}
    arguments |= {"states": 4100, "stateSizeInBytes": 4096, "seed": 1}
    assert capi.call("SetDropoutDescriptor", **arguments) == capi.BAD_PARAM
    assert capi.message(case.handle.pointer) == "states is at address 0x1004; it must be aligned to 8 bytes"


@pytest.mark.parametrize("t", [0, 1, 2])
@pytest.mark.parametrize(("name", "parameter"), parameters_of("sequence"))
def test_sequence_descriptors(case: RnnCase, name: str, parameter: str, t: int) -> None:
    original = case.x_descs[t] if parameter in ("xDesc", "dxDesc") else case.y_descs[t]
    batch, width = case.batch_sizes[t], case.stack.input if parameter in ("xDesc", "dxDesc") else 12
    wrong = {
        "is NULL": None,
        "was destroyed": destroyed("Tensor"),
        "is no tensor descriptor": case.w_desc.pointer,
        "has no dimensions yet": capi.descriptor("Tensor"),
        "has type PRNN_DATA_FLOAT; it must be PRNN_DATA_DOUBLE": capi.tensor([batch, width, 1], capi.FLOAT),
        "has type PRNN_DATA_BFLOAT16; it must be PRNN_DATA_DOUBLE": capi.tensor([batch, width, 1], capi.BFLOAT16),
        f"has dimensions {{{batch}}}": capi.tensor([batch], capi.DOUBLE),
        f"has dimensions {{{batch}, {width}, 2}}": capi.tensor([batch, width, 2], capi.DOUBLE),
        f"has dimensions {{{batch}, {width + 1}, 1}}": capi.tensor([batch, width + 1, 1], capi.DOUBLE),
        "it must be packed": capi.tensor([batch, width, 1], capi.DOUBLE, strides=[width + 1, 1, 1]),
    }
    for text, bad in wrong.items():
        if f"{width + 1}, 1}}" in text and t == 0 and parameter in ("xDesc", "dxDesc"):
            continue  # the first descriptor says what the input size is; test_input_size has it disagree with wDesc
        pointer = bad.pointer if isinstance(bad, capi.Object) else bad
        assert_refused(case, name, {parameter: sequence_with(case, parameter, t, pointer)}, text)
        if text not in ("is NULL", "was destroyed"):
            assert f"{parameter}[{t}]" in capi.message(case.handle.pointer)
    assert original.pointer
    assert_refused(case, name, {parameter: None}, f"{parameter} is NULL")


@pytest.mark.parametrize(("name", "parameter"), parameters_of("sequence"))
def test_batch_sizes(case: RnnCase, name: str, parameter: str) -> None:
    width = case.stack.input if parameter in ("xDesc", "dxDesc") else 12
    more = capi.tensor([4, width, 1], capi.DOUBLE)
    changes = {parameter: sequence_with(case, parameter, 2, more.pointer)}
    leads = "yDesc" if name == "RNNBackwardData" else "xDesc"
    text = f"{parameter}[2] has batch 4, more than the 3" if parameter == leads else f"{parameter}[2] has dimensions"
    assert_refused(case, name, changes, text)
    huge = capi.tensor([INT_MAX, width, 1], capi.DOUBLE)
    assert_refused(case, name, {parameter: sequence_with(case, parameter, 0, huge.pointer)}, str(INT_MAX))


@pytest.mark.parametrize(("name", "parameter"), parameters_of("state"))
def test_state_descriptors(case: RnnCase, name: str, parameter: str) -> None:
    wrong = {
        f"{parameter} is NULL": None,
        "was destroyed": destroyed("Tensor"),
        "is no tensor descriptor": case.rnn.pointer,
        f"{parameter} has no dimensions yet": capi.descriptor("Tensor"),
        f"{parameter} has type PRNN_DATA_HALF": capi.tensor([4, 4, 6], capi.HALF),
        f"{parameter} has dimensions {{4, 4}}": capi.tensor([4, 4], capi.DOUBLE),
        f"{parameter} has dimensions {{2, 4, 6}}": capi.tensor([2, 4, 6], capi.DOUBLE),
        f"{parameter} has dimensions {{4, 3, 6}}": capi.tensor([4, 3, 6], capi.DOUBLE),
        f"{parameter} has dimensions {{4, 4, 7}}": capi.tensor([4, 4, 7], capi.DOUBLE),
        f"{parameter} has dimensions {{4, 4, 6, 2}}": capi.tensor([4, 4, 6, 2], capi.DOUBLE),
        f"{parameter} has dimensions {{4, 4, 6}} with strides": capi.tensor([4, 4, 6], capi.DOUBLE, [48, 6, 1]),
    }
    for text, bad in wrong.items():
        pointer = bad.pointer if isinstance(bad, capi.Object) else bad
        assert_refused(case, name, {parameter: pointer}, text)


@pytest.mark.parametrize(("name", "parameter"), parameters_of("weights"))
def test_weight_descriptors(case: RnnCase, name: str, parameter: str) -> None:
    count = reference.params_size(case.stack)
    wrong = {
        f"{parameter} is NULL": None,
        "was destroyed": destroyed("Filter"),
        "is no filter descriptor": case.h_desc.pointer,
        f"{parameter} has no dimensions yet": capi.descriptor("Filter"),
        f"{parameter} has type PRNN_DATA_FLOAT": capi.filter_([count], capi.FLOAT),
        f"the packed weights of this layer have {count} elements": capi.filter_([count + 1], capi.DOUBLE),
        f"{parameter} has dimensions {{{INT_MAX}, {INT_MAX}, {INT_MAX}}}": capi.filter_([INT_MAX] * 3, capi.DOUBLE),
    }
    for text, bad in wrong.items():
        pointer = bad.pointer if isinstance(bad, capi.Object) else bad
        assert_refused(case, name, {parameter: pointer}, text)


@pytest.mark.parametrize("name", CALLS)
def test_input_size(case: RnnCase, name: str) -> None:
    """An input size that disagrees with the packed weights'."""
    parameter = "dxDesc" if name == "RNNBackwardData" else "xDesc"
    wide = [capi.tensor([batch, 50, 1], capi.DOUBLE) for batch in case.batch_sizes]
    assert_refused(case, name, {parameter: capi.addresses(wide)}, "the packed weights of this layer have")


@pytest.mark.parametrize("name", CALLS)
def test_skip_input_wants_inputs_of_the_hidden_size(case: RnnCase, name: str) -> None:
    case.set_rnn(inputMode=1)
    parameter = "dxDesc[0]" if name == "RNNBackwardData" else "xDesc[0]"
    assert_refused(case, name, {}, f"{parameter} has input size 5; with PRNN_SKIP_INPUT it must be the hidden size, 6")


@pytest.mark.parametrize("name", CALLS)
def test_workspace(case: RnnCase, name: str) -> None:
    needed = case.workspace.numel()
    assert_refused(case, name, {"workspace": None}, "workspace is NULL")
    assert_refused(case, name, {"workSpaceSizeInBytes": 0}, "workSpaceSizeInBytes is 0; this call needs")
    short = needed // 64
    assert_refused(case, name, {"workSpaceSizeInBytes": short}, f"workSpaceSizeInBytes is {short}; this call needs")
    if name != "RNNForwardInference":
        assert_refused(
            case,
            name,
            {"workSpaceSizeInBytes": needed - 1},
            f"workSpaceSizeInBytes is {needed - 1}; this call needs {needed} bytes",
        )


@pytest.mark.parametrize("name", CALLS[1:])
def test_reserve_space(case: RnnCase, name: str) -> None:
    needed = case.least_reserve_size()
    assert_refused(case, name, {"reserveSpace": None}, "reserveSpace is NULL")
    for size in (0, needed - 1):
        text = f"reserveSpaceSizeInBytes is {size}; this call needs {needed} bytes"
        assert_refused(case, name, {"reserveSpaceSizeInBytes": size}, text)


@pytest.mark.parametrize("name", CALLS)
def test_a_dropout_descriptor_that_was_destroyed(case: RnnCase, name: str) -> None:
    dropout = capi.descriptor("Dropout")
    capi.check(
        "SetDropoutDescriptor",
        dropoutDesc=dropout.pointer,
        handle=case.handle.pointer,
        dropout=0.5,
        states=None,
        stateSizeInBytes=0,
        seed=1,
    )
    case.set_rnn(dropoutDesc=dropout.pointer)
    if name == "RNNForwardTraining":
        assert_refused(case, name, {}, "dropout 0.5 between layers needs states")
    del dropout
    assert_refused(case, name, {}, "the dropout descriptor of rnnDesc")


class TestQueries:
    """The functions that ask for sizes."""

    SEQUENCE = ("GetRNNWorkspaceSize", "GetRNNTrainingReserveSize")

    def refused(self, case: RnnCase, name: str, text: str, status: int = capi.BAD_PARAM, **changes: Any) -> None:
        size = ctypes.c_size_t(77)
        arguments: dict[str, Any] = {
            "handle": case.handle.pointer,
            "rnnDesc": case.rnn.pointer,
            "sizeInBytes": ctypes.byref(size),
        }
        if name == "GetRNNParamsSize":
            arguments |= {"xDesc": case.x_descs[0].pointer, "dataType": case.data_type}
        else:
            arguments |= {"xDesc": case.x_desc, "seqLength": len(case.batch_sizes)}
        assert capi.call(name, **(arguments | changes)) == status
        handle = None if status == capi.NOT_INITIALIZED else case.handle.pointer
        assert text in capi.message(handle)
        assert size.value == 77

    @pytest.mark.parametrize("name", [*SEQUENCE, "GetRNNParamsSize"])
    def test_common_arguments(self, case: RnnCase, name: str) -> None:
        unset = capi.descriptor("RNN")
        self.refused(case, name, "the handle is NULL", capi.NOT_INITIALIZED, handle=None)
        self.refused(case, name, "rnnDesc is NULL", rnnDesc=None)
        self.refused(case, name, "was destroyed", rnnDesc=destroyed("RNN"))
        self.refused(case, name, "has not been set", rnnDesc=unset.pointer)
        self.refused(case, name, "xDesc is NULL", xDesc=None)
        self.refused(case, name, "sizeInBytes is NULL", sizeInBytes=None)

    @pytest.mark.parametrize("name", SEQUENCE)
    def test_sequences(self, case: RnnCase, name: str) -> None:
        self.refused(case, name, "seqLength is 0", seqLength=0)
        self.refused(case, name, "seqLength is -3", seqLength=-3)
        increasing = capi.addresses(list(reversed(case.x_descs)))
        self.refused(case, name, "xDesc[1] has batch 3, more than the 2", xDesc=increasing)

    def test_sizes_of_a_mode(self, case: RnnCase) -> None:
        """One call gives the sizes of inference and of training; the older functions answer for both."""
        inference, training = case.temp_space_sizes(fwdMode=0), case.temp_space_sizes(fwdMode=1)
        assert inference[0] == training[0] == capi.SUCCESS
        assert max(inference[1], training[1]) == case.size("GetRNNWorkspaceSize")
        assert inference[2] == 0
        assert 0 < training[2] < case.size("GetRNNTrainingReserveSize")

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            (dict(fwdMode=2), "fwdMode is 2; it must be PRNN_FWD_MODE_INFERENCE (0) or PRNN_FWD_MODE_TRAINING (1)"),
            (dict(fwdMode=-1), "fwdMode is -1; it must be"),
            (dict(seqLength=0), "seqLength is 0"),
            (dict(rnnDesc=None), "rnnDesc is NULL"),
            (dict(xDesc=None), "xDesc is NULL"),
            (dict(workSpaceSize=None), "workSpaceSize is NULL"),
            (dict(reserveSpaceSize=None), "reserveSpaceSize is NULL"),
        ],
    )
    def test_sizes_of_a_mode_refused(self, case: RnnCase, changes: dict[str, Any], text: str) -> None:
        assert case.temp_space_sizes(**changes) == (capi.BAD_PARAM, 77, 78)
        assert text in capi.message(case.handle.pointer)
        assert case.temp_space_sizes(handle=None) == (capi.NOT_INITIALIZED, 77, 78)

    def test_params_size(self, case: RnnCase) -> None:
        narrow, float_ = capi.tensor([4], capi.DOUBLE), capi.tensor([4, 5, 1], capi.FLOAT)
        self.refused(case, "GetRNNParamsSize", "dataType is 77", dataType=77)
        self.refused(
            case,
            "GetRNNParamsSize",
            "dataType is PRNN_DATA_FLOAT; that of rnnDesc is PRNN_DATA_DOUBLE",
            dataType=capi.FLOAT,
        )
        self.refused(case, "GetRNNParamsSize", "xDesc has dimensions {4}", xDesc=narrow.pointer)
        self.refused(case, "GetRNNParamsSize", "xDesc has type PRNN_DATA_FLOAT", xDesc=float_.pointer)

    def test_sizes_beyond_64_bits(self, case: RnnCase) -> None:
        x_desc = capi.tensor([1, INT_MAX, 1], capi.DOUBLE)
        case.set_rnn(hiddenSize=INT_MAX, numLayers=INT_MAX)
        text = "need more memory than can be addressed"
        self.refused(case, "GetRNNParamsSize", text, xDesc=x_desc.pointer)
        for name in self.SEQUENCE:
            self.refused(case, name, text, xDesc=capi.addresses([x_desc] * 3))
        case.set_rnn(hiddenSize=6, numLayers=1)
        many = capi.tensor([INT_MAX, INT_MAX, 1], capi.DOUBLE)
        for name in self.SEQUENCE:
            self.refused(case, name, text, xDesc=capi.addresses([many] * 3))


SETTINGS: list[tuple[dict[str, Any], str]] = [
    (dict(hiddenSize=0), "hiddenSize is 0"),
    (dict(hiddenSize=-5), "hiddenSize is -5"),
    (dict(numLayers=0), "numLayers is 0"),
    (dict(numLayers=-(2**31)), "numLayers is -2147483648"),
    (dict(inputMode=3), "inputMode is 3"),
    (dict(inputMode=-1), "inputMode is -1"),
    (dict(direction=3), "direction is 3"),
    (dict(mode=6), "mode is 6"),
    (dict(mode=-1), "mode is -1"),
    (dict(dataType=5), "dataType is 5"),
    (dict(rnnDesc=None), "rnnDesc is NULL"),
]


@pytest.mark.parametrize(("changes", "text"), SETTINGS)
def test_set_rnn_descriptor(case: RnnCase, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(AssertionError):
        case.set_rnn(**changes)
    assert text in capi.message()
    case.data["y"].fill_(case.UNTOUCHED)
    case.train()  # the descriptor still holds what it was set to


def test_set_rnn_descriptor_with_a_bad_dropout_descriptor(case: RnnCase) -> None:
    unset = capi.descriptor("Dropout")
    for bad, text in [(unset.pointer, "dropoutDesc has not been set"), (destroyed("Dropout"), "was destroyed")]:
        with pytest.raises(AssertionError):
            case.set_rnn(dropoutDesc=bad)
        assert text in capi.message()


@pytest.mark.parametrize(("mode", "size"), [(2, -1), (2, 6), (2, 7), (2, INT_MAX), (3, 2), (0, 1)])
def test_projection_size(case: RnnCase, mode: int, size: int) -> None:
    case.set_rnn(mode=mode)
    assert capi.call("SetRNNProjectionSize", rnnDesc=case.rnn.pointer, projSize=size) == capi.BAD_PARAM
    assert f"projSize is {size}" in capi.message()


def test_settings_of_a_descriptor_that_is_not_set() -> None:
    unset = capi.descriptor("RNN")
    for bad, text in [(None, "rnnDesc is NULL"), (unset.pointer, "has not been set"), (destroyed("RNN"), "destroyed")]:
        assert capi.call("SetRNNProjectionSize", rnnDesc=bad, projSize=0) == capi.BAD_PARAM
        assert text in capi.message()
        assert capi.call("SetRNNHeads", rnnDesc=bad, heads=1) == capi.BAD_PARAM
        assert text in capi.message()
        assert capi.call("SetRNNBackend", rnnDesc=bad, backend=0) == capi.BAD_PARAM
        assert text in capi.message()
        assert capi.call("SetRNNMatrixMathType", rnnDesc=bad, mType=0) == capi.BAD_PARAM
        assert text in capi.message()
        assert capi.call("SetRNNWgradMode", rnnDesc=bad, wgradMode=0) == capi.BAD_PARAM
        assert text in capi.message()
        assert capi.call("SetRNNFrozenLayers", rnnDesc=bad, frozenLayers=0) == capi.BAD_PARAM
        assert text in capi.message()


@pytest.mark.parametrize("backend", [-1, 3])
def test_backend(case: RnnCase, backend: int) -> None:
    assert capi.call("SetRNNBackend", rnnDesc=case.rnn.pointer, backend=backend) == capi.BAD_PARAM
    assert f"backend is {backend}" in capi.message()


@pytest.mark.parametrize("mode", [-1, 2])
def test_wgrad_mode(case: RnnCase, mode: int) -> None:
    assert capi.call("SetRNNWgradMode", rnnDesc=case.rnn.pointer, wgradMode=mode) == capi.BAD_PARAM
    assert f"wgradMode is {mode}" in capi.message()


@pytest.mark.parametrize("math", [-1, 4])
def test_math_type(case: RnnCase, math: int) -> None:
    assert capi.call("SetRNNMatrixMathType", rnnDesc=case.rnn.pointer, mType=math) == capi.BAD_PARAM
    assert f"mType is {math}" in capi.message()
