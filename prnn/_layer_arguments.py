"""Checks of what the recurrent layers are given: each error names the argument and its value."""

from collections.abc import Mapping, Sequence, Set
from numbers import Real
from operator import index
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from prnn._modes import CELL_STATES
from prnn._ops._handles import DTYPES
from prnn._state_masks import check_probability


def check_size(value: object, name: str, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):  # NumPy's integers are sizes, too
        raise TypeError(f"{name} is {value!r}; it must be an int")
    if index(value) < least:
        raise ValueError(f"{name} is {value}; it must be at least {least}")


def check_flag(value: object, name: str) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; it must be True or False")


def check_layout(
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    bias: bool = True,
    batch_first: bool = False,
    dropout: float = 0.0,
    bidirectional: bool = False,
    proj_size: int = 0,
    device: object = None,
    dtype: torch.dtype | None = None,
) -> None:
    """The arguments of torch.nn.RNNBase, of which torch checks a part, and says no values."""
    for name, size in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
        check_size(size, name)
    for name, flag in (("bias", bias), ("batch_first", batch_first), ("bidirectional", bidirectional)):
        check_flag(flag, name)
    is_real = isinstance(dropout, Real) and not isinstance(dropout, bool)  # NumPy's, too
    check_probability(float(dropout) if is_real else dropout, "dropout")
    check_size(proj_size, "proj_size", 0)
    if proj_size >= hidden_size:
        raise ValueError(f"proj_size is {proj_size}; it must be less than hidden_size, {hidden_size}, or 0 for none")
    if dtype is not None and dtype not in DTYPES:
        raise TypeError(f"dtype is {dtype!r}; it must be one of {', '.join(map(str, DTYPES))}")


def check_heads(heads: object, hidden_size: int) -> None:
    if isinstance(heads, bool) or not isinstance(heads, int):
        raise TypeError(f"heads is {heads!r}; it must be an integer")
    if heads < 1 or hidden_size % heads != 0:
        raise ValueError(f"heads is {heads}; it must be at least 1 and divide hidden_size, {hidden_size}")


def is_autocast(input: Tensor) -> bool:
    """Whether autocast is on for the device of input. torch knows none for the meta device, and raises."""
    return not input.is_meta and torch.is_autocast_enabled(input.device.type)


def check_not_empty(input: Tensor) -> None:
    """input has at least one timestep. It may have no sequences."""
    if input.size(0) == 0:
        raise ValueError("input has 0 timesteps; it must have at least 1")


