"""The rule of torch.func.vmap for a torch.autograd.Function whose computation has no batched form: a call for each
element of the mapped dimension."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["call_for_each"]


def _select(value: Any, dim: Any, index: int) -> Any:
    """One element of an argument, or of each in a list of arguments; what has no dim is for all elements."""
    if isinstance(dim, (list, tuple)):
        return [_select(part, of_part, index) for part, of_part in zip(value, dim, strict=True)]
    return value if dim is None else value.select(dim, index)


def call_for_each(
    function: Callable[..., tuple[Tensor, ...]], info: Any, in_dims: tuple[Any, ...], arguments: tuple[Any, ...]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """What a Function's `vmap` returns. function: its apply; info, in_dims, arguments: as `vmap` has them."""
    if info.batch_size == 0:
        raise ValueError("torch.func.vmap maps over a dimension of size 0; recurrent layers take at least 1")
    calls = [function(*_select(arguments, in_dims, index)) for index in range(info.batch_size)]
    results = tuple(torch.stack(result) for result in zip(*calls, strict=True))
    return results, (0,) * len(results)
