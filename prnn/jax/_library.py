"""libprnn_jax.so, whose handlers jax calls in compiled programs: their registration, and calls of them."""

import ctypes
import functools
import pathlib
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from prnn import _C

_DIFFERENTIATED = ("Rnn", "Ctc", "Rnnt", "Tdt", "JointRnnt", "JointTdt")
_HANDLERS = [f"prnnJax{name}{way}" for name in _DIFFERENTIATED for way in ("Forward", "Backward")]
_HANDLERS.append("prnnJaxTransducerSearch")

DTYPES = {"float32": _C.FLOAT, "float64": _C.DOUBLE, "float16": _C.HALF, "bfloat16": _C.BFLOAT16}


def _register(path: pathlib.Path) -> None:
    if not path.exists():
        raise ImportError(
            "this prnn was built without its part for JAX: install jaxlib, whose headers that needs, and build prnn "
            "again with jax=on (docs/jax.md)"
        )
    library = ctypes.CDLL(str(path))
    _check_version(library.prnnJaxFfiMinor(), pathlib.Path(jax.ffi.include_dir()))
    platforms = {"cpu": "Cpu"} | ({} if _C.BUILT_FOR == "CPU" else {"CUDA": "Cuda"})
    for name in _HANDLERS:
        for platform, suffix in platforms.items():
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name + suffix)), platform=platform)


def _check_version(minor: int, headers: pathlib.Path) -> None:
    """Refuses handlers newer than the jaxlib with these headers: registered, they would leave it no backend."""
    found = re.search(r"#define XLA_FFI_API_MINOR (\d+)", (headers / "xla/ffi/api/c_api.h").read_text())
    if found and minor > int(found[1]):
        raise ImportError(
            f"this prnn was built with the headers of a newer jaxlib (XLA FFI 0.{minor}) than the installed one "
            f"(0.{found[1]}): install a newer jaxlib, or build prnn again beside this one (docs/jax.md)"
        )


_register(pathlib.Path(__file__).parent.parent / "lib" / "libprnn_jax.so")


class _Handles(threading.local):
    def __init__(self) -> None:
        self.of: dict[str, _C.Handle] = {}


_handles = _Handles()


def platform() -> str:
    """That of the devices that a traced program is for, "cpu" or "gpu": jax's default device's."""
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    name = jax.default_backend() if device is None else getattr(device, "platform", device)
    return {"cuda": "gpu"}.get(str(name), str(name))


def handle(platform: str) -> _C.Handle:
    """The calling thread's library handle, of which sizes are asked."""
    if platform not in ("cpu", "gpu"):
        raise _C.NotSupportedError(f"prnn runs on CPUs and NVIDIA GPUs; jax's default backend is {platform!r}")
    found = _handles.of.get(platform)
    if found is None:
        if platform == "gpu" and _C.BUILT_FOR == "CPU":
            raise _C.NotSupportedError(
                "this prnn was built for the CPU alone, and jax's default backend is a GPU: use "
                "jax.default_device(jax.devices('cpu')[0]), or build prnn where there is an nvcc (docs/build.md)"
            )
        found = _handles.of[platform] = _C.Handle.cpu() if platform == "cpu" else _C.Handle.cuda()
        if platform == "gpu":
            _warn_of_unproven(_C.Rnn(_C.LSTM, _C.FLOAT, 64, 1, 64, False).query(found, [1]))
    return found


def _warn_of_unproven(plan: Mapping[str, Any]) -> None:
    """Warns where a plan is of a GPU that no plan has run on; prnn.nn compares layers with the CPU there."""
    if plan["supported"] and not plan["measured"]:
        warnings.warn(
            f"prnn's kernels have not been run on a GPU like this ({plan['device']}), and prnn.jax does not compare "
            "them with the CPU's: run `prnn selftest`, which does",
            stacklevel=4,
        )


def call(
    name: str,
    arguments: Sequence[Any],
    results: Sequence[jax.ShapeDtypeStruct],
    attributes: Mapping[str, int | float | bool | tuple[int, ...]],
    aliases: Mapping[int, int] | None = None,
) -> list[Any]:
    """Calls a handler. aliases: of arguments, the results that take their memory. Under jax.vmap it is called once for
    each element of the mapped axis."""
    kinds: dict[type, Any] = {
        bool: np.bool_,
        int: np.int64,
        float: np.float64,
        tuple: lambda value: np.array(value, np.int64),
    }
    numbers = {key: kinds[type(value)](value) for key, value in attributes.items()}
    arguments = as_varying(arguments)
    marks = _marks_of(arguments[0])
    marked = [jax.ShapeDtypeStruct(result.shape, result.dtype, **marks) for result in results]
    run = jax.ffi.ffi_call(
        name, marked, vmap_method="sequential", input_output_aliases=dict(aliases) if aliases else None
    )
    return list(run(*arguments, **numbers))


def as_varying(arrays: Sequence[Any]) -> list[Any]:
    """In jax.shard_map, which knows of each array over which axes of the mesh it varies: the arrays as varying over all
    that one of them does. Gradients are then summed as those of jax's own operations are. None stays None."""
    varying = [_varying(array) for array in arrays]
    axes = frozenset().union(*varying)
    if not axes:
        return list(arrays)
    return [
        array if array is None or own == axes else _cast(array, tuple(axes - own))
        for array, own in zip(arrays, varying, strict=True)
    ]


def _cast(array: Any, axes: tuple[Any, ...]) -> Any:
    """The array as varying over more axes, too."""
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, axes, to="varying")
    return jax.lax.pvary(array, axes)  # type: ignore[attr-defined]  # of older versions


def _varying(array: Any) -> frozenset[Any]:
    if array is None or isinstance(array, np.ndarray):
        return frozenset()
    kind = jax.typeof(array)
    axes: frozenset[Any] = kind.mat.varying if hasattr(kind, "mat") else getattr(kind, "vma", frozenset())
    return axes


def _marks_of(array: Any) -> dict[str, Any]:
    """The argument of jax.ShapeDtypeStruct for a result that varies as the array does: its name is jax's version's."""
    if not _varying(array):
        return {}
    kind = jax.typeof(array)
    if not hasattr(kind, "mat"):
        return {"vma": kind.vma}
    sharding = jax.sharding.NamedSharding(kind.sharding.mesh, jax.sharding.PartitionSpec())
    return {"manual_axis_type": kind.mat, "sharding": sharding}


@functools.cache
def nothing(dtype: Any) -> np.ndarray[Any, Any]:
    """The placeholder of an array that is not given."""
    return np.zeros(0, dtype)


def allows_tf32(precision: Any) -> bool:
    """Whether products of float32 on a GPU may be made in tf32, as those of jax's own operations."""
    if precision is None:
        precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    name = getattr(precision, "name", precision)
    return name is None or str(name).lower() in ("default", "fastest", "tensorfloat32", "bfloat16")


def require(value: Any, name: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Checks an array that may be None."""
    if value is None:
        return
    if getattr(value, "shape", None) != shape:
        raise ValueError(f"{name} has shape {getattr(value, 'shape', None)}; it must be {shape}")
    if value.dtype != dtype:
        raise TypeError(f"{name} has dtype {value.dtype.name}; it must be {dtype.name}")