def is_cast_to(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether autocast makes tensors of this type and of the tensor's be of one. It leaves float64 as it is."""
    return tensor.is_floating_point() and torch.float64 not in (tensor.dtype, dtype) and is_autocast(tensor)


def check_tensor(value: object, name: str) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a tensor")
    if value.is_nested:
        raise TypeError(f"{name} is a nested tensor; it must be padded, with lengths=, or a PackedSequence")
    if value.layout != torch.strided:
        raise TypeError(f"{name} has the layout {value.layout}; it must be torch.strided")


def states_of(
    given: Any, name: str, wanted: str = "the pair (h, c) of initial states", count: int = 2
) -> Sequence[Any]:
    """The states that a call is given together, so many; None is as many of it."""
    if given is None:
        return (None,) * count
    if isinstance(given, (tuple, list)) and len(given) == count:
        return given
    found = type(given).__name__ + (f" of {len(given)}" if isinstance(given, (tuple, list)) else "")
    raise TypeError(f"{name} is a {found}; it must be {wanted}")


def check_reset(reset: Tensor, input: Tensor) -> None:
    if reset.dtype != torch.bool:
        raise TypeError(f"reset has dtype {reset.dtype}; it must have torch.bool")
    if reset.shape != input.shape[:-1]:
        shapes = f"{tuple(reset.shape)}; it must be {tuple(input.shape[:-1])}"
        raise ValueError(f"reset has shape {shapes}, input's without features")
    if reset.device != input.device:
        raise ValueError(f"reset is on {reset.device}, but input is on {input.device}")


def state_shapes(module: Any) -> list[tuple[int, int]]:
    """The shapes of hx, cx and the states of reset_hx, without N: (L D, H) each."""
    count, hidden = module.num_layers * (2 if module.bidirectional else 1), module.hidden_size
    return [(count, module.proj_size or hidden), (count * CELL_STATES.get(module.mode, 0), hidden)] * 2


def checked_states(
    states: Sequence[Tensor | None],
    names: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    batch: int | None,
    order: Tensor | None,
    input: Tensor,
) -> tuple[Tensor | None, ...]:
    """States as (L D, N, H), in the order of packed sequences if there is one, after a check of them. shapes: without
    N; batch: None for one sequence."""
    device, dtype = input.device, input.dtype
    checked: list[Tensor | None] = []
    for state, name, (count, size) in zip(states, names, shapes, strict=True):
        if state is not None:
            expected = (count, size) if batch is None else (count, batch, size)
            if state.shape != expected:
                raise ValueError(f"{name} has shape {tuple(state.shape)}; it must be {expected}")
            if state.device != device:
                raise ValueError(f"{name} is on {state.device}, but input is on {device}")
            if state.dtype != dtype and not is_cast_to(state, dtype):
                raise ValueError(f"{name} has dtype {state.dtype}, but input has {dtype}")
            if batch is None:
                state = state.unsqueeze(1)
            elif order is not None:
                state = state.index_select(1, order)
        checked.append(state)
    return tuple(checked)


def _integers(lengths: Sequence[int]) -> list[int]:
    """Returns Python's or NumPy's integers as a list."""
    if isinstance(lengths, (Set, Mapping)):
        raise TypeError(f"lengths is {lengths!r}, which has no order; it must be a sequence of integers")
    try:
        values = list(lengths)
        if not any(isinstance(value, bool) for value in values):
            return [index(value) for value in values]
    except TypeError:
        pass
    raise TypeError(f"lengths is {lengths!r}; it must hold integers")


def checked_lengths(lengths: Tensor | Sequence[int], batch: int, input: Tensor) -> Tensor:
    if not isinstance(lengths, Tensor):
        values = _integers(lengths)
        for place, value in enumerate(values):
            if not -(2**63) <= value < 2**63:  # of which there is no tensor
                raise ValueError(f"lengths[{place}] is {value}; it must lie between 1 and the timesteps of input")
        lengths = torch.tensor(values, dtype=torch.int64, device="cpu")
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths has dtype {lengths.dtype}; it must hold integers")
    if lengths.shape != (batch,):
        raise ValueError(f"lengths has shape {tuple(lengths.shape)}; it must be ({batch},), one for each sequence")
    if lengths.is_meta and not input.is_meta:
        raise ValueError(f"lengths is on {lengths.device}, but input is on {input.device}")
    return lengths


def lengths_of_mask(mask: object, lengths: object, input: object, batch_first: bool) -> Tensor:
    """The lengths of a mask, bool in the shape of a padded input without its features: True in the first timesteps of
    each sequence, at least in one."""
    if lengths is not None:
        raise ValueError("mask and lengths are given; both say how long the sequences are")
    check_tensor(input, "input")  # a PackedSequence has lengths of its own
    check_tensor(mask, "mask")
    assert isinstance(mask, Tensor)
    assert isinstance(input, Tensor)
    if mask.dtype != torch.bool:
        raise TypeError(f"mask has dtype {mask.dtype}; it must have torch.bool")
    if input.dim() != 3 or mask.shape != input.shape[:-1]:
        found = f"mask has shape {tuple(mask.shape)}, and input {tuple(input.shape)}"
        raise ValueError(f"{found}; input must have 3 dimensions, and mask those without its features")
    time = 1 if batch_first else 0
    found_lengths = mask.sum(time)
    if not torch.compiler.is_compiling() and not mask.is_meta:
        rises = ~mask.narrow(time, 0, mask.size(time) - 1) & mask.narrow(time, 1, mask.size(time) - 1)
        if bool(rises.any()):
            raise ValueError("mask is True after it was False; it must be True in the first timesteps of each sequence")
    return found_lengths
