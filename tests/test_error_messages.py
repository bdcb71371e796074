"""Statuses, their names, and the message of the last failed call."""

import ctypes
import re
import threading

import capi

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
