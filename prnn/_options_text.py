"""The options in a module's repr."""

from __future__ import annotations

import inspect
from collections.abc import Collection

from torch import nn

_ALWAYS = ("blank", "reduction")  # whose defaults differ between losses


def _arguments(kind: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """Returns the arguments of the constructor, and of a base's that it hands **keywords to."""
    found: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        if "__init__" in vars(base):
            own = inspect.signature(base).parameters
            found |= {name: parameter for name, parameter in own.items() if name not in found}
            if all(parameter.kind != parameter.VAR_KEYWORD for parameter in own.values()):
                break
    return {name: p for name, p in found.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}


def options_text(module: nn.Module, without: Collection[str] = ()) -> str:
    """The arguments of a module's constructor, for `extra_repr`: those without a default, and those that differ from
    theirs.

    Left out are those that the module does not keep under their names, since its parts show them, and `without`.
    """
    shown = []
    for name, parameter in _arguments(type(module)).items():
        value = getattr(module, name, parameter.default)
        if name in without or isinstance(value, nn.Module) or value is parameter.empty:
            continue
        if name in _ALWAYS or parameter.default is parameter.empty or value != parameter.default:
            shown.append(f"{name}={value!r}")
    return ", ".join(shown)
