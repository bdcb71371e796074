"""Argument checks of the losses. Each names the argument and its value, and returns what the operators take."""

import functools
import reprlib
import sys
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import TypeVar

import torch
from torch import Tensor

from prnn import _C
from prnn._errors import NotSupportedError
from prnn._ops._operator import is_plain
from prnn._ops._reduction import Reduction
from prnn._ops._torch_private import is_undisturbed as _undisturbed

Result = TypeVar("Result")
_HALF_TYPES = (torch.float16, torch.bfloat16)
_FLOATING = (torch.float32, torch.float64, *_HALF_TYPES)
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
_INT32, _INT64, _STRIDED = torch.int32, torch.int64, torch.strided  # each look-up takes time
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, *_UNSIGNED)
_is_compiling = torch.compiler.is_compiling
_HOST = torch.device("cpu")
_PLAIN = (Tensor, torch.nn.Parameter)
_INT_MAX = 2**31 - 1
_MOST = sys.float_info.max
REDUCTIONS = ("none", "mean", "sum")
RNNT_TYPES = ("regular", "modified", "constrained", "final_blank")


def remembered(check: Callable[..., Result]) -> Callable[..., Result]:
    """`check`, a function of options alone, which is called once for equal options of the same types: the calls of a
    training differ in their tensors. What it refuses is not kept."""
    kept = functools.lru_cache(maxsize=64, typed=True)(check)

    @functools.wraps(check)
    def call(*options: object) -> Result:
        if not _is_compiling():
            try:
                return kept(*options)
            except TypeError:  # also of what has no hash; `check` says what it should be
                pass
        return check(*options)

    return call


def activations(value: object, name: str, ranks: dict[int, str]) -> Tensor:
    """A floating tensor of one of the ranks, which the caller describes; half types become float32 on the CPU."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a torch.Tensor")
    if value.dtype not in _FLOATING:
        raise TypeError(f"{name} is of {value.dtype}; it must be float32, float64, float16 or bfloat16")
    if value.layout is not _STRIDED:
        raise TypeError(f"{name} has the layout {value.layout}; it must be torch.strided")
    if value.dim() not in ranks:
        raise ValueError(f"{name} has the shape {tuple(value.shape)}; it must be {' or '.join(ranks.values())}")
    if value.numel() == 0:
        raise ValueError(f"{name} has the shape {tuple(value.shape)}; no dimension may be empty")
    if value.is_cuda or value.is_meta:
        return value
    if not value.is_cpu:
        raise NotSupportedError(f"{name} is on the device {value.device}; the losses run on cpu and cuda")
    return value.float() if value.dtype in _HALF_TYPES else value


def _tensor(value: object, name: str) -> Tensor:
    """A tensor of what has integers in it."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, str) or not (isinstance(value, (Integral, Sequence)) or hasattr(value, "__array__")):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a torch.Tensor of integers")
    try:
        result = torch.as_tensor(value, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name} is {reprlib.repr(value)}, of which torch.as_tensor says: {error}") from None
    return result if result.numel() > 0 else result.int()


def _is_int64_on_cpu(value: Tensor) -> bool:
    """Also whether it is plain, of a call that is _undisturbed()."""
    return value.dtype is _INT64 and value.is_cpu and value.layout is _STRIDED and is_plain(value)


def integers(value: object, name: str, device: torch.device, takes_int64: bool = False) -> Tensor:
    """An integer tensor, array, list or number as int32 on the device. Values that int32 lacks stay out of any valid
    range. takes_int64, of a call that _undisturbed(): a plain tensor of int64 on the CPU stays what it is."""
    if takes_int64 and isinstance(value, Tensor) and _is_int64_on_cpu(value):
        return value.contiguous()
    if isinstance(value, Tensor) and value.device == device:
        if value.dtype is _INT32:
            return value.contiguous()
        if _undisturbed() and _is_int64_on_cpu(value):
            wide = value.contiguous()
            narrow = torch.empty_like(wide, dtype=_INT32)
            _C.to_int32(wide.data_ptr(), wide.numel(), narrow.data_ptr())  # half the time of torch's two operations
            return narrow
    result = _tensor(value, name)
    if result.dtype not in _INTEGERS:
        raise TypeError(f"{name} is of {result.dtype}; it must be int64 or int32")
    if result.layout != torch.strided:
        raise TypeError(f"{name} has the layout {result.layout}; it must be torch.strided")
    if result.device != device and not (result.device.type == "cpu" and (result is not value or device.type != "meta")):
        accepted = device if device.type in ("cpu", "meta") else f"{device} or the CPU"
        raise ValueError(f"{name} is on {result.device}; it must be on {accepted}")
    if result.dtype in _UNSIGNED:
        result = result.long()
    if result.dtype == torch.int64 and not result.is_cuda:  # on a GPU a launch costs more than catching these is worth
        result = result.clamp(-_INT_MAX - 1, _INT_MAX)
    return result.to(device, torch.int32, non_blocking=True).contiguous()


def lengths(value: object, name: str, batch: int, device: torch.device, takes_int64: bool = False) -> Tensor:
    """One length for each sequence of the batch. takes_int64: as for `integers`."""
    result = integers(value, name, device, takes_int64)
    found = result.shape
    if found != (batch,):
        if found != () or batch != 1:
            raise ValueError(f"{name} has the shape {tuple(found)}; it must be ({batch},), one for each sequence")
        result = result.reshape(1)
    return result


