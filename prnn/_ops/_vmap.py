"""torch.func.vmap of operators whose computation has no batched form: a call for each element of the dimension."""

from typing import Any

import torch
from torch import Tensor

__all__ = ["register_vmap"]


def _select(value: Any, dim: Any, index: int) -> Any:
    """One element of an argument, or of each in a list of arguments; what has no dim is for all elements."""
    if isinstance(dim, (list, tuple)):
        return [_select(part, of_part, index) for part, of_part in zip(value, dim, strict=True)]
    return value if dim is None else value.select(dim, index)


def register_vmap(op: Any, library: torch.library.Library) -> None:
    """Gives an operator that rule."""

    def call_for_each(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        if info.batch_size == 0:
            raise ValueError("torch.func.vmap maps over a dimension of size 0; it must be at least 1")
        calls = [op(*_select(arguments, in_dims, index)) for index in range(info.batch_size)]
        if isinstance(calls[0], Tensor):
            return torch.stack(calls), 0
        results = tuple(torch.stack(result) for result in zip(*calls, strict=True))
        return results, (0,) * len(results)

    torch.library.register_vmap(op, call_for_each, lib=library)
