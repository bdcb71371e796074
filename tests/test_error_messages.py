"""Statuses, their names, and the message of the last failed call."""

import ctypes
import re
import threading

import capi
import pytest

STATUSES = {int(value): name for name, value in re.findall(r"(PRNN_STATUS_\w+) = (\d+)", capi.HEADERS[0].read_text())}


def fail(handle: capi.Object) -> None:
    assert capi.call("GetStream", handle=handle.pointer, stream=None) == capi.BAD_PARAM


def test_every_status_has_its_name() -> None:
    assert sorted(STATUSES) == list(range(11))
    for value, name in STATUSES.items():
        assert capi.call("GetErrorString", status=value).decode() == name


def test_an_unknown_status_has_a_name_too() -> None:
    for value in (-1, 11, 2**31 - 1):
        assert capi.call("GetErrorString", status=value) == b"PRNN_STATUS_UNKNOWN"


def test_version() -> None:
    values = dict(re.findall(r"#define PRNN_(MAJOR|MINOR|PATCHLEVEL) (\d+)", capi.HEADERS[0].read_text()))
    expected = 1000 * int(values["MAJOR"]) + 100 * int(values["MINOR"]) + int(values["PATCHLEVEL"])
    assert capi.call("GetVersion") == expected


def test_every_declared_function_is_exported() -> None:
    assert capi.MISSING == []
    assert len(capi.FUNCTIONS) > 40


def test_a_new_handle_has_no_message() -> None:
    assert capi.message(capi.cpu_handle().pointer) == ""


def test_a_failure_is_kept_on_its_own_handle_until_the_next() -> None:
    first, second = capi.cpu_handle(), capi.cpu_handle()
    fail(first)
    assert capi.message(first.pointer) == "stream is NULL"
    assert capi.message(second.pointer) == ""
    capi.check("SetStream", handle=first.pointer, stream=None)
    assert capi.message(first.pointer) == "stream is NULL"
    size = capi.call("DropoutGetStatesSize", handle=first.pointer, sizeInBytes=None)
    assert size == capi.BAD_PARAM
    assert capi.message(first.pointer) == "sizeInBytes is NULL"


def test_a_handle_made_after_a_failed_one_was_destroyed_starts_without_a_message() -> None:
    for _ in range(100):
        handle = capi.cpu_handle()
        assert capi.message(handle.pointer) == ""
        fail(handle)


def test_failures_without_a_handle_belong_to_their_thread() -> None:
    capi.call("CreateTensorDescriptor", tensorDesc=None)
    seen = []

    def other_thread() -> None:
        seen.append(capi.message())
        capi.call("CreateRNNDescriptor", rnnDesc=None)
        seen.append(capi.message())

    thread = threading.Thread(target=other_thread)
    thread.start()
    thread.join()
    assert seen == ["", "rnnDesc is NULL"]
    assert capi.message() == "tensorDesc is NULL"


def test_a_handle_that_is_none_is_refused() -> None:
    handle = ctypes.c_void_p()
    capi.check("CreateCPU", handle=ctypes.byref(handle))
    capi.check("Destroy", handle=handle)
    garbage = ctypes.create_string_buffer(256)
    for bad, text in [(None, "the handle is NULL"), (handle, "not one that"), (garbage, "not one that")]:
        assert capi.call("SetStream", handle=bad, stream=None) == capi.NOT_INITIALIZED
        assert text in capi.message()
        assert capi.message(bad) == capi.message()
    assert capi.call("Destroy", handle=handle) == capi.NOT_INITIALIZED
    assert capi.call("Destroy", handle=None) == capi.SUCCESS


def test_creating_a_handle_needs_somewhere_to_put_it() -> None:
    for create in ("Create", "CreateCPU"):
        assert capi.call(create, handle=None) == capi.BAD_PARAM
        assert capi.message() == "handle is NULL"


def test_the_stream_is_kept() -> None:
    handle, stream = capi.cpu_handle(), ctypes.c_void_p()
    capi.check("SetStream", handle=handle.pointer, stream=0x1234)
    capi.check("GetStream", handle=handle.pointer, stream=ctypes.byref(stream))
    assert stream.value == 0x1234


def enumerators(kind: str) -> dict[str, int]:
    """Returns the enumerators of an enumeration of the public headers."""
    for header in capi.HEADERS:
        text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
        if found := re.search(rf"typedef enum \{{([^}}]*)\}} {kind};", text):
            return {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", found[1])}
    raise AssertionError(kind)


DESCRIPTOR = {"hiddenSize": 4, "numLayers": 1, "dropoutDesc": None, "inputMode": 0, "direction": 0, "mode": 2}
FILTER = {"dataType": 0, "format": 0, "nbDims": 1, "filterDimA": capi.ints([3])}


@pytest.mark.parametrize("given", [-1, 77])
@pytest.mark.parametrize(
    ("function", "argument", "kind"),
    [
        ("SetRNNDescriptor", "inputMode", "prnnRNNInputMode_t"),
        ("SetRNNDescriptor", "direction", "prnnDirectionMode_t"),
        ("SetRNNDescriptor", "mode", "prnnRNNMode_t"),
        ("SetRNNDescriptor", "dataType", "prnnDataType_t"),
        ("SetRNNBackend", "backend", "prnnRNNBackend_t"),
        ("SetRNNMatrixMathType", "mType", "prnnMathType_t"),
        ("SetRNNWgradMode", "wgradMode", "prnnWgradMode_t"),
        ("SetFilterNdDescriptor", "format", "prnnTensorFormat_t"),
    ],
)
def test_an_enumerator_is_named_with_its_number(function: str, argument: str, kind: str, given: int) -> None:
    descriptor = capi.descriptor("Filter" if "Filter" in function else "RNN")
    arguments = {**DESCRIPTOR, "dataType": 0}
    if "Filter" in function:
        arguments = {**FILTER, "filterDesc": descriptor.pointer}
    else:
        capi.check("SetRNNDescriptor", rnnDesc=descriptor.pointer, **arguments)
        arguments = {**(arguments if "Descriptor" in function else {}), "rnnDesc": descriptor.pointer}
    assert capi.call(function, **(arguments | {argument: given})) == capi.BAD_PARAM
    *most, last = (f"{name} ({value})" for name, value in enumerators(kind).items())
    assert capi.message() == f"{argument} is {given}; it must be {', '.join(most)} or {last}"


def test_a_mode_that_does_not_go_with_an_argument_is_named() -> None:
    rnn = capi.descriptor("RNN")
    for name, mode in enumerators("prnnRNNMode_t").items():
        if name != "PRNN_LSTM":
            capi.check("SetRNNDescriptor", rnnDesc=rnn.pointer, **(DESCRIPTOR | {"mode": mode, "dataType": 0}))
            assert capi.call("SetRNNProjectionSize", rnnDesc=rnn.pointer, projSize=2) == capi.BAD_PARAM
            assert capi.message() == f"projSize is 2 with {name}; only PRNN_LSTM has a projection"
