"""Methods of other packages' classes that are replaced."""

from collections.abc import Callable
from typing import Any


def replace_method(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
    """Puts `wrap` of a class's method in its place, once; whether it was not there yet."""
    method = getattr(owner, name)
    if hasattr(method, "_prnn_original"):
        return False
    wrapped = wrap(method)
    wrapped._prnn_original = method  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)
    return True
