"""Decorators of torch.compiler without the import of torch._dynamo that each begins with: a second and 70 MB that a
program without torch.compile and without an optimizer, which imports it too, does not spend."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from prnn._ops._torch_private import disable_dynamo

__all__ = ["assume_constant_result", "disable"]

Function = TypeVar("Function", bound=Callable[..., Any])


def assume_constant_result(function: Function) -> Function:
    """torch.compiler.assume_constant_result, which sets this mark."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def disable(function: Function) -> Function:
    """torch.compiler.disable, at the first call of the function."""
    return cast(Function, disable_dynamo(function))
