"""The parameters of a module whose eager calls remember them (_calls.py)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parameter import Parameter

__all__ = ["OwnParameters"]


class OwnParameters:
    """A module's parameters as its first call found them. Each check that a call makes takes time."""

    def __init__(self, module: Any, dtype: torch.dtype) -> None:
        self._dtype, self._flat = dtype, module._flat_weights  # which subclasses with DropConnect write to
        self._known = [
            (name, parameter, parameter.data_ptr(), parameter.shape)
            for name, parameter in zip(module._flat_weights_names, self._flat, strict=True)
        ]

    @staticmethod
    def of(module: Any, dtype: torch.dtype, are_on_device: Callable[[Sequence[Any]], bool]) -> "OwnParameters | None":
        """None where the module does not tell which weights it has (subclasses of Parameter, or other tensors in the
        list of flat weights), or where they are not all of the type, whole, and on the device."""
        for name, flat in zip(module._flat_weights_names, module._flat_weights, strict=True):
            if module._parameters.get(name) is not flat or type(flat) is not Parameter or not are_on_device((flat,)):
                return None
            if flat.dtype is not dtype or not flat.is_contiguous():
                return None
        return OwnParameters(module, dtype)

    def want_grad(self, module: Any) -> bool | None:
        """Whether a parameter wants a gradient. None where the module has other parameters, or has them elsewhere: the
        module then forgets its calls."""
        parameters, dtype = module._parameters, self._dtype
        wanted = False
        for (name, parameter, address, shape), flat in zip(self._known, self._flat, strict=True):
            if (
                parameters.get(name) is not parameter
                or flat is not parameter
                or parameter.data_ptr() != address
                or parameter.dtype is not dtype
                or parameter.shape != shape
                or not parameter.is_contiguous()
            ):
                vars(module).pop("_calls", None)
                return None
            wanted = wanted or parameter.requires_grad
        return wanted
