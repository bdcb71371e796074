"""prnnQueryRNN, prnnQueryRNNForGPU and prnnGetGPUName: plans without starting anything."""

import ctypes
from typing import Any

import capi
import pytest

BACKEND_PERSISTENT = 0
GPUS = []
while name := capi.call("GetGPUName", index=len(GPUS)):
    GPUS.append(name.decode())


class Info(ctypes.Structure):
    """prnnRNNInfo_t."""

    _fields_ = [
        ("supported", ctypes.c_int),
        ("backend", ctypes.c_int),
        ("device", ctypes.c_char * 64),
        ("blocks", ctypes.c_int),
        ("groups", ctypes.c_int),
        ("unitsPerBlock", ctypes.c_int),
        ("batchPerPass", ctypes.c_int),
        ("registerBytes", ctypes.c_size_t),
        ("sharedBytes", ctypes.c_size_t),
        ("largestHiddenSize", ctypes.c_int),
        ("reason", ctypes.c_char * 256),
    ]


class Layer:
    def __init__(self, mode: int = 2, hidden: int = 1024, data_type: int = capi.HALF, batch: int = 4) -> None:
        self.handle = capi.cpu_handle()
        self.rnn = capi.descriptor("RNN")
        capi.check(
            "SetRNNDescriptor",
            rnnDesc=self.rnn.pointer,
            hiddenSize=hidden,
            numLayers=1,
            dropoutDesc=None,
            inputMode=0,
            direction=0,
            mode=mode,
            dataType=data_type,
        )
        self.x_desc = capi.tensor([batch, hidden, 1], data_type)
        self.info = Info(supported=-5)

    def query(self, status: int = capi.SUCCESS, **changes: Any) -> Info:
        arguments = dict(
            handle=self.handle.pointer,
            rnnDesc=self.rnn.pointer,
            xDesc=self.x_desc.pointer,
            info=ctypes.byref(self.info),
        )
        assert capi.call("QueryRNN", **(arguments | changes)) == status, capi.message(self.handle.pointer)
        return self.info

    def query_gpu(self, gpu: str | None, status: int = capi.SUCCESS, **changes: Any) -> Info:
        arguments = dict(
            gpu=gpu.encode() if gpu else None,
            rnnDesc=self.rnn.pointer,
            xDesc=self.x_desc.pointer,
            info=ctypes.byref(self.info),
        )
        assert capi.call("QueryRNNForGPU", **(arguments | changes)) == status, capi.message()
        return self.info


def test_the_rows_have_names() -> None:
    assert {"H200", "H100", "A100", "A10", "L4", "L40", "RTX 3090", "RTX 4090"} <= set(GPUS)
    assert {"TITAN X", "M40", "GTX 1080", "GP100"} <= set(GPUS)
    assert len(set(GPUS)) == len(GPUS)
    for index in (-1, len(GPUS), 2**31 - 1, -(2**31)):
        assert capi.call("GetGPUName", index=index) is None


@pytest.mark.parametrize("gpu", GPUS)
def test_every_row_answers(gpu: str) -> None:
    info = Layer(hidden=256).query_gpu(gpu)
    assert info.device.decode() == gpu
    assert info.backend == BACKEND_PERSISTENT
    if info.supported:
        assert info.reason == b""
        assert info.blocks * info.unitsPerBlock >= 256
        assert info.registerBytes + info.sharedBytes >= 4 * 256 * 256 * 2
        assert info.groups * info.batchPerPass >= 1
        assert info.largestHiddenSize >= 256
    else:
        assert len(info.reason) > 20


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_the_largest_layer_fits_and_the_next_does_not(mode: int) -> None:
    largest = Layer(mode).query_gpu("H200").largestHiddenSize
    assert largest >= 1024
    assert Layer(mode, hidden=largest).query_gpu("H200").supported == 1
    assert Layer(mode, hidden=largest + 1).query_gpu("H200").supported == 0


@pytest.mark.parametrize(("gpu", "largest"), [("TITAN X", 1152), ("M40", 1152), ("GTX 1080", 1460), ("GP100", 1880)])
def test_gpus_of_the_original_project(gpu: str, largest: int) -> None:
    info = Layer(mode=0, hidden=256, data_type=capi.FLOAT).query_gpu(gpu)
    assert info.supported == 0
    assert info.largestHiddenSize == largest
    assert b"not compiled" in info.reason


def test_a_layer_that_is_too_large_says_so() -> None:
    info = Layer(hidden=6000).query_gpu("H200")
    assert info.supported == 0
    assert b"hidden size 6000" in info.reason
    assert str(info.largestHiddenSize).encode() in info.reason
    assert info.blocks == 0


@pytest.mark.parametrize("data_type", [capi.FLOAT, capi.DOUBLE])
def test_cpu(data_type: int) -> None:
    info = Layer(hidden=512, data_type=data_type, batch=7).query()
    assert info.supported == 1
    assert info.device.decode().startswith("CPU ")
    assert info.reason == b""
    assert info.blocks >= 1
    assert info.blocks * info.unitsPerBlock >= 512
    assert info.batchPerPass == 7
    assert info.sharedBytes == 4 * 512 * 512 * (8 if data_type == capi.DOUBLE else 4)
    assert info.largestHiddenSize >= 16


def test_cpu_and_a_type_that_it_does_not_serve() -> None:
    info = Layer(data_type=capi.BFLOAT16).query()
    assert info.supported == 0
    assert b"float and double" in info.reason


def test_bad_arguments() -> None:
    layer = Layer()
    layer.query(capi.NOT_INITIALIZED, handle=None)
    for name in ("rnnDesc", "xDesc", "info"):
        layer.query(capi.BAD_PARAM, **{name: None})
        assert capi.message(layer.handle.pointer) == f"{name} is NULL"
        layer.query_gpu("H200", capi.BAD_PARAM, **{name: None})
        assert capi.message() == f"{name} is NULL"
    layer.query_gpu(None, capi.BAD_PARAM)
    assert capi.message() == "gpu is NULL"
    layer.query_gpu("Voodoo 2", capi.BAD_PARAM)
    assert capi.message() == f'gpu is "Voodoo 2"; the GPU table has {", ".join(GPUS)}'
    assert layer.info.supported == -5
