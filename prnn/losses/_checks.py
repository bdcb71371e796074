"""Argument checks of the losses. Each names the argument and its value, and returns what the operators take."""

from collections.abc import Sequence

import torch
from torch import Tensor

from prnn import _C
from prnn._errors import NotSupportedError
from prnn._ops._reduction import Reduction

_HALF_TYPES = (torch.float16, torch.bfloat16)
_FLOATING = (torch.float32, torch.float64, *_HALF_TYPES)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_INT_MAX = 2**31 - 1
REDUCTIONS = ("none", "mean", "sum")
RNNT_TYPES = ("regular", "modified", "constrained")


def activations(value: object, name: str, ranks: dict[int, str]) -> Tensor:
    """A floating tensor of one of the ranks, which the caller describes; half types become float32 on the CPU."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a torch.Tensor")
    if value.dtype not in _FLOATING:
        raise TypeError(f"{name} is of {value.dtype}; it must be float32, float64, float16 or bfloat16")
    if value.dim() not in ranks:
        raise ValueError(f"{name} has the shape {tuple(value.shape)}; it must be {' or '.join(ranks.values())}")
    if value.numel() == 0:
        raise ValueError(f"{name} has the shape {tuple(value.shape)}; no dimension may be empty")
    if value.is_cuda:
        return value
    if value.device.type != "cpu":
        raise NotSupportedError(f"{name} is on the device {value.device}; the losses run on cpu and cuda")
    return value.float() if value.dtype in _HALF_TYPES else value


def integers(value: object, name: str, device: torch.device) -> Tensor:
    """An integer tensor, list or number as int32 on the device. Values that int32 lacks stay out of any valid range."""
    if isinstance(value, Tensor) and value.dtype == torch.int32 and value.device == device:
        return value.contiguous()
    if isinstance(value, int | Sequence) and not isinstance(value, str):
        value = torch.as_tensor(value)
        if value.numel() == 0:
            value = value.int()
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a torch.Tensor of integers")
    if value.dtype not in _INTEGERS:
        raise TypeError(f"{name} is of {value.dtype}; it must be int64 or int32")
    if value.device != device and value.device.type != "cpu":
        raise ValueError(f"{name} is on {value.device}; it must be on {device} or the CPU")
    if value.dtype == torch.int64 and not value.is_cuda:  # on a GPU a launch costs more than catching these is worth
        value = value.clamp(-1, _INT_MAX)
    return value.to(device, torch.int32, non_blocking=True).contiguous()


def lengths(value: object, name: str, batch: int, device: torch.device) -> Tensor:
    """One length for each sequence of the batch."""
    result = integers(value, name, device)
    if result.shape == () and batch == 1:
        result = result.reshape(1)
    if result.shape != (batch,):
        raise ValueError(f"{name} has the shape {tuple(result.shape)}; it must be ({batch},), one for each sequence")
    return result


def length_bound(given: object, name: str, lengths: object, used: str | None) -> int:
    """The largest length as the operators take it, -1 if nobody said. `used` says why it is not asked for, if so;
    lengths on the host are looked at."""
    if given is not None:
        if isinstance(given, bool) or not isinstance(given, int):
            raise TypeError(f"{name} is {given!r}; it must be an int or None")
        if not 0 <= given <= _INT_MAX:
            raise ValueError(f"{name} is {given}; it must be 0 to {_INT_MAX}")
        if used is not None:
            raise ValueError(f"{name} is {given}; {used}")
        return given
    if used is not None or torch.compiler.is_compiling():
        return -1
    if isinstance(lengths, Tensor):
        return -1 if lengths.is_cuda or lengths.numel() == 0 else max(0, int(lengths.max()))
    return max([0, *lengths]) if isinstance(lengths, Sequence) else max(0, lengths) if isinstance(lengths, int) else -1


def overwritable(value: Tensor, name: str) -> None:
    """Refuses what gradients must not overwrite because autograd, or whoever owns it, still needs the values."""
    leaf = value if value.is_leaf else value._base
    if leaf is not None and leaf.is_leaf and leaf.requires_grad:
        what = "a leaf" if leaf is value else "a view of a leaf"
        raise ValueError(
            f"inplace is True, but {name} is {what} that requires a gradient, and its values would be lost; "
            "inplace=True takes the result of a layer that nobody else uses"
        )


def blank_index(value: object, classes: int) -> int:
    """The blank; a negative one counts from the end."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"blank is {value!r}; it must be an int")
    if not -classes <= value < classes:
        raise ValueError(f"blank is {value}; with {classes} classes it must be {-classes} to {classes - 1}")
    return int(value + classes if value < 0 else value)


def choice(value: object, name: str, accepted: Sequence[str]) -> str:
    if value not in accepted:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, accepted))}")
    return str(value)


def number(value: object, name: str) -> float:
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}; it must be a number")
    return float(value)


def durations(value: object, name: str) -> list[int]:
    """Numbers of frames. Their range is checked by libprnn."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a list of ints")
    if len(value) > _C.MAX_DURATIONS:
        raise ValueError(f"{name} has {len(value)} durations; it may have {_C.MAX_DURATIONS}")
    for duration in value:
        if isinstance(duration, bool) or not isinstance(duration, int):
            raise TypeError(f"{name} has {duration!r}; it must be a list of ints")
        if not 0 <= duration <= _INT_MAX:
            raise ValueError(f"{name} has {duration}; it must be 0 to {_INT_MAX}")
    return list(value)


def wants_gradient(value: Tensor) -> bool:
    return value.requires_grad and torch.is_grad_enabled()


def reduction_of(reduction: str, batch: int, divided_by: Tensor | None = None) -> Reduction | None:
    """`reduction` of costs, each divided by its number, for the calls that reduce; None for "none"."""
    return None if reduction == "none" else Reduction(reduction == "mean", batch, divided_by)


def reduce(costs: Tensor, reduction: str) -> Tensor:
    if reduction == "mean":
        return costs.mean()
    return costs.sum() if reduction == "sum" else costs