def has_values(value: Tensor) -> bool:
    """Whether there are values to read, for which one may have to wait for a GPU: nobody traces."""
    return not value.is_meta and type(value) in _PLAIN and not torch.compiler.is_compiling()


def can_look_at(value: Tensor) -> bool:
    """Whether the values are there to be read without waiting for a GPU: nobody traces, and they are on the CPU."""
    return value.device.type == "cpu" and has_values(value)


def host_lengths(value: object, name: str) -> list[int] | None:
    """The values of lengths as the caller gave them, if one can look at them."""
    if torch.compiler.is_compiling() or (isinstance(value, Tensor) and not can_look_at(value)):
        return None
    values: list[int] = integers(value, name, _HOST).flatten().tolist()
    return values


def length_bound(given: object, name: str, lengths: object, lengths_name: str, used: str | None) -> int:
    """The largest length as the operators take it, -1 if nobody said. `used` says why it is not asked for, if so;
    lengths on the host are looked at."""
    if given is not None:
        bound = integer(given, name, 0, _INT_MAX)
        if used is not None:
            raise ValueError(f"{name} is {bound}; {used}")
        return bound
    known = None if used is not None else host_lengths(lengths, lengths_name)
    return -1 if known is None else max([0, *known])


def total(found: int, name: str, wanted: int, lengths: str) -> None:
    """Checks the total of concatenated sequences: on a GPU, libprnn cannot tell that there is more than the lengths
    say."""
    if found != wanted:
        raise ValueError(f"{name} is {found}, but {lengths} {wanted}")


def overwritable(value: Tensor, name: str) -> None:
    """Refuses what gradients must not overwrite because autograd, or whoever owns it, still needs the values."""
    leaf = value if value.is_leaf else value._base
    if leaf is not None and leaf.is_leaf and leaf.requires_grad:
        what = "a leaf" if leaf is value else "a view of a leaf"
        raise ValueError(
            f"inplace is True, but {name} is {what} that requires a gradient, and its values would be lost; "
            "inplace=True takes the result of a layer that nobody else uses"
        )


def integer(value: object, name: str, least: int, most: int) -> int:
    result = _integer(value, name)
    if not least <= result <= most:
        raise ValueError(f"{name} is {result}; it must be {least} to {most}")
    return result


def blank_index(value: object, classes: int, name: str = "blank") -> int:
    """The blank; a negative one counts from the end."""
    index = _integer(value, name)
    if not -classes <= index < classes:
        raise ValueError(f"{name} is {index}; with {classes} classes it must be {-classes} to {classes - 1}")
    return index + classes if index < 0 else index


def _integer(value: object, name: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):  # such as numpy's
        raise TypeError(f"{name} is {value!r}; it must be an int")
    return int(value)


def choice(value: object, name: str, accepted: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in accepted:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, accepted))}")
    return value


def flag(value: object, name: str) -> bool:
    if value is True or value is False:
        return value
    if isinstance(value, Tensor) or value not in (0, 1):
        raise TypeError(f"{name} is {reprlib.repr(value)}; it must be True or False")
    return bool(value)


def number(value: object, name: str, least: float = -_MOST, most: float = _MOST) -> float:
    """A finite number from `least` to `most`."""
    result = _number(value, name)
    if not least <= result <= most:
        accepted = "finite" if least == -_MOST else f"{least:g} or more" if most == _MOST else f"{least:g} to {most:g}"
        raise ValueError(f"{name} is {value}; it must be {accepted}")
    return result


def clamp_limit(value: object) -> float:
    """The clamp; infinity is a limit that limits nothing."""
    result = _number(value, "clamp")
    if result != result:
        raise ValueError(f"clamp is {value}; it must be above 0, or 0 or less for no limit")
    return result


def _number(value: object, name: str) -> float:
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, Real)):
        raise TypeError(f"{name} is {value!r}; it must be a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is beyond what a float holds") from None


def durations(value: object, name: str) -> list[int]:
    """Numbers of frames. Their range is checked by libprnn."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a list of ints")
    if len(value) > _C.MAX_DURATIONS:
        raise ValueError(f"{name} has {len(value)} elements; it may have {_C.MAX_DURATIONS}")
    return [integer(duration, f"{name}[{i}]", 0, _INT_MAX) for i, duration in enumerate(value)]


def runs_on_cpu(value: Tensor) -> bool:
    """Whether a loss of these activations runs on the CPU, and nobody traces or transforms the call."""
    return value.is_cpu and _undisturbed() and is_plain(value)


def wants_gradient(value: Tensor) -> bool:
    return value.requires_grad and torch.is_grad_enabled()


def reduction_of(reduction: str, batch: int, divided_by: Tensor | None = None) -> Reduction | None:
    """`reduction` of costs, each divided by its number, for the calls that reduce; None for "none"."""
    return None if reduction == "none" else (reduction == "mean", batch, divided_by)


def reduce(costs: Tensor, reduction: str) -> Tensor:
    if reduction == "mean":
        return costs.mean()
    return costs.sum() if reduction == "sum" else costs
