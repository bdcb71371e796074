"""libprnn through ctypes: every function of the public headers, called as a C program would.

The prototypes are read from the headers, so that a function that is declared is here, with its parameters' names.
"""

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import prnn
from prnn import _C

PACKAGE = Path(prnn.__file__).parent
HEADERS = [
    PACKAGE.parent / "include" / name
    for name in (
        "prnn_types.h",
        "persistent_rnn.h",
        "prnn_call.h",
        "prnn_losses.h",
        "prnn_decode.h",
        "prnn_transfer.h",
    )
]  # those of a checkout

SUCCESS, NOT_INITIALIZED, ALLOC_FAILED, BAD_PARAM, INTERNAL_ERROR = range(5)
EXECUTION_FAILED, NOT_SUPPORTED = 8, 9
FLOAT, DOUBLE, HALF, BFLOAT16 = 0, 1, 2, 9

CPU = _C.Rnn(_C.LSTM, _C.FLOAT, 4, 1, 4, False).query(_C.Handle.cpu(), 1)["device"]  # "CPU AVX2", say
MULTIPLIES_PAIRS = CPU in ("CPU AVX-512 BF16", "CPU AMX")  # of bfloat16 numbers: 16 bits of float's 24

VALUE_TYPES = {
    "int": ctypes.c_int,
    "int64_t": ctypes.c_int64,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "unsigned long long": ctypes.c_ulonglong,
}


def parameter_type(text: str) -> Any:
    """The ctypes type of a C type: opaque objects and arrays are addresses, enumerations int."""
    text = text.replace("const", "").strip()
    if "*" in text or "[" in text or re.fullmatch(r"prnn(Handle|Stream|RNNCall|\w+Descriptor)_t", text):
        return ctypes.c_void_p
    return VALUE_TYPES.get(text, ctypes.c_int)


@dataclass(frozen=True)
class Function:
    """A prototype: the C name, and the parameters' names in order."""

    name: str
    pointer: Any
    parameters: tuple[str, ...]

    def __call__(self, **arguments: Any) -> Any:
        assert set(arguments) == set(self.parameters), f"{self.name}: {set(arguments) ^ set(self.parameters)}"
        return self.pointer(*(arguments[name] for name in self.parameters))


MISSING: list[str] = []  # declared but not exported


def load() -> dict[str, Function]:
    library = ctypes.CDLL(str(next((PACKAGE / "lib").glob("libprnn.so.*"))))
    functions = {}
    for header in HEADERS:
        text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
        for result, name, parameters in re.findall(r"PRNN_API\s+([\w\s*]+?)\s*(prnn\w+)\(([^)]*)\);", text):
            pointer = getattr(library, name, None)
            if pointer is None:
                MISSING.append(name)
                continue
            pointer.restype = ctypes.c_char_p if "char" in result else parameter_type(result)
            parsed = [re.fullmatch(r"\s*(.*?)(\w+)(\[\w*\])?\s*", text) for text in parameters.split(",")]
            named = [match for match in parsed if match and match[2] != "void"]
            pointer.argtypes = [parameter_type(match[1] + (match[3] or "")) for match in named]
            functions[name] = Function(name, pointer, tuple(match[2] for match in named))
    return functions


FUNCTIONS = load()


def call(name: str, **arguments: Any) -> Any:
    """Calls prnn<name> with every parameter by name; the status (or whatever it returns)."""
    return FUNCTIONS[f"prnn{name}"](**arguments)


def message(handle: int | None = None) -> str:
    return call("GetLastErrorMessage", handle=handle).decode()


def check(name: str, **arguments: Any) -> None:
    """Calls prnn<name>, which must succeed."""
    status = call(name, **arguments)
    assert status == SUCCESS, f"prnn{name}: {status}: {message(arguments.get('handle')) or message()}"


class Masks(ctypes.Structure):
    """prnnRNNMasks_t."""

    _fields_ = (
        ("recurrent", ctypes.c_void_p),
        ("zoneout", ctypes.c_void_p),
        ("zoneoutExpectation", ctypes.c_double),
    )


class Extras(ctypes.Structure):
    """prnnRNNExtras_t."""

    _fields_ = [
        (name, ctypes.c_void_p) for name in ("reset", "cells", "dcells", "resetHx", "resetCx", "dresetHx", "dresetCx")
    ]


