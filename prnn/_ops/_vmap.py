"""torch.func.vmap, and torch.autograd.grad(is_grads_batched=True), for operators whose computation has no batched form:
a call for each element of the mapped dimension."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from prnn._ops._torch_private import add_batch_dim, is_batched, remove_batch_dim

__all__ = ["call_for_batched", "is_batched", "register_vmap"]


def _select(value: Any, dim: Any, index: int) -> Any:
    """One element of an argument, or of each in a list of arguments; what has no dim is for all elements."""
    if isinstance(dim, (list, tuple)):
        return [_select(part, of_part, index) for part, of_part in zip(value, dim, strict=True)]
    return value if dim is None else value.select(dim, index)


def register_vmap(op: Any, library: torch.library.Library) -> None:
    """Gives an operator that rule."""

    def call_for_each(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        if info.batch_size == 0:
            raise ValueError("torch.func.vmap maps over a dimension of size 0; recurrent layers take at least 1")
        calls = [op(*_select(arguments, in_dims, index)) for index in range(info.batch_size)]
        if isinstance(calls[0], Tensor):
            return torch.stack(calls), 0
        results = tuple(torch.stack(result) for result in zip(*calls, strict=True))
        return results, (0,) * len(results)

    torch.library.register_vmap(op, call_for_each, lib=library)


_MOST_LEVELS = 64  # of nested calls of vmap


def _innermost(tensors: Sequence[Tensor]) -> tuple[int, int]:
    """The level and the size of the innermost dimension by which any of the tensors is batched. torch tells how deep
    the levels are of the current thread, and gradients on a GPU are computed in another one than their caller's."""
    for level in range(_MOST_LEVELS, 0, -1):
        for tensor in tensors:
            size = remove_batch_dim(tensor, level, 0, 0).size(0)  # that 0 where it has no such level
            if size > 0:
                return level, size
    raise ValueError("torch.autograd.grad(is_grads_batched=True) is given a dimension of size 0; it must be at least 1")


def call_for_batched(
    function: Callable[..., Sequence[Tensor | None]], tensors: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """function(tensors), where some of them are batched as torch.autograd.grad(is_grads_batched=True) batches them: for
    which the dispatcher has rules of torch's own operators alone."""
    level, size = _innermost([tensor for tensor in tensors if tensor is not None and is_batched(tensor)])
    whole = [None if tensor is None else remove_batch_dim(tensor, level, size, 0) for tensor in tensors]
    calls = [function([None if tensor is None else tensor[index] for tensor in whole]) for index in range(size)]
    return [
        None if parts[0] is None else add_batch_dim(torch.stack(parts), 0, level)
        for parts in map(list, zip(*calls, strict=True))
    ]
