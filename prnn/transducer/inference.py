"""A model as a search uses it: in eval mode, whatever mode the model itself is in."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

_Module = TypeVar("_Module", bound=nn.Module)


def _has_training(module: nn.Module) -> bool:
    return module.training or any(_has_training(part) for part in module._modules.values() if part is not None)


def in_eval_mode(module: _Module) -> _Module:
    """`module` itself if all of it is in eval mode; else another module of the same parameters and buffers that is.

    Nothing of `module` is written, so that other threads may train it or search with it meanwhile. What torch.compile
    has compiled of it runs uncompiled in the other module, because compiled code keeps the mode of its own part.
    """
    if not _has_training(module):
        return module
    seen: dict[nn.Module, nn.Module] = {}

    def view(part: nn.Module) -> nn.Module:
        part = getattr(part, "_orig_mod", part)
        if part not in seen:
            other = seen[part] = part.__class__.__new__(part.__class__)
            other.__dict__ = {**part.__dict__, "training": False, "_compiled_call_impl": None}
            children = {name: None if child is None else view(child) for name, child in part._modules.items()}
            other.__dict__["_modules"] = children
        return seen[part]

    return view(module)  # type: ignore[return-value]