class Norm(ctypes.Structure):
    """prnnRNNNorm_t, and prnnRNNNormGradients_t."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("gateGain", "gateBias", "cellGain", "cellBias")]


def _run_args(arrays: str, more: str) -> type[ctypes.Structure]:
    """The arguments of a run of prnn_call.h: its arrays, workspace and reserve space, then `more`."""
    sizes = ("workspaceSize", "reserveSize")
    names = (*arrays.split(), "workspace", "workspaceSize", "reserve", "reserveSize", *more.split())
    fields = [(name, ctypes.c_size_t if name in sizes else ctypes.c_void_p) for name in names]
    return type("RunArgs", (ctypes.Structure,), {"_fields_": fields})


RUN_ARGS = {
    "RunRNNForward": _run_args("x hx cx w y hy cy", "extras masks norm lengths"),
    "RunRNNBackwardData": _run_args("y dy dhy dcy w hx cx dx dhx dcx", "extras masks"),
    "RunRNNBackwardWeights": _run_args("x hx y dw", "extras masks"),
    "RunRNNBackward": _run_args("x hx cx w y dy dcy dx dhx dcx dw", "masks norm lengths normGradients"),
}


class CallInfo(ctypes.Structure):
    """prnnRNNCallInfo_t, of its plan the beginning."""

    _fields_ = (
        ("backend", ctypes.c_int),
        ("workspaceSize", ctypes.c_size_t),
        ("reserveSize", ctypes.c_size_t),
        ("retainedReserveSize", ctypes.c_size_t),
        ("weightsSize", ctypes.c_size_t),
        ("rows", ctypes.c_size_t),
        ("supported", ctypes.c_int),
        ("planBackend", ctypes.c_int),
        ("device", ctypes.c_char * 64),
        ("measured", ctypes.c_int),
        ("forwardEngine", ctypes.c_char * 24),
        ("backwardEngine", ctypes.c_char * 24),
        ("rest", ctypes.c_char * 4096),
    )


class Plan(ctypes.Structure):
    """prnnRNNPlan_t."""

    _fields_ = [
        (name, ctypes.c_int) for name in ("engine", "unitsPerBlock", "clusterBlocks", "replicas", "pollDelayCycles")
    ]


class Object:
    """An object behind an opaque pointer; destroyed with this one."""

    def __init__(self, create: str, destroy: str) -> None:
        self.pointer: int | None = None
        self.destroy = FUNCTIONS[f"prnn{destroy}"].pointer
        made = ctypes.c_void_p()
        status = FUNCTIONS[f"prnn{create}"].pointer(ctypes.byref(made))
        assert status == SUCCESS, f"prnn{create}: {status}: {message()}"
        self.pointer = made.value

    def __del__(self) -> None:
        self.destroy(self.pointer)


def cpu_handle() -> Object:
    return Object("CreateCPU", "Destroy")


def descriptor(kind: str) -> Object:
    """kind: Tensor, Filter, Dropout or RNN. Not set yet."""
    return Object(f"Create{kind}Descriptor", f"Destroy{kind}Descriptor")


def ints(values: list[int]) -> ctypes.Array:
    return (ctypes.c_int * len(values))(*values)


def packed_strides(dims: list[int]) -> list[int]:
    strides = [1] * len(dims)
    for i in reversed(range(len(dims) - 1)):
        strides[i] = strides[i + 1] * dims[i + 1]
    return strides


def tensor(dims: list[int], data_type: int = FLOAT, strides: list[int] | None = None) -> Object:
    made = descriptor("Tensor")
    check(
        "SetTensorNdDescriptor",
        tensorDesc=made.pointer,
        dataType=data_type,
        nbDims=len(dims),
        dimA=ints(dims),
        strideA=ints(strides or packed_strides(dims)),
    )
    return made


def filter_(dims: list[int], data_type: int = FLOAT) -> Object:
    made = descriptor("Filter")
    check(
        "SetFilterNdDescriptor",
        filterDesc=made.pointer,
        dataType=data_type,
        format=0,
        nbDims=len(dims),
        filterDimA=ints(dims),
    )
    return made


def addresses(objects: list[Object]) -> ctypes.Array:
    """An array of descriptors, as xDesc is."""
    return (ctypes.c_void_p * len(objects))(*(object_.pointer for object_ in objects))


def size_from(name: str, **arguments: Any) -> int:
    """Calls a function whose output is sizeInBytes."""
    size = ctypes.c_size_t()
    check(name, sizeInBytes=ctypes.byref(size), **arguments)
    return size.value
