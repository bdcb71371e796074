"""prnn_transfer.h: copies, and handles that the library keeps."""

import ctypes

import capi
import pytest
import torch


def test_copies_on_a_cpu_handle() -> None:
    source, target = torch.arange(5.0), torch.zeros(5)
    handle = capi.cpu_handle()
    capi.check("Copy", handle=handle.pointer, to=target.data_ptr(), **{"from": source.data_ptr()}, sizeInBytes=16)
    assert target.tolist() == [0, 1, 2, 3, 0]
    bad = {"handle": handle.pointer, "to": None, "from": source.data_ptr(), "sizeInBytes": 4}
    assert capi.call("Copy", **bad) == capi.BAD_PARAM


def test_there_is_no_handle_to_borrow_without_a_gpu() -> None:
    assert capi.call("BorrowHandle", stream=None, handle=None) == capi.BAD_PARAM
    if not torch.cuda.is_available():
        found = ctypes.c_void_p()
        assert capi.call("BorrowHandle", stream=None, handle=ctypes.byref(found)) != capi.SUCCESS
        assert not found
        assert capi.message()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_borrowed_handles_copy() -> None:
    handle, again = ctypes.c_void_p(), ctypes.c_void_p()
    capi.check("BorrowHandle", stream=None, handle=ctypes.byref(handle))
    capi.check("BorrowHandle", stream=None, handle=ctypes.byref(again))
    assert handle.value == again.value
    there, here = torch.arange(5.0, device="cuda"), torch.zeros(5)
    capi.check("Copy", handle=handle, to=here.data_ptr(), **{"from": there.data_ptr()}, sizeInBytes=20)
    assert here.tolist() == [0, 1, 2, 3, 4]
